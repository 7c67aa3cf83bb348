"""`AsyncClient`: the client on asyncio. `talk` has the flows, `line` runs them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, overload

import anyio

from toolyard.client import talk
from toolyard.client.address import Address
from toolyard.client.files import lay, parts_of
from toolyard.client.flow import PATIENCE, Peer
from toolyard.client.formats import Format, formatted
from toolyard.client.line import Line
from toolyard.client.outcome import SessionOutcome
from toolyard.client.pings import Lease, pings
from toolyard.client.talk import AgentUrl, EnvironmentTalk, SessionTalk, Task
from toolyard.core.messages import GroupCandidate, GroupScore, Message
from toolyard.core.output import Block, JsonObject, ToolOutput
from toolyard.core.tool import TerminalToolSpec, ToolSpec
from toolyard.core.workspace import Files

T = TypeVar("T")


class AsyncClient:
    """A server, as its clients see it: `Client` with `await` and `async with`. Any number of tasks may share one.

    `patience`: for how many seconds it tries to reach a server that does not answer.
    """

    def __init__(
        self, base_url: str = "http://127.0.0.1:8080", *, api_key: str | None = None, patience: float = PATIENCE
    ) -> None:
        self._line = Line(Address.of(base_url, api_key), Peer(patience))
        self.environments = AsyncEnvironments(self._line)

    @property
    def base_url(self) -> str:
        """The server's URL."""
        return self._line.address.url

    def environment(self, name: str) -> AsyncEnvironment:
        """As `environments.get`."""
        return self.environments.get(name)

    async def aclose(self) -> None:
        """Close its connections. Leaving a session closes the session."""
        await self._line.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class AsyncEnvironments:
    """The environments of a server."""

    def __init__(self, line: Line) -> None:
        self._line = line

    async def list(self) -> list[str]:
        """The names of all environments."""
        return await self._line.run(talk.list_environments(self._line.peer))

    def get(self, name: str) -> AsyncEnvironment:
        """This sends no request. The first request shows whether the server has the environment."""
        return AsyncEnvironment(self._line, name)


class AsyncEnvironment:
    """One environment of a server."""

    def __init__(self, line: Line, name: str) -> None:
        self._line = line
        self._talk = EnvironmentTalk(line.peer, name)

    @property
    def name(self) -> str:
        """Its name on the server."""
        return self._talk.name

    @overload
    async def list_tools(self, format: None = None) -> list[ToolSpec]: ...
    @overload
    async def list_tools(self, format: Format) -> list[dict[str, Any]]: ...
    async def list_tools(self, format: Format | None = None) -> list[ToolSpec] | list[dict[str, Any]]:
        """The tools that every task has; a session may have more. With `format`, in the form of a model's API."""
        return formatted((await self._line.run(self._talk.list_tools())).tools, format)

    async def search_tools(self, question: str, top_k: int = 5) -> list[ToolSpec]:
        """The tools that fit a question, best first, including those that are not listed."""
        return await self._line.run(self._talk.search_tools(question, top_k))

    async def list_splits(self) -> list[str]:
        """The names of its splits."""
        return await self._line.run(self._talk.list_splits())

    async def list_tasks(self, split: str) -> list[Task]:
        """All tasks of a split."""
        return await self._line.run(self._talk.list_tasks(split))

    async def num_tasks(self, split: str) -> int:
        """How many tasks a split has."""
        return await self._line.run(self._talk.num_tasks(split))

    async def get_task(self, split: str, index: int) -> Task:
        """Task number `index`; negative numbers count from the end."""
        return await self._line.run(self._talk.get_task(split, index))

    async def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[Task]:
        """A range of tasks, with Python's rules for slices."""
        return await self._line.run(self._talk.get_task_range(split, start, stop))

    def session(
        self,
        task: Task | JsonObject | None = None,
        *,
        split: str | None = None,
        index: int | None = None,
        secrets: Mapping[str, str] | None = None,
        toolset: str | None = None,
        run: str = "",
        labels: Mapping[str, str] | None = None,
    ) -> AsyncSession:
        """An episode of a task, or of number `index` in `split`. `async with` opens it.

        A server that records episodes stores the `run` and the `labels` with it.
        """
        talk = self._talk.session(
            task, split=split, index=index, secrets=secrets, toolset=toolset, run=run, labels=labels
        )
        return AsyncSession(self._line, talk)


