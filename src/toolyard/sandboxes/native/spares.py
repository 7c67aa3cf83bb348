"""Control groups made in advance and reused: for the kernel, making and removing one takes longer than a fork.

A sandbox must not notice its predecessor. So a group is kept only if all of its processes are gone, it never ran out of
memory, processes or processor time, and its memory is free again. It serves only for the same caps.
"""

from __future__ import annotations

import itertools
import os
from contextlib import suppress

from toolyard.sandboxes.native.cgroups import Caps, Group, Groups, Strain

_MOST = 32
"""The most groups to keep. Removing the broker's groups removes them too."""
_AHEAD = 8
"""Groups made in one go. Copies of the template that are made meanwhile keep the memory written for them."""


class Spares:
    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._by_caps: dict[Caps, list[Group]] = {}
        self._count = 0
        self._names = (f"spare-{os.getpid()}-{number}" for number in itertools.count())
        self.wanted: Caps | None = None
        """Caps of groups to make when there is nothing else to do."""

    def take(self, name: str, caps: Caps) -> Group:
        """A group with these caps; a new one gets this name."""
        spare = self._by_caps.get(caps, [])
        if len(spare) <= 1 and self._count <= _MOST // 2:
            self.wanted = caps
        if not spare:
            return self._groups.new(name, caps)
        return self._last_of(caps)

    def _last_of(self, caps: Caps) -> Group:
        spare = self._by_caps[caps]
        self._count -= 1
        group = spare.pop()
        if not spare:
            del self._by_caps[caps]
        return group

    def _keep(self, group: Group, caps: Caps) -> int:
        """Keep a group. Returns how many with these caps are kept."""
        spare = self._by_caps.setdefault(caps, [])
        spare.append(group)
        self._count += 1
        return len(spare)

    def make_ahead(self) -> None:
        """Make one wanted group."""
        assert self.wanted is not None
        try:
            if self._keep(self._groups.new(next(self._names), self.wanted), self.wanted) >= _AHEAD:
                self.wanted = None
        except OSError:  # no room; the next `take` raises
            self.wanted = None

    def leave(self, group: Group, caps: Caps, *, again: bool = True) -> Strain:
        """After a sandbox has ended: keep its group if it can be reused, else remove it. Returns the group's strain."""
        strain = Strain()
        with suppress(OSError):
            if again and self._count < _MOST and group.is_spotless():
                self._keep(group, caps)
                return strain
            strain = group.strain()
        group.remove()
        return strain
