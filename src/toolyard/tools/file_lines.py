"""Shows and edits the lines of a text, numbered from 1. It makes no list of all lines: a file can have millions."""

from __future__ import annotations

SHOWN_MOST = 100_000
"""The most characters to show at once."""

_STEP = 64 * 1024


def numbered(text: str, line: int = 1) -> str | None:
    """Number the lines from this one on, as many as may be shown at once. None if there is no such line.

    0 also means the first line, and -1 the last. An empty text gives an empty result.
    """
    if not text:
        return "" if line in (0, 1) else None
    count = text.count("\n") + (not text.endswith("\n"))
    first = line + count + 1 if line < 0 else line or 1
    if not 1 <= first <= count:
        return None
    start = _start_of(text, first)
    piece = text[start : start + SHOWN_MOST]
    is_cut = start + SHOWN_MOST < len(text)
    if is_cut and "\n" in piece:
        piece = piece[: piece.rindex("\n") + 1]
    lines = piece.replace("\r\n", "\n").removesuffix("\n").split("\n")
    numbered = "\n".join(f"{number:>5}: {shown}" for number, shown in enumerate(lines, first))
    if is_cut:
        rest = f"read on from line {first + len(lines)} of {count}" if piece.endswith("\n") else "the line goes on"
        return f"{numbered}\n[cut here: {rest}]\n"
    return numbered + "\n" * piece.endswith("\n")


def edited(text: str, content: str, line: int | None, *, overwrite: bool) -> str:
    """Insert lines at the end or before `line`; with `overwrite`, replace as many lines from `line` on.

    Every line gets a line end, also the last. A line past the end means the end.
    """
    text, content = _ended(text), _ended(content)
    if line is None:
        return text + content
    end = text.count("\n") + 1
    first = min(max(line + end if line < 0 else line, 1), end)
    after = min(first + content.count("\n"), end) if overwrite else first
    return text[: _start_of(text, first)] + content + text[_start_of(text, after) :]


def _ended(text: str) -> str:
    return text if not text or text.endswith("\n") else text + "\n"


def _start_of(text: str, line: int) -> int:
    """The index where this line begins. It must exist, or be the next after the last."""
    at, ahead = 0, line - 1
    while (passed := text.count("\n", at, at + _STEP)) < ahead:
        at += _STEP
        ahead -= passed
    for _ in range(ahead):
        at = text.index("\n", at) + 1
    return at