class AsyncSession:
    """One episode. Leaving its `async with` always closes it, even after an exception or a cancellation."""

    def __init__(self, line: Line, session: SessionTalk) -> None:
        self._line = line
        self._talk = session
        self._lease: Lease | None = None

    @property
    def sid(self) -> str:
        """The id of the session, the same over every wire."""
        return self._talk.sid

    @property
    def forked_by(self) -> str:
        """How it was forked from another session: "process", "hook" or "replay"; empty if it was not."""
        return self._talk.forked_by

    async def __aenter__(self) -> Self:
        self._talk.check_closed()
        try:
            await self._line.run(self._talk.open())
        except BaseException:
            await to_the_end(self._line.run(self._talk.close()))
            raise
        self._keep()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the session, as leaving its block does."""
        if self._lease is not None:
            self._lease.end()
            self._lease = None
        await to_the_end(self._line.run(self._talk.close()))

    def _keep(self) -> None:
        if self._lease is None:
            self._lease = pings.keep(self._line.address, self.sid)

    async def get_prompt(self) -> list[Block]:
        """What the agent reads first."""
        return await self._line.run(self._talk.get_prompt())

    async def get_messages(self) -> list[Message]:
        """The prompt as a conversation."""
        return await self._line.run(self._talk.get_messages())

    @overload
    async def list_tools(self, format: None = None) -> list[ToolSpec]: ...
    @overload
    async def list_tools(self, format: Format) -> list[dict[str, Any]]: ...
    async def list_tools(self, format: Format | None = None) -> list[ToolSpec] | list[dict[str, Any]]:
        """The tools of this task. With `format`, in the form of a model's API."""
        return formatted((await self._line.run(self._talk.list_tools())).tools, format)

    async def call_tool(
        self, name: str, input: JsonObject = {}, *, call_id: str | None = None, said: str = ""
    ) -> ToolOutput:
        """Run a tool, exactly once, however often the connection breaks. Raises `ToolCallFailed` if the tool fails.

        A `call_id` names the call: a second call with it in this session returns the same result and runs nothing.
        `said` is what the model wrote beside the call; servers that record episodes store it.
        """
        return await self._line.run(self._talk.call_tool(name, input, call_id, said))

    async def terminal_tool(self) -> TerminalToolSpec | None:
        """The tool that takes the agent's last message, if there is one. `list_tools` does not list it."""
        return await self._line.run(self._talk.terminal_tool())

    async def call_terminal_tool(self, message: str = "") -> ToolOutput:
        """Hand in the agent's last message."""
        return await self._line.run(self._talk.call_terminal_tool(message))

    async def outcome(self) -> SessionOutcome:
        """The rewards and failures of its calls, over any wire; available for a while after it was closed."""
        return await self._line.run(self._talk.outcome())

    async def fork(self, count: int = 1) -> list[AsyncSession]:
        """Open sessions that continue from exactly here. Leave or close each, as this one."""
        forks = [AsyncSession(self._line, forked) for forked in await self._line.run(self._talk.fork(count))]
        for session in forks:
            session._keep()
        return forks

    async def put(self, source: Files, path: str = ".") -> Sequence[str]:
        """Copy a folder of this machine into a folder of the session's workspace, or a file to a path there, or files
        by their path. Returns the names that were left out: pipes, sockets, devices and links that lead out.

        A session that was given files is forked only if that needs no repetition of its calls."""
        archives, folder, left_out = await asyncio.to_thread(parts_of, source, path)
        for archive in archives:
            await self.unpack(archive, folder)
        return left_out

    async def get(self, path: str, target: Path) -> Sequence[str]:
        """Copy a file or a folder of the session's workspace to a new path of this machine, or into an empty folder.

        Nothing in the workspace can reach beyond `target`. Returns names that this machine's file system refuses."""
        archive = await self.pack(path)
        return await asyncio.to_thread(lay, archive, target)

    async def pack(self, path: str = ".") -> bytes:
        """A file or a folder of the session's workspace, as a tar archive that is safe to unpack anywhere."""
        return await self._line.run(self._talk.pack(path))

    async def unpack(self, archive: bytes, path: str = ".") -> None:
        """Unpack a tar archive, compressed or not, into a folder of the session's workspace. A server takes about
        12 MB at once, unless its `--body-bytes` says more."""
        await self._line.run(self._talk.unpack(archive, path))

    async def agent_url(self, *, expires_in: float | None = None) -> AgentUrl:
        """A URL with a token, for an agent. It opens the tools of this session and nothing else: no reward, no task, no
        other session. Valid for `expires_in` seconds, or as long as the server allows."""
        return await self._line.run(self._talk.agent_url(expires_in))

    async def revoke_agents(self, agent: AgentUrl | None = None) -> int:
        """Revoke the token of one agent, or all tokens of this session."""
        return await self._line.run(self._talk.revoke_agents(agent))

    async def score_group(self, candidates: Sequence[GroupCandidate]) -> list[GroupScore]:
        """Compare several answers to this task: one score for each, in order."""
        return await self._line.run(self._talk.score_group(candidates))


async def to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Finish the work, even if cancelled meanwhile, any number of times. Only then raise the cancellation."""
    task = asyncio.get_running_loop().create_task(work)
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):  # without it, anyio would cancel again and again
        while not task.done():
            try:
                await asyncio.wait((task,))
            except asyncio.CancelledError as error:
                cancelled = error
    if cancelled is not None:
        raise cancelled
    task.result()
