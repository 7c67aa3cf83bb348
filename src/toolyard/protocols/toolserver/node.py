"""A node is what one agent has: a session in each environment that it uses, and the files of those that have some."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any

from toolyard.core.environment import Environment, lists_task_tools, overrides
from toolyard.core.errors import CallNotFound, NotSupported
from toolyard.core.workspace import Workspace
from toolyard.placement.base import Task
from toolyard.protocols.toolserver.offers import KnownOffers, Offer, of_session
from toolyard.runtime.call import Call
from toolyard.runtime.session import Session
from toolyard.tools.environment import ToolsEnvironment


@dataclass(frozen=True, slots=True)
class NodeTask:
    """The task that a node was made for."""

    environment: type[Environment]
    task: Task
    secrets: Mapping[str, str]


class NotRunning(Exception):
    """The node is closed, or is being closed."""


class Node:
    def __init__(self, node_id: str, bound: NodeTask | None) -> None:
        self.id = node_id
        """Whoever knows it is let in."""
        self.name = hashlib.sha256(node_id.encode()).hexdigest()[:16]
        """For logs and names of sessions, which others may see."""
        self.bound = bound
        self.changing = asyncio.Lock()
        """Held by whoever opens or ends sessions of it."""
        self.packing = asyncio.Lock()
        """Held by whoever packs its files."""
        self.open = False
        self.sessions: dict[type[Environment], Session] = {}
        self.files: dict[type[Environment], IO[bytes]] = {}
        """Of a node that is closed. They have no name, so they are gone when the server is, however it ends."""
        self.size = 0
        """Bytes in them."""
        self.used = time.monotonic()

    @property
    def busy(self) -> bool:
        return any(session.busy for session in self.sessions.values())

    def touch(self) -> None:
        self.used = time.monotonic()
        for session in self.sessions.values():
            session.touch()

    def forget(self) -> None:
        for file in self.files.values():
            file.close()
        self.files = {}
        self.size = 0

    def call(self, call_id: str) -> tuple[type[Environment], Call[Any]]:
        """A call that was made in one of its sessions, and which that is."""
        for environment, session in self.sessions.items():
            try:
                return environment, session.find(call_id)
            except CallNotFound:
                continue
        raise CallNotFound(f"there is no call {call_id[:100]!r}, or its result was not asked for in time")

    def hint(self, environment: type[Environment]) -> str:
        """What to know when something breaks in an environment that this node has no task of."""
        if issubclass(environment, ToolsEnvironment) or (self.bound and self.bound.environment is environment):
            return ""
        return f" (this node has no task of {environment.name()!r}: name one in the body of /get_cookies)"

    async def own_offers(self) -> KnownOffers:
        """Tools that only its sessions know, such as those that the agent wrote itself."""
        found: list[Offer] = []
        for environment, session in list(self.sessions.items()):
            # One that is not there yet, or no longer, has none that could be called.
            if session.condition == "ready" and any(map(lists_task_tools, (environment, *environment.toolsets))):
                listed = await (await session.ready()).list_tools()
                specs = [spec for spec in listed.tools if spec.name not in environment._definition.tools]
                found += of_session(environment, specs)
        return KnownOffers(found)

    async def workspace(self) -> Workspace:
        """Of the first of its environments that has one."""
        for environment, session in self.sessions.items():
            if overrides(environment, "workspace"):
                return await (await session.ready()).workspace()
        raise NotSupported("no environment that is served here has a workspace")
