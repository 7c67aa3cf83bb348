"""`ActorPool`: keeps actors on every node of the cluster. It replaces those that end; nodes may come and go."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from toolyard.core.environment import Environment
from toolyard.core.errors import ClusterUnavailable, Overloaded, ToolyardError, describe
from toolyard.placement.ray.actor import Actor, Group
from toolyard.placement.ray.cluster import Cluster, ClusterNode
from toolyard.placement.ray.host import RAYLET_GONE

log = logging.getLogger("toolyard.placement")

_LOOK_SECONDS = 1.0
_START_SECONDS = 60.0
"""How long an actor may take to start, and how long a session waits for one."""
_SETTLE_SECONDS = 15.0
"""How long sessions wait for all of the first actors. Then the pool begins with those that run."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0
"""Seconds before the next try, after an actor could not be started."""


class Slot(NamedTuple):
    """A node, and the resources that actors reserve there."""

    node: str
    group: Group


@dataclass(slots=True)
class Tries:
    """The recent tries of something that the pool tries again and again, such as starting actors in a slot."""

    wanted: int = 1
    failures: int = 0
    not_before: float = 0.0
    starting: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def may_begin(self) -> bool:
        return time.monotonic() >= self.not_before

    def failed(self) -> None:
        """Note a failure. Several failures at the same time count as one."""
        if not self.may_begin:
            return
        pause = min(_FIRST_PAUSE * 2**self.failures, _LONGEST_PAUSE)
        self.failures += 1
        self.not_before = time.monotonic() + pause

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        start = asyncio.ensure_future(work)
        self.starting.add(start)
        start.add_done_callback(self.starting.discard)

    def give_up(self) -> None:
        for start in self.starting:
            start.cancel()


