"""Finds the name that a mistyped one meant: one slip away, or the same letters in another spelling."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from itertools import islice

_SHORT = 5
"""In shorter names, one letter more or less makes another word."""
_COMPARED_MOST = 500
"""Comparing names takes time, and a model may write wrong ones again and again."""
_ALIKE = 0.75
"""As `difflib` measures it."""


def same_letters(name: str, other: str) -> bool:
    """Whether both are written with the same letters, such as `tear_down`, `tearDown` and `teardown`."""
    return _letters(name) == _letters(other)


def is_near(name: str, other: str) -> bool:
    """Whether one slip leads from one to the other: a letter too many, too few or wrong, or two that changed places.
    The first letter must be right: `set_task` is no slip of `get_task`."""
    a, b = _letters(name), _letters(other)
    if min(len(a), len(b)) < _SHORT or abs(len(a) - len(b)) > 1 or a[0] != b[0]:
        return False
    if len(a) > len(b):
        a, b = b, a
    at = next((at for at in range(len(a)) if a[at] != b[at]), len(a))
    if len(a) < len(b):
        return a[at:] == b[at + 1 :]
    return a[at + 1 :] == b[at + 1 :] or (a[at : at + 2] == b[at : at + 2][::-1] and a[at + 2 :] == b[at + 2 :])


def nearest(name: str, known: Iterable[str], most: int = 1) -> Sequence[str]:
    """The known names that resemble this one, best first. Empty if none does."""
    by_letters: dict[str, str] = {}
    for each in islice(known, _COMPARED_MOST):
        by_letters.setdefault(_letters(each), each)
    wanted = _letters(name)[:100]
    close = difflib.get_close_matches(wanted, by_letters, n=most, cutoff=_ALIKE)
    if len(wanted) >= _SHORT:  # a prefix that is missing, or one too many
        close += [one for one in by_letters if wanted in one or (len(one) >= _SHORT and one in wanted)]
    return [by_letters[letters] for letters in list(dict.fromkeys(close))[:most]]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'list_tasks'?`, or nothing."""
    close = nearest(name, known)
    return f"; did you mean {close[0]!r}?" if close else ""


def _letters(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()
