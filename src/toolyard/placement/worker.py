"""The other side of a session in another process: environments as in `local`, driven over a `Line`.

A worker serves one session, or many. Everything that an author wrote runs here.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import random
import selectors
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from toolyard.core.environment import Environment
from toolyard.core.errors import CannotFork, NotSupported
from toolyard.core.messages import GroupCandidate
from toolyard.placement.base import SessionSpec, Task
from toolyard.placement.line import Line
from toolyard.placement.local import LocalEnvironment, LocalPlacement
from toolyard.placement.writing import write_reply
from toolyard.sandboxes.native import syscalls

_THREADS_END = 1.0
"""Seconds that threads without work are given to end before a fork."""


@dataclass(frozen=True, slots=True)
class Served:
    """What every worker of a server has, loaded before it was forked."""

    environments: Mapping[str, type[Environment]]
    toolsets: Mapping[str, type]
    threads: int
    enter: Callable[[], object]
    """Called on the loop of a worker, before anything of an environment is."""


class Worker:
    def __init__(self, served: Served, kin: socket.socket | None) -> None:
        self._served = served
        self._kin = kin
        """Where the ends of new lines come from, if this process may be forked."""
        self._local = LocalPlacement(served.threads)
        self._placed: dict[str, LocalEnvironment] = {}
        self._placing: dict[str, bool] = {}
        """Whose constructor runs now, and whether somebody still waits for it."""
        self._calls = 0
        self._sock: socket.socket | None = None
        self._selector: selectors.EpollSelector | None = None
        self._doing: Mapping[str, Callable[..., Any]] = {
            "place": self._place,
            "setup": self._setup,
            "prompt": self._prompt,
            "messages": self._messages,
            "list_tools": self._list_tools,
            "has_tool": self._has_tool,
            "call": self._call,
            "score_group": self._score_group,
            "workspace": self._workspace,
            "teardown": self._teardown,
            "fork": self._fork,
            "fork_here": self._fork_here,
            "pid": self._pid,
        }

    def live(self, sock: socket.socket) -> NoReturn:
        """Until the server hangs up."""
        self._sock, self._selector = sock, selectors.EpollSelector()
        loop = asyncio.SelectorEventLoop(self._selector)
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(self._live(sock))
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)  # threads of the author's must not keep it

    async def _live(self, sock: socket.socket) -> None:
        self._served.enter()
        await (await Line.on(sock, self._answer)).lost

    async def _answer(self, what: str, about: Sequence[Any]) -> Any:
        return await self._doing[what](*about)

    # What the server asks.

    async def _pid(self) -> int:
        return os.getpid()

    async def _place(
        self,
        session: str,
        environment: str,
        task: Mapping[str, Any],
        secrets: Mapping[str, str],
        toolset: str | None,
    ) -> None:
        spec = SessionSpec(
            session,
            self._served.environments[environment],
            Task(**task),
            secrets,
            None if toolset is None else self._served.toolsets[toolset],
        )
        self._placing[session] = True
        try:
            placed = await self._local.place(spec)
        finally:
            wanted = self._placing.pop(session)
        if wanted:
            self._placed[session] = placed
        else:
            await placed.teardown()

    async def _setup(self, session: str) -> None:
        await self._placed[session].setup()

    async def _prompt(self, session: str) -> Any:
        return [block.model_dump() for block in await self._placed[session].prompt()]

    async def _messages(self, session: str) -> Any:
        return [message.model_dump() for message in await self._placed[session].messages()]

    async def _list_tools(self, session: str) -> Any:
        return (await self._placed[session].list_tools()).model_dump()

    async def _has_tool(self, session: str, name: str) -> bool:
        return await self._placed[session].has_tool(name)

    async def _call(self, session: str, tool: str, arguments: Any, given: Any) -> Any:
        """If it is cancelled, the answer comes when nothing of it runs any more, or says that something does."""
        self._calls += 1
        try:
            return write_reply(await self._placed[session].call(tool, arguments, given))
        except asyncio.CancelledError:
            return {"hung": self._local.hung}
        finally:
            self._calls -= 1

    async def _score_group(self, session: str, candidates: Any) -> Any:
        group = [GroupCandidate.model_validate(candidate) for candidate in candidates]
        return [score.model_dump() for score in await self._placed[session].score_group(group)]

    async def _workspace(self, session: str, what: str, *about: Any) -> Any:
        workspace = await self._placed[session].workspace()
        match what:
            case "read":
                return (await workspace.read(about[0])).decode("latin-1")
            case "write":
                await workspace.write(about[0], about[1].encode("latin-1"))
            case "list":
                return [dataclasses.asdict(entry) for entry in await workspace.list(about[0])]  # type: ignore[call-overload]
            case "stop_programs":
                await workspace.stop_programs()
            case "save":
                return (await workspace.save()).decode("latin-1")
            case "restore":
                await workspace.restore(about[0].encode("latin-1"))
        return None

    async def _teardown(self, session: str) -> None:
        placed = self._placed.pop(session, None)
        if placed is not None:
            await placed.teardown()
        elif session in self._placing:
            self._placing[session] = False

    async def _fork_here(self, session: str, new: Sequence[str]) -> None:
        """By the author's fork(): the copies live in this process too."""
        placed = self._placed[session]
        specs = [SessionSpec(each, type(placed.environment), Task({})) for each in new]
        made, _ = await placed.fork(specs)
        self._placed |= dict(zip(new, made, strict=True))

    # Forking this process, with the one session that is in it.

    async def _fork(self, session: str, new: str) -> None:
        """The copy goes on as session `new`, at the end of a line that lies ready in `kin`."""
        placed = self._placed[session]
        if self._kin is None or len(self._placed) != 1:
            raise NotSupported("this process has several sessions")
        _, (end, kin), _, _ = socket.recv_fds(self._kin, 1, 2)
        if problem := await self._unforkable():
            os.close(end)
            os.close(kin)
            raise CannotFork(problem)
        helper = os.fork()
        if helper:
            os.close(end)
            os.close(kin)
            os.waitpid(helper, 0)  # noqa: ASYNC222  # which ends at once
            return
        between = os.getpid()
        if os.fork():
            os._exit(0)
        while os.getppid() == between:  # until the template has taken us for its own
            os.sched_yield()
        self._go_on_as_copy(placed, new, end, kin)

    def _go_on_as_copy(self, placed: LocalEnvironment, new: str, end: int, kin: int) -> NoReturn:
        """In the copy. The old loop, with everything that waits on it, is the original's: it is left as it is."""
        become_session()
        assert self._selector is not None
        assert self._sock is not None
        self._selector.close()  # the original's goes on; to change it from here would change that too
        self._sock.close()
        asyncio._set_running_loop(None)
        copy = Worker(self._served, socket.socket(fileno=kin))
        placed.move_to(copy._local)
        copy._placed[new] = placed
        copy.live(socket.socket(fileno=end))

    async def _unforkable(self) -> str:
        """What keeps this process from being copied."""
        if self._calls:
            return f"{self._calls} calls are running in it"
        self._local.close()  # threads that wait for work end; there will be new ones
        ends = time.monotonic() + _THREADS_END
        # Asked of the system: for Python a thread has ended a moment before it is gone.
        while (threads := len(os.listdir("/proc/self/task"))) > 1 and time.monotonic() < ends:  # noqa: ASYNC110
            await asyncio.sleep(0.001)  # they tell nobody
        if threads > 1:
            return f"{threads - 1} other threads are running in it"
        return f"it has child processes: {', '.join(children)}" if (children := _children()) else ""


def _children() -> Sequence[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def become_session() -> None:
    """What a process does that has just been forked to hold sessions."""
    syscalls.die_with_parent()
    os.setsid()
    random.seed()