class ActorPool:
    """Belongs to one event loop. `each` is how many actors a node has; 0: one for each of its processors."""

    def __init__(self, cluster: Cluster, groups: Sequence[Group], each: int) -> None:
        self._cluster = cluster
        self._groups = groups
        self._each = each
        self._joining = Tries()
        self._slots: dict[Slot, Tries] = {}
        self._actors: set[Actor] = set()
        """Actors that have not ended."""
        self._changed = asyncio.Event()
        self._problem = "none runs yet"
        self._outage = ""
        """Why the cluster does not answer; empty if it does."""
        self._settled = False
        """Whether the first actors have started. Before that no session is placed: the first actor would get all."""
        self._keeping = asyncio.ensure_future(self._keep())
        self._keeping.add_done_callback(_say_if_broken)

    @property
    def actors(self) -> Sequence[Actor]:
        """The actors that take sessions."""
        return [actor for actor in self._actors if actor.is_free]

    @property
    def problem(self) -> str:
        """Why no session can be placed now."""
        if self._settled and self.actors:
            return ""
        why = self._outage if self._outage == RAYLET_GONE else "the cluster does not answer" * bool(self._outage)
        return f"no actor of the cluster is ready: {why}" if why else "no actor of the cluster is ready"

    async def least_loaded(self, group: Group) -> Actor:
        """The actor of this group with the fewest sessions. If there is none now, wait for one."""
        try:
            async with asyncio.timeout(_START_SECONDS):
                while not (self._settled and (free := self._free(group))):
                    if self._is_hopeless(group):
                        raise TimeoutError
                    await self._changed.wait()
        except TimeoutError:
            raise Overloaded(f"there is no actor for the session: {self._why_none(group)}", retry_after=5) from None
        on_node = Counter[str]()
        for actor in self.actors:
            on_node[actor.node.id] += actor.sessions
        return min(free, key=lambda actor: (actor.sessions, on_node[actor.node.id]))

    async def stop(self) -> None:
        """End every actor."""
        self._keeping.cancel()
        await asyncio.wait((self._keeping,))
        await self._give_up()
        await asyncio.gather(*(actor.end("the server ends") for actor in self._actors))

    def _free(self, group: Group) -> Sequence[Actor]:
        return [actor for actor in self.actors if actor.group == group]

    def _is_hopeless(self, group: Group) -> bool:
        """Whether no actor of this group is starting, and the last tries failed."""
        slots = self._of(group)
        return self._settled and not any(tries.starting or (tries.wanted and not tries.failures) for tries in slots)

    def _why_none(self, group: Group) -> str:
        slots = self._of(group)
        fits = not slots or any(tries.wanted for tries in slots)
        return self._problem if fits else f"no node of the cluster has {dict(group)}"

    def _of(self, group: Group) -> Sequence[Tries]:
        return [tries for slot, tries in self._slots.items() if slot.group == group]

    # Keeping as many actors as there should be.

    async def _keep(self) -> None:
        while True:
            await self._look()
            if not self._settled:
                await self._settle()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._changed.wait()

    async def _look(self) -> None:
        try:
            self._fill(await self._cluster.nodes())
            if self._outage:
                log.info("the Ray cluster answers again")
                self._outage = ""
        except ClusterUnavailable as error:
            self._say_outage(_said(error))
            if not self.actors and self._joining.may_begin:
                await self._rejoin()

    async def _rejoin(self) -> None:
        await self._give_up()
        try:
            await self._cluster.rejoin()
            self._joining.failures = 0
        except ClusterUnavailable as error:
            self._joining.failed()
            self._say(_said(error))

    def _say_outage(self, problem: str) -> None:
        """Log a problem of the cluster. Keep the first one, because those that follow from it say less."""
        if not self._outage:
            self._problem = ""  # so that `_say` logs it even if it was the last problem before
            self._outage = problem
            self._joining.failed()  # wait a moment: the rest of the cluster may be about to end, too
        self._say(problem)

    def _say(self, problem: str) -> None:
        """Log a problem once, however often it occurs in a row."""
        if problem != self._problem:
            log.warning("%s", problem)
        self._problem = problem

    async def _give_up(self) -> None:
        """Cancel all actors that are starting."""
        for tries in self._slots.values():
            tries.give_up()
        if starting := [start for tries in self._slots.values() for start in tries.starting]:
            await asyncio.wait(starting)
        self._slots.clear()

    async def _settle(self) -> None:
        if starting := [start for tries in self._slots.values() for start in tries.starting]:
            await asyncio.wait(starting, timeout=_SETTLE_SECONDS)
        self._settled = True
        self._wake()

    def _fill(self, nodes: Sequence[ClusterNode]) -> None:
        wanted = {Slot(node.id, group): node for node in nodes for group in self._groups}
        for gone in self._slots.keys() - wanted.keys():  # do not wait for actors on a node that has gone
            self._slots.pop(gone).give_up()
        there = Counter(Slot(actor.node.id, actor.group) for actor in self.actors)
        for slot, node in wanted.items():
            tries = self._slots.setdefault(slot, Tries())
            tries.wanted = self._size(node, slot.group)
            if tries.may_begin:
                for _ in range(tries.wanted - there[slot] - len(tries.starting)):
                    tries.begin(self._start(node, slot.group, tries))

    def _size(self, node: ClusterNode, group: Group) -> int:
        return min(self._each or int(node.resources.get("CPU", 0)) or 1, node.holds(dict(group)))

    async def _start(self, node: ClusterNode, group: Group, tries: Tries) -> None:
        try:
            async with asyncio.timeout(_START_SECONDS):
                self._actors.add(await Actor.open(self._cluster, node, group, self._bury))
            tries.failures = 0
        except Exception as error:  # Ray's, the network's, or the author's module when the actor loads it
            tries.failed()
            self._problem = _said(error)
            log.warning("an actor on node %s could not be started: %s", node.address, self._problem)
        self._wake()

    async def _bury(self, actor: Actor) -> None:
        self._actors.discard(actor)
        self._wake()
        await self._cluster.kill(actor.id)

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _say_if_broken(keeping: asyncio.Future[None]) -> None:
    if not keeping.cancelled() and (error := keeping.exception()) is not None:
        log.error("actors of the cluster are not replaced any more", exc_info=error)


def group_of(environment: type[Environment], usual: Mapping[str, float]) -> Group:
    return tuple(sorted((environment.resources or usual).items()))


def _said(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"it did not run within {_START_SECONDS:g} s; something else may have what it needs"
    return str(error) if isinstance(error, ToolyardError) else describe(error)
