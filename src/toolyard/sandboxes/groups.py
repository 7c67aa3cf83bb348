"""The control groups around this process: what they allow, and how much of it is used."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from toolyard.sandboxes.native.cgroups import Hierarchy, own_hierarchies


class LimitedGroup(NamedTuple):
    """One group of one hierarchy, which may have limits."""

    version: int
    controllers: frozenset[str]
    path: str


@functools.cache
def groups_around() -> Sequence[LimitedGroup]:
    """The groups of every hierarchy, from this process's own up. Cached: a server does not change its groups."""
    try:
        return [group for hierarchy in own_hierarchies() for group in groups_above(hierarchy)]
    except (OSError, ValueError):  # not Linux, or we may not read it
        return []


def groups_above(hierarchy: Hierarchy) -> Iterator[LimitedGroup]:
    """A process's group and all visible groups above it."""
    path = hierarchy.own.rstrip("/")
    while len(path) >= len(hierarchy.mount.rstrip("/")) and path:
        yield LimitedGroup(hierarchy.version, hierarchy.controllers, path)
        path = os.path.dirname(path).rstrip("/")


def number(path: str) -> int | None:
    """The number in a file; None if it says no limit, or if there is no such file."""
    try:
        text = Path(path).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def statistic(path: str, name: str) -> int:
    """A value from a file of lines with a name and a number; 0 if it is not there."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name} ")), 0)
