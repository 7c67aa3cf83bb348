"""The control groups around this process, whoever made them: what they allow, and what is used of it."""

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
    """In every hierarchy, from the group of this process up. Looked for once: a server stays where it was started."""
    try:
        return [group for hierarchy in own_hierarchies() for group in groups_above(hierarchy)]
    except (OSError, ValueError):  # not Linux, or it is hidden from us
        return []


def groups_above(hierarchy: Hierarchy) -> Iterator[LimitedGroup]:
    """The group of a process, and all those around it that can be seen."""
    path = hierarchy.own.rstrip("/")
    while len(path) >= len(hierarchy.mount.rstrip("/")) and path:
        yield LimitedGroup(hierarchy.version, hierarchy.controllers, path)
        path = os.path.dirname(path).rstrip("/")


def number(path: str) -> int | None:
    """None if there is no limit, or no such file."""
    try:
        text = Path(path).read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def statistic(path: str, name: str) -> int:
    """From lines of a name and a number; 0 if there is none."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(f"{name} ")), 0)
