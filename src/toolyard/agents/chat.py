"""`ChatAgent`: lets a model play, turn by turn, until the episode is over or a limit is reached."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toolyard.agents.conversation import messages_of, results_of
from toolyard.agents.endpoint import Endpoint
from toolyard.agents.playing import AgentStopped
from toolyard.agents.replies import Reply, WrittenCall, sendable
from toolyard.agents.seat import Seat
from toolyard.client import Task, ToolCallFailed
from toolyard.core.output import Block, TextBlock

ASK_ONCE_MORE = "You called no tool, and the task is not done. Call a tool to go on."
_OVER = "The episode was over before this call, so it was not made."


class ChatAgent:
    """A model with the tools of the session. It may write up to `max_tokens` in one episode."""

    def __init__(
        self, endpoint: Endpoint, *, system: str = "", max_turns: int = 20, max_tokens: int | None = None
    ) -> None:
        self._endpoint = endpoint
        self._system = system
        self._max_turns = max_turns
        self._max_tokens = max_tokens

    async def __call__(self, session: Seat, task: Task) -> None:
        rollout = session.rollout
        if self._system:
            rollout.messages.append({"role": "system", "content": self._system})
        rollout.messages += messages_of(await session.get_messages())
        tools = await session.list_tools("openrouter")
        silent = False
        while not session.finished:
            self._check_limits(session)
            reply = await self._reply(session, tools)
            if reply.calls:
                silent = False
                rollout.messages += await _made(session, reply)
            elif await session.terminal_tool() is not None:
                await session.call_terminal_tool(reply.text)
                return
            elif silent:
                raise AgentStopped("no_tool_call")
            else:
                silent = True
                rollout.messages.append({"role": "user", "content": ASK_ONCE_MORE})

    def _check_limits(self, session: Seat) -> None:
        if session.rollout.turns >= self._max_turns:
            raise AgentStopped("max_turns")
        if self._max_tokens is not None and session.rollout.tokens.completion >= self._max_tokens:
            raise AgentStopped("max_tokens")

    async def _reply(self, session: Seat, tools: Sequence[dict[str, Any]]) -> Reply:
        rollout = session.rollout
        reply = await self._endpoint.reply(list(map(sendable, rollout.messages)), tools, excuse=session.excuse)
        rollout.turns += 1
        rollout.tokens.add(reply.tokens)
        rollout.messages.append(reply.message)
        if reply.finish_reason == "length":  # its last call may be half a call
            raise AgentStopped("length")
        return reply


async def _made(session: Seat, reply: Reply) -> list[dict[str, Any]]:
    """Make the calls of one turn, one after the other, and return the messages with their results."""
    said = [reply.said, *("" for _ in reply.calls[1:])]  # recorded once, with the first call
    results = [(call.id, await _result(session, call, text)) for call, text in zip(reply.calls, said, strict=True)]
    return list(results_of(results))


async def _result(session: Seat, call: WrittenCall, said: str) -> Sequence[Block]:
    if session.finished:
        session.refuse(call.name, {}, "episode_finished", _OVER)
        return [TextBlock(text=_OVER)]
    try:
        arguments = call.read()
    except ValueError as error:
        session.refuse(call.name, {}, "bad_arguments", str(error))
        return [TextBlock(text=f"Error: {error}")]
    try:
        return (await session.call_tool(call.name, arguments, said=said)).blocks
    except ToolCallFailed as error:
        return [TextBlock(text=f"Error: {error.message}")]
