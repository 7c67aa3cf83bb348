"""`Nodes`: all nodes of a server. It creates, closes, reopens and releases them.

Closing a node ends its sessions and keeps its files; opening it again gives them back. Releasing it leaves nothing.
"""

from __future__ import annotations

import asyncio
import logging
import math
import resource
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import IO

from toolyard.core.environment import Environment, overrides
from toolyard.core.errors import SandboxError, SessionFailed, ToolyardError
from toolyard.core.output import Blocks
from toolyard.core.workspace import Workspace
from toolyard.placement.base import NOBODY, Origin, SessionSpec, Task
from toolyard.protocols.toolserver.node import Node, NodeTask, NotRunning
from toolyard.runtime.journal import Why
from toolyard.runtime.lifecycle import State
from toolyard.runtime.runtime import Runtime
from toolyard.runtime.session import Session
from toolyard.session_ids import NODE

log = logging.getLogger("toolyard.toolserver")

_SAVING_MOST = 2
"""Workspaces that are saved or restored at once: each is in memory as a whole for a moment."""

_GONE = (SandboxError, SessionFailed)
"""Exceptions that mean that the workspace no longer exists."""
_SHARE_OF_OPEN_FILES = 4
"""Closed nodes may use one in so many of the files that the server may have open."""


class Nodes:
    def __init__(self, runtime: Runtime, *, keep_seconds: float, keep_bytes: int) -> None:
        self._runtime = runtime
        self._keep_seconds = keep_seconds
        self._keep_bytes = keep_bytes
        self._keep_most = _files_to_keep()
        self._nodes: dict[str, Node] = {}
        """By id. Those that were closed last are last."""
        self._saving = asyncio.Semaphore(_SAVING_MOST)
        runtime.at_end.append(self._forget_all)

    def find(self, node_id: str) -> Node | None:
        return self._nodes.get(node_id)

    def is_running(self, node: Node) -> bool:
        """Whether the node is open, and the runtime has closed none of its sessions."""
        known = self._runtime.sessions
        for session in node.sessions.values():  # not a generator: this runs for every call
            if known.get(session.id) is not session:
                return False
        return node.open

    async def create(self, bound: NodeTask | None, origin: Origin = NOBODY) -> tuple[Node, Blocks]:
        """Make a node. Return also the prompt of its task."""
        node = Node(self._runtime.owners.draw(lambda: secrets.token_hex(32)), bound, origin)
        self._nodes[node.id] = node
        try:
            await self._start(node)
            return node, await node.sessions[bound.environment].prompt() if bound else []
        except BaseException:
            await self.release(node)
            raise

    async def close(self, node: Node, why: Why = "deleted") -> None:
        """Save the files of a node, then close its sessions. If the files cannot be saved, the node stays open."""
        async with node.changing:
            if not node.open:
                return
            node.open = False  # what is written from now on would be lost
            try:
                await self._save(node)
            except BaseException:
                node.forget()
                node.open = True
                raise
            await self._end(node, why)
            self._keep(node)

    async def reopen(self, node: Node) -> None:
        await self._start(node)

    async def release(self, node: Node) -> None:
        self._nodes.pop(node.id, None)
        async with node.changing:
            await self._end(node)
            node.forget()

    async def session(self, node: Node, environment: type[Environment]) -> Session:
        """The node's session in this environment. It is opened on first use; a call in it waits for its setup()."""
        found = node.sessions.get(environment)
        if found is not None and found.state is not State.FAILED:
            return found
        async with node.changing:
            if not node.open:
                raise NotRunning
            found = node.sessions.get(environment)
            if found is not None and found.state is State.FAILED:  # perhaps it starts this time
                await self._drop(node, environment)
            return node.sessions.get(environment) or await self._open(node, environment)

    async def _close_idle(self, node: Node) -> None:
        """Close a node. The runtime calls this for each idle session, while another session of the node may be busy."""
        if node.busy:
            return
        try:
            await self.close(node, "idle")
        except ToolyardError as error:
            if time.monotonic() - node.used < self._keep_seconds:
                log.warning("node %s is idle, and stays open: %s", node.name, error)
                return
            log.warning("node %s is idle for %g s: its files are deleted", node.name, self._keep_seconds)
            await self.release(node)

    async def _start(self, node: Node) -> None:
        """Open the sessions that a node has from the beginning: those with files, and that of its task."""
        async with node.changing:
            if self._nodes.get(node.id) is not node:  # it was released while we waited
                return
            if self.is_running(node):
                await self._drop_broken(node)
            else:
                await self._end(node)  # close sessions that may be left
            try:
                for environment in self._from_the_beginning(node):
                    if environment not in node.sessions:
                        await self._furnish(node, environment, await self._open(node, environment))
            except BaseException:
                await self._end(node)
                self._keep(node)
                raise
            node.forget()
            node.open = True

    async def _open(self, node: Node, environment: type[Environment]) -> Session:
        task, secrets_ = Task({}), {}
        if node.bound is not None and node.bound.environment is environment:
            task, secrets_ = node.bound.task, dict(node.bound.secrets)
        name = f"{NODE}{node.name}:{environment.name().lower()}"
        spec = SessionSpec(name, environment, task, secrets_, origin=node.origin)
        session = await self._runtime.open(spec, on_idle=lambda: self._close_idle(node))
        node.sessions[environment] = session
        return session

    async def _furnish(self, node: Node, environment: type[Environment], session: Session) -> None:
        """Wait until a session is ready, and restore its files if there are any."""
        placed = await session.ready()
        if overrides(environment, "workspace"):
            workspace = await placed.workspace()
            if (file := node.files.get(environment)) is not None:
                await self._restored(workspace, file)
            else:
                await workspace.list()  # makes the workspace now, and not with the first call

    async def _end(self, node: Node, why: Why = "deleted") -> None:
        node.open = False
        ended, node.sessions = node.sessions, {}
        await asyncio.gather(*(self._runtime.close(session.id, why) for session in ended.values()))

    def _from_the_beginning(self, node: Node) -> Iterator[type[Environment]]:
        for environment in self._runtime.environments.values():
            if overrides(environment, "workspace") or (node.bound and node.bound.environment is environment):
                yield environment

    async def _drop_broken(self, node: Node) -> None:
        """Close sessions that do not answer any more, with their files. `_start` then opens new ones."""
        for environment, session in list(node.sessions.items()):
            try:
                if session.condition == "lost":
                    raise SessionFailed("the session is lost")
                if overrides(environment, "workspace"):
                    await (await (await session.ready()).workspace()).list()
            except _GONE as error:
                log.warning("node %s: %s is made again: %s", node.name, environment.name(), error)
                await self._drop(node, environment)

    async def _drop(self, node: Node, environment: type[Environment]) -> None:
        await self._runtime.close(node.sessions.pop(environment).id)

    async def _save(self, node: Node) -> None:
        for environment, session in node.sessions.items():
            await session.stop_calls()
            if overrides(environment, "workspace"):
                try:
                    node.files[environment] = await self._saved(node, await (await session.ready()).workspace())
                except _GONE as error:
                    log.warning("node %s is closed without its files: %s", node.name, error)

    @asynccontextmanager
    async def packing(self, node: Node) -> AsyncIterator[None]:
        """Hold this to pack the node's workspace. One at a time, because saving ends all programs in it, even those of
        another packer; and few on the whole server."""
        async with node.packing, self._saving:
            yield

    async def _saved(self, node: Node, workspace: Workspace) -> IO[bytes]:
        async with self.packing(node):
            await workspace.stop_programs()
            saved = await workspace.save()
            node.size += len(saved)
            return await asyncio.to_thread(_file_of, saved)

    async def _restored(self, workspace: Workspace, file: IO[bytes]) -> None:
        async with self._saving:
            await workspace.restore(await asyncio.to_thread(_content_of, file))

    def _keep(self, node: Node) -> None:
        """Keep the files of a closed node for a while, unless it was released meanwhile."""
        asyncio.get_running_loop().call_later(self._keep_seconds, self._expire, node, node.sessions)
        if self._nodes.pop(node.id, None) is not None:
            self._nodes[node.id] = node
            self._make_room()

    def _expire(self, node: Node, sessions: Mapping[type[Environment], Session]) -> None:
        """Forget a node if it has stayed closed since `_keep`."""
        if node.sessions is sessions and self._nodes.pop(node.id, None) is not None:
            log.info("node %s was closed for %g s: its files are deleted", node.name, self._keep_seconds)
            node.forget()

    def _forget_all(self) -> None:
        for node in self._nodes.values():
            node.forget()
        self._nodes.clear()

    def _make_room(self) -> None:
        closed = [node for node in self._nodes.values() if not node.open and node.files]
        size, count = sum(node.size for node in closed), sum(len(node.files) for node in closed)
        for node in closed:  # the first to be closed are the first to go
            if size <= self._keep_bytes and count <= self._keep_most:
                return
            if node.changing.locked():  # it has just been closed, or is about to be opened again
                continue
            log.warning(
                "closed nodes take %d bytes in %d open files, too many: the files of node %s are deleted",
                *(size, count, node.name),
            )
            size, count = size - node.size, count - len(node.files)
            del self._nodes[node.id]
            node.forget()


def _files_to_keep() -> float:
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return math.inf if most == resource.RLIM_INFINITY else most // _SHARE_OF_OPEN_FILES


def _file_of(data: bytes) -> IO[bytes]:
    file = tempfile.TemporaryFile()  # noqa: SIM115  # the node closes it
    file.write(data)
    return file


def _content_of(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()
