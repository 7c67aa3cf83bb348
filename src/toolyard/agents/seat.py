"""`Seat`: a session as an agent sees it. It records what the agent does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, overload

from toolyard.agents.rollout import MadeCall, Rollout
from toolyard.client import AgentUrl, AsyncSession, Format, InfrastructureError, ToolCallFailed, ToolLost
from toolyard.core.messages import Message
from toolyard.core.output import Block, JsonObject, ToolOutput
from toolyard.core.tool import TerminalToolSpec, ToolSpec

T = TypeVar("T")

GRACE = 2.0
"""How many seconds a call may still take after its agent was stopped."""


class Seat:
    """The methods of `AsyncSession` that an agent needs. Opening and closing are not among them."""

    def __init__(self, session: AsyncSession, rollout: Rollout, excuse: Callable[[float], None]) -> None:
        self._session = session
        self.rollout = rollout
        self.excuse = excuse
        """Call it with seconds that do not count as working time, because an endpoint asked to wait."""
        self.lost: InfrastructureError | None = None
        """The first failure of the infrastructure, even if the agent went on after it."""
        self.handed_out = False

    @property
    def name(self) -> str:
        """The same for each repetition of an attempt: a seed for agents that play at random."""
        return self.rollout.name

    @property
    def sid(self) -> str:
        return self._session.sid

    @property
    def finished(self) -> bool:
        """Whether a tool has ended the episode."""
        return self.rollout.finished

    async def get_prompt(self) -> list[Block]:
        self.rollout.prompt = await self._session.get_prompt()
        return self.rollout.prompt

    async def get_messages(self) -> list[Message]:
        """The prompt as a conversation."""
        await self.get_prompt()  # for the rollout
        return await self._session.get_messages()

    @overload
    async def list_tools(self, format: None = None) -> list[ToolSpec]: ...
    @overload
    async def list_tools(self, format: Format) -> list[dict[str, Any]]: ...
    async def list_tools(self, format: Format | None = None) -> list[ToolSpec] | list[dict[str, Any]]:
        return await self._session.list_tools(format) if format else await self._session.list_tools()

    async def terminal_tool(self) -> TerminalToolSpec | None:
        return await self._session.terminal_tool()

    async def call_tool(self, name: str, input: JsonObject = {}, *, said: str = "") -> ToolOutput:
        """Raises `ToolCallFailed` if the tool fails, for the agent to read. `said` is kept with the episode."""
        try:
            return await to_its_end(self._call(name, input, said))
        except ToolCallFailed as error:
            self.refuse(name, input, error.reason, error.message)
            raise
        except InfrastructureError as error:
            self.lost = self.lost or error
            raise

    async def _call(self, name: str, input: JsonObject, said: str) -> ToolOutput:
        output = await self._session.call_tool(name, input, said=said)
        self.rollout.calls.append(MadeCall(name, input, output))
        self.rollout.finished = self.rollout.finished or output.finished
        return output

    async def call_terminal_tool(self, message: str = "") -> ToolOutput:
        """Hand in the agent's last message."""
        terminal = await self.terminal_tool()
        if terminal is None:
            raise ToolCallFailed("no_such_tool", "this environment takes no last message")
        return await self.call_tool(terminal.name, {terminal.arg: message} if terminal.arg else {})

    async def agent_url(self) -> AgentUrl:
        """A URL for an agent with its own connection. `settle` asks the server what the agent did there."""
        self.handed_out = True
        return await self._session.agent_url()

    async def settle(self) -> None:
        """Ask the server for the results of calls through the agent's URL."""
        if self.handed_out:
            found = self.rollout.elsewhere = await self._session.outcome()
            self.rollout.finished = found.finished
            if found.retryable:
                raise ToolLost("lost", f"a call was lost: {found.failure}")

    def refuse(self, name: str, input: JsonObject, reason: str, message: str) -> None:
        """Note a call that had no output."""
        self.rollout.calls.append(MadeCall(name, input, None, reason, message))


async def to_its_end(call: Coroutine[Any, Any, T]) -> T:
    """Wait for a call. If cancelled, wait a little longer: the server runs it in any case."""
    under_way = asyncio.ensure_future(call)
    try:
        return await asyncio.shield(under_way)
    except asyncio.CancelledError:
        await asyncio.wait((under_way,), timeout=GRACE)
        if not under_way.cancel():
            under_way.exception()  # mark the exception as retrieved
        raise
