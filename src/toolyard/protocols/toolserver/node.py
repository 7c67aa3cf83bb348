"""`Node`: everything of one agent. It has a session in each environment that the agent uses, and saved workspaces."""

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
from toolyard.placement.base import NOBODY, Origin, Task
from toolyard.protocols.toolserver.offers import KnownOffers, Offer, of_session
from toolyard.runtime.call import Call
from toolyard.runtime.session import Session
from toolyard.tools.environment import ToolsEnvironment


@dataclass(frozen=True, slots=True)
class NodeTask:
    """The task for which a client made a node."""

    environment: type[Environment]
    task: Task
    secrets: Mapping[str, str]


class NotRunning(Exception):
    """The node is closed, or is being closed."""


class Node:
    def __init__(self, node_id: str, bound: NodeTask | None, origin: Origin = NOBODY) -> None:
        self.id = node_id
        """A secret: any client that sends it may use the node."""
        self.name = hashlib.sha256(node_id.encode()).hexdigest()[:16]
        """For logs and ids of sessions, which others may see."""
        self.bound = bound
        self.origin = origin
        self.changing = asyncio.Lock()
        """Held while sessions of the node are opened or closed."""
        self.packing = asyncio.Lock()
        """Held while its files are packed."""
        self.open = False
        self.sessions: dict[type[Environment], Session] = {}
        self.files: dict[type[Environment], IO[bytes]] = {}
        """Saved workspaces of a closed node. The files have no name, so they vanish however the server ends."""
        self.size = 0
        """Bytes in these files."""
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
        """Find a call that was made in one of its sessions, and the environment of that session."""
        for environment, session in self.sessions.items():
            try:
                return environment, session.find(call_id)
            except CallNotFound:
                continue
        raise CallNotFound(f"there is no call {call_id[:100]!r}, or its result was not asked for in time")

    def hint(self, environment: type[Environment]) -> str:
        """A hint for errors in an environment for which this node has no task."""
        if issubclass(environment, ToolsEnvironment) or (self.bound and self.bound.environment is environment):
            return ""
        return f" (this node has no task of {environment.name()!r}: name one in the body of /get_cookies)"

    async def own_offers(self) -> KnownOffers:
        """Tools that exist only in its sessions, such as those that the agent wrote itself."""
        found: list[Offer] = []
        for environment, session in list(self.sessions.items()):
            # A session that is not ready yet, or lost, has no tools that could be called.
            if session.condition == "ready" and any(map(lists_task_tools, (environment, *environment.toolsets))):
                listed = await (await session.ready()).list_tools()
                specs = [spec for spec in listed.tools if spec.name not in environment._definition.tools]
                found += of_session(environment, specs)
        return KnownOffers(found)

    async def workspace(self) -> Workspace:
        """The workspace of the first of its environments that has one."""
        for environment, session in self.sessions.items():
            if overrides(environment, "workspace"):
                return await (await session.ready()).workspace()
        raise NotSupported("no environment that is served here has a workspace")
