"""Control groups that are made ahead, and used again: making one, and removing it, takes the kernel longer than a fork
does.

Nothing of one sandbox is to be noticed in the next. So a group is kept only if all of its processes are gone, nobody in
it ever ran out of memory, of processes or of processor time, and its memory is free again; and it serves only for the
same caps.
"""

from __future__ import annotations

import itertools
import os
from contextlib import suppress

from toolyard.sandboxes.native.cgroups import Caps, Group, Groups, Strain

_MOST = 32
"""That are kept. They are removed with everything else of their broker's."""
_AHEAD = 8
"""That are made at once. What is written to memory for that, copies of the template that are made meanwhile keep."""


class Spares:
    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._by_caps: dict[Caps, list[Group]] = {}
        self._count = 0
        self._names = (f"spare-{os.getpid()}-{number}" for number in itertools.count())
        self.wanted: Caps | None = None
        """Of groups that should be made when there is nothing else to do."""

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
        """How many there are then."""
        spare = self._by_caps.setdefault(caps, [])
        spare.append(group)
        self._count += 1
        return len(spare)

    def make_ahead(self) -> None:
        """One that is wanted."""
        assert self.wanted is not None
        try:
            if self._keep(self._groups.new(next(self._names), self.wanted), self.wanted) >= _AHEAD:
                self.wanted = None
        except OSError:  # there can be no more, as whoever needs one will be told
            self.wanted = None

    def leave(self, group: Group, caps: Caps, *, again: bool = True) -> Strain:
        """Of a sandbox that has ended: keep the group if it may be used again, or remove it. Tells what it was short
        of."""
        strain = Strain()
        with suppress(OSError):
            if again and self._count < _MOST and group.is_spotless():
                self._keep(group, caps)
                return strain
            strain = group.strain()
        group.remove()
        return strain
