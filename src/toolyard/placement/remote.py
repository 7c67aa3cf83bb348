"""An environment instance in another process, as the runtime sees it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from toolyard.core.environment import needs_sandbox
from toolyard.core.errors import CannotFork, SessionFailed
from toolyard.core.messages import GroupCandidate, GroupScore, Message
from toolyard.core.output import Blocks, ImageBlock, JsonObject, Reply, TextBlock, ToolFailure
from toolyard.core.tool import ListToolsOutput, Tool
from toolyard.core.workspace import Workspace
from toolyard.placement.base import SessionSpec, Strategy, Task
from toolyard.placement.fork_server import ForkServer, ForkServerLost, pair_of_ends
from toolyard.placement.local import tools_with
from toolyard.placement.replies import read_reply
from toolyard.placement.workspaces import RemoteWorkspace
from toolyard.rpc import OurQuestion, PeerLost, RpcConnection, look_at
from toolyard.sandboxes.provider import provided
from toolyard.sandboxes.template_loan import Lender

log = logging.getLogger("toolyard.placement")

_GRACE = 0.5
"""Seconds that a call has to stop, before we end its process."""
_numbers = itertools.count()


class Host:
    """Another process with sessions in it, as the server sees it: the connection to the process, and its end."""

    def __init__(self, pid: int, connection: RpcConnection) -> None:
        self.pid = pid
        self.connection = connection
        self.sessions = 0
        self.retired = False
        """It takes no more sessions: something in it hangs, or it ends with the sessions that it has."""
        self.ended = ""
        """Why it has ended; empty while it runs."""
        self._ending: asyncio.Task[None] | None = None
        self._watching = asyncio.ensure_future(self._watch())

    async def ask(self, what: str, *about: Any) -> Any:
        return await self.connection.ask(what, *about)

    async def end(self, why: str) -> None:
        """Kill the process, if it still runs. Questions to it then fail, and `ended` says why."""
        if self._ending is None:
            self.ended = why
            self._ending = asyncio.ensure_future(self._end())
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        """End the process. Called once; afterwards `ended` says why."""
        raise NotImplementedError

    async def _watch(self) -> None:
        """Notice when the process ends by itself."""
        await asyncio.shield(self.connection.lost)
        await self.end("")

    def _hang_up(self) -> None:
        self.connection.close(self.ended)


class WorkerProcess(Host):
    """A worker that was forked from a fork server on this machine."""

    def __init__(
        self, pid: int, connection: RpcConnection, kin: socket.socket, fork_server: ForkServer, all_: set[WorkerProcess]
    ) -> None:
        super().__init__(pid, connection)
        self.kin = kin
        self._fork_server = fork_server
        self._all = all_
        """Every process that runs, including those that were forked from others."""
        all_.add(self)
        self._sandboxes = provided()
        self._lenders: list[Lender] = []
        kin.setblocking(False)
        asyncio.get_running_loop().add_reader(kin, self._lend)

    @classmethod
    async def start(cls, fork_server: ForkServer, all_: set[WorkerProcess]) -> WorkerProcess:
        pid, sock, kin = await fork_server.start()
        try:
            return cls(pid, await RpcConnection.on(sock), kin, fork_server, all_)
        except BaseException:
            sock.close()
            kin.close()
            await fork_server.end(pid)
            raise

    async def fork(self, session: str, new: str) -> WorkerProcess:
        """Fork this process. In the copy the session goes on under a new name."""
        ours, kin, theirs = pair_of_ends()
        try:
            with contextlib.closing(theirs[0]), contextlib.closing(theirs[1]):
                socket.send_fds(self.kin, [b"."], [end.fileno() for end in theirs])
                await self.ask("fork", session, new)
            return await self._copied(await RpcConnection.on(ours), kin)
        except BaseException:
            ours.close()
            kin.close()
            raise

    async def _copied(self, connection: RpcConnection, kin: socket.socket) -> WorkerProcess:
        try:
            copy = WorkerProcess(await connection.ask("pid"), connection, kin, self._fork_server, self._all)
        except BaseException as error:
            connection.close()
            if isinstance(error, PeerLost):
                raise CannotFork("the copy of its process ended at once") from None
            raise
        try:
            await self._fork_server.know(copy.pid)
        except BaseException:
            await copy.end("nobody waits for it any more")
            raise
        return copy

    def _lend(self) -> None:
        """Lend the worker our sandboxes, over the socket that it has sent."""
        try:
            data, ends, _, _ = socket.recv_fds(self.kin, 1, 1)
        except BlockingIOError:
            return
        except OSError:
            data, ends = b"", []
        if not data:
            asyncio.get_running_loop().remove_reader(self.kin)
        self._lenders += [Lender(socket.socket(fileno=end), self._sandboxes) for end in ends]

    async def _end(self) -> None:
        try:
            code = await self._fork_server.end(self.pid)
            if not self.ended:
                self.ended = f"its process ended {_how(code)}"
        except ForkServerLost as lost:
            self.ended = self.ended or str(lost)
        self._hang_up()
        asyncio.get_running_loop().remove_reader(self.kin)
        self.kin.close()
        for lender in self._lenders:
            lender.close()
        self._all.discard(self)


class RemoteEnvironment:
    """An environment in another process. `alone`: no other session lives in that process, which ends with this one."""

    holds = True
    grace = _GRACE

    def __init__(self, spec: SessionSpec, process: Host, *, alone: bool, called: str = "") -> None:
        self.tools: Mapping[str, Tool] = tools_with(spec.environment, spec.toolset)
        self.process = process
        self.alone = alone
        self._session = called or name_for(spec)
        self._name = spec.environment.name().lower()
        self._toolset = spec.toolset.__name__ if spec.toolset is not None else None
        self._is_over = False

    @property
    def lost(self) -> str:
        """Why its process has ended; empty while it runs."""
        return self.process.ended

    def place(self, task: Task, secrets: Mapping[str, str]) -> OurQuestion:
        """Call the author's constructor there."""
        about = self._session, self._name, asdict(task), dict(secrets), self._toolset
        return self.process.connection.ask("place", *about)

    async def setup(self) -> None:
        await self._ask("setup")

    async def prompt(self) -> Blocks:
        return [_block(block) for block in await self._ask("prompt")]

    async def messages(self) -> Sequence[Message]:
        return [Message.model_validate(message) for message in await self._ask("messages")]

    async def list_tools(self) -> ListToolsOutput:
        return ListToolsOutput.model_validate(await self._ask("list_tools"))

    async def has_tool(self, name: str) -> bool:
        return bool(await self._ask("has_tool", name))

    async def call(self, tool: str, arguments: JsonObject, given: JsonObject) -> Reply:
        asked = self.process.connection.ask("call", self._session, tool, arguments, given)
        try:
            return read_reply(await asyncio.shield(asked))
        except PeerLost:
            await self.process.end("")
            return ToolFailure("lost", f"Tool {tool!r} could not be run: {self.lost}")
        except asyncio.CancelledError:
            await self._stop(tool, asked)
            raise

    async def score_group(self, candidates: Sequence[GroupCandidate]) -> Sequence[GroupScore]:
        scores = await self._ask("score_group", [candidate.model_dump() for candidate in candidates])
        return [GroupScore.model_construct(**score) for score in scores]  # unvalidated: NaN arrives as null

    async def workspace(self) -> Workspace:
        return RemoteWorkspace(self._ask)

    async def fork(self, specs: Sequence[SessionSpec]) -> tuple[Sequence[RemoteEnvironment], Strategy]:
        process = self.process
        if self.alone and isinstance(process, WorkerProcess) and not needs_sandbox(specs[0].environment):
            return await self._fork_process(process, specs), "process"
        names = [name_for(spec) for spec in specs]
        strategy = await self._fork_there(names)
        process.sessions += len(specs)
        if self.alone:  # its process holds other sessions from now on, and ends with the last of them
            self.alone, process.retired = False, True
        made = zip(specs, names, strict=True)
        return [RemoteEnvironment(spec, process, alone=False, called=name) for spec, name in made], strategy

    async def _fork_there(self, names: Sequence[str]) -> Strategy:
        """Fork within the same process, by any strategy that the placement there supports."""
        strategy: Strategy = await self._ask("fork_here", self._name, self._toolset, names)
        return strategy

    async def _fork_process(self, origin: WorkerProcess, specs: Sequence[SessionSpec]) -> Sequence[RemoteEnvironment]:
        made: list[RemoteEnvironment] = []
        try:
            for spec in specs:
                process = await origin.fork(self._session, name := name_for(spec))
                process.sessions = 1
                made.append(RemoteEnvironment(spec, process, alone=True, called=name))
        except BaseException as error:
            await asyncio.gather(*(one.teardown() for one in made), return_exceptions=True)
            if isinstance(error, PeerLost | ForkServerLost):
                raise await self._as_lost() from None
            raise
        return made

    async def give_up(self) -> None:
        """Give up an environment whose constructor has not returned, and may never. If it does return, the process
        tears the environment down."""
        self._is_over = True
        if self.process.connection.lost.done():
            await self.process.end("")
        self.process.connection.ask("teardown", self._session).add_done_callback(look_at)
        await self._leave()

    async def teardown(self) -> None:
        """Run the author's teardown(), then leave the process, even if the first fails."""
        if self._is_over:
            return
        self._is_over = True
        try:
            if not self.process.ended:
                await self._ask("teardown")
        finally:
            await self._leave()

    async def _leave(self) -> None:
        self.process.sessions -= 1
        if self.alone or (self.process.retired and not self.process.sessions):
            await self.process.end("its session is over")

    async def _ask(self, what: str, *about: Any) -> Any:
        try:
            return await self.process.ask(what, self._session, *about)
        except PeerLost:
            raise await self._as_lost() from None

    async def _as_lost(self) -> SessionFailed:
        await self.process.end("")
        return SessionFailed(f"the session is lost: {self.lost}")

    async def _stop(self, tool: str, asked: OurQuestion) -> None:
        """Stop a call for real. If it does not stop, end its process, unless other sessions live there."""
        asked.stop()
        await asyncio.wait((asked,), timeout=self.grace)
        if asked.done() and (asked.exception() is not None or not _is_hung(asked.result())):
            return
        if self.alone:
            await self.process.end(f"its process was ended, because {tool!r} did not stop in time")
        else:
            self.process.retired = True
            log.error("%r does not stop; process %d gets no new sessions", tool, self.process.pid)


def _is_hung(answer: object) -> bool:
    """Whether the tool's thread still runs. The answer is a reply if the tool was faster than our stop."""
    return isinstance(answer, dict) and bool(answer.get("hung"))


def name_for(spec: SessionSpec) -> str:
    """A name for a session in its process. Its id is not enough: a client may open another session under the same id
    before this one has gone."""
    return f"{spec.session_id}/{next(_numbers)}"


def _block(block: JsonObject) -> TextBlock | ImageBlock:
    return TextBlock(**block) if block["type"] == "text" else ImageBlock(**block)


def _how(code: int) -> str:
    return f"by itself, with exit code {code}" if code >= 0 else f"by signal {signal.Signals(-code).name}"
