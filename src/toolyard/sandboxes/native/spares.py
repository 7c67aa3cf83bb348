"""Control groups that are used again: making one, and removing it, takes the kernel longer than a fork does.

Nothing of one sandbox is to be noticed in the next. So a group is kept only if all of its processes are gone, nobody in
it ever ran out of memory or of processor time, and its memory is free again; and it serves only for the same caps.
"""

from __future__ import annotations

from contextlib import suppress

from toolyard.sandboxes.native.cgroups import Caps, Group, Groups

_MOST = 32
"""That are kept. They are removed with everything else of their broker's."""


class Spares:
    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._by_caps: dict[Caps, list[Group]] = {}
        self._count = 0

    def take(self, name: str, caps: Caps) -> Group:
        """A group with these caps; a new one gets this name."""
        if spare := self._by_caps.get(caps):
            self._count -= 1
            return spare.pop()
        return self._groups.new(name, caps)

    def leave(self, group: Group, caps: Caps, *, again: bool = True) -> bool:
        """Of a sandbox that has ended: keep the group if it may be used again, or remove it. Whether memory ran out."""
        ran_out = False
        with suppress(OSError):
            if again and self._count < _MOST and group.is_spotless():
                self._by_caps.setdefault(caps, []).append(group)
                self._count += 1
                return False
            ran_out = group.oom_kills() > 0
        group.remove()
        return ran_out
