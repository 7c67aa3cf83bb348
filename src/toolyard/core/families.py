"""Finds which tools belong together, such as those of one API, toolset or server, by their names alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

_LONGEST = 200
"""Read this many characters of a name."""
_LARGEST = 20
"""A beginning that more names than this share is no family. A longer beginning may be one."""
_VERBS = "add check create delete do fetch find get has is list make new post put query read remove run search send set"
_COMMON = frozenset(f"{_VERBS} show update write".split())
"""Names that only share one of these words are not related."""


@dataclass(frozen=True, slots=True)
class Name:
    """A tool's name, taken apart."""

    own: str
    family: str
    """The part of the name that other tools share; empty if there is none."""
    key: str
    """Equal for all tools of a family."""


def taken_apart(names: Sequence[str]) -> list[Name]:
    """`get_movies_for_imdb` ends with its family; `FileSystemEnv_read` and `rapi_imdb_movies` begin with it."""
    names = [name[:_LONGEST] for name in names]
    endings = Counter(ending for name in names for ending in _endings(name))
    beginnings = Counter(beginning for name in names for beginning in _beginnings(name))
    related = {beginning for beginning, count in beginnings.items() if 1 < count <= _LARGEST} - _COMMON
    return [_name(name, endings, related) for name in names]


def _name(name: str, endings: Mapping[str, int], related: Set[str]) -> Name:
    first, _, own = name.partition("_")
    if first in related and not first.islower():  # the name of a class
        return Name(own, first, f"of {first}")
    if possible := list(_endings(name)):
        family = next((ending for ending in possible if endings[ending] > 1), possible[-1])
        return Name(name[: -len(f"_for_{family}")], family, f"for {family}")
    if family := next((beginning for beginning in _beginnings(name) if beginning in related), ""):
        return Name(name[len(family) + 1 :], family, f"of {family}")
    return Name(name, "", f"is {name}")


def _endings(name: str) -> Iterator[str]:
    """Endings that may name a family, longest first."""
    parts = name.split("_for_")
    return ("_for_".join(parts[at:]) for at in range(1, len(parts)))


def _beginnings(name: str) -> Iterator[str]:
    """Beginnings that may name a family, shortest first."""
    parts = name.split("_")
    return ("_".join(parts[:at]) for at in range(1, len(parts)))
