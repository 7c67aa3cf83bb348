"""An actor of the cluster, and an environment in it, as the server sees them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import Self, TypeAlias

from toolyard.core.errors import Overloaded, SessionFailed
from toolyard.core.output import JsonObject, Reply, ToolFailure
from toolyard.placement.base import SessionSpec, Strategy
from toolyard.placement.ray.cluster import Cluster, ClusterNode, ListeningActor
from toolyard.placement.ray.handshake import connect
from toolyard.placement.remote import Host, RemoteEnvironment, name_for
from toolyard.rpc import PeerLost, RpcConnection

log = logging.getLogger("toolyard.placement")

Group: TypeAlias = tuple[tuple[str, float], ...]
"""Resources that actors reserve. Environments with equal resources share actors."""

Bury: TypeAlias = Callable[["Actor"], Awaitable[None]]
"""Forgets an actor, and kills it if it still runs."""

_GRACE = 3.0
"""Seconds that a call has to stop. If its session has a process there, the actor ends that process meanwhile."""


class Actor(Host):
    """A process of the cluster with many sessions."""

    def __init__(
        self, listening: ListeningActor, node: ClusterNode, group: Group, connection: RpcConnection, bury: Bury
    ) -> None:
        super().__init__(listening.pid, connection)
        self.id = listening.actor
        self.node = node
        self.group = group
        self._bury = bury

    @classmethod
    async def open(cls, cluster: Cluster, node: ClusterNode, group: Group, bury: Bury) -> Self:
        """Start an actor on that node, wait until it runs, and connect to it."""
        key = secrets.token_bytes(32)
        listening = await cluster.open(node, dict(group), key)
        try:
            connection = await RpcConnection.on(await connect((listening.address, listening.port), key))
        except BaseException:
            await cluster.kill(listening.actor)
            raise
        return cls(listening, node, group, connection, bury)

    @property
    def is_free(self) -> bool:
        """Whether it takes sessions."""
        return not (self.ended or self.retired or self.connection.lost.done())

    async def _end(self) -> None:
        if not self.ended:
            self.ended = "its actor has ended"
            log.warning(
                "the actor on node %s, process %d, has ended; %d sessions were in it",
                self.node.address,
                self.pid,
                self.sessions,
            )
        self._hang_up()
        await self._bury(self)


class ActorEnvironment(RemoteEnvironment):
    grace = _GRACE

    def __init__(self, spec: SessionSpec, actor: Actor, *, called: str = "") -> None:
        super().__init__(spec, actor, alone=False, called=called)
        self._actor = actor
        self._lost_there = ""
        actor.sessions += 1

    @classmethod
    async def start(cls, spec: SessionSpec, actor: Actor) -> Self:
        """Call the author's constructor there."""
        made = cls(spec, actor)
        asked = made.place(spec.task, spec.secrets)
        try:
            await asyncio.shield(asked)
        except BaseException as error:
            asked.stop()  # does nothing if the constructor has raised
            await asyncio.wait((asked,), timeout=_GRACE)
            await made.give_up()
            if isinstance(error, PeerLost):
                raise Overloaded(f"the session could not be started: {made.lost}") from None
            raise
        return made

    @property
    def lost(self) -> str:
        return self._lost_there or self._actor.ended

    async def call(self, tool: str, arguments: JsonObject, given: JsonObject) -> Reply:
        reply = await super().call(tool, arguments, given)
        if isinstance(reply, ToolFailure) and reply.reason == "lost" and not self.lost:
            with contextlib.suppress(SessionFailed):  # then the actor is lost as well
                self._lost_there = await self._ask("lost")
        return reply

    async def fork(self, specs: Sequence[SessionSpec]) -> tuple[Sequence[ActorEnvironment], Strategy]:
        names = [name_for(spec) for spec in specs]
        strategy = await self._fork_there(names)
        made = zip(specs, names, strict=True)
        return [ActorEnvironment(spec, self._actor, called=name) for spec, name in made], strategy
