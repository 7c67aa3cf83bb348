"""`RandomAgent`: plays at random, to show what an environment pays without thought."""

from __future__ import annotations

import random

from toolyard.agents.arguments import make_arguments
from toolyard.agents.playing import AgentStopped
from toolyard.agents.seat import Seat
from toolyard.client import Task, ToolCallFailed
from toolyard.core.tool import ToolSpec


class RandomAgent:
    """Calls any tool with arguments drawn from its schema, until the episode is over. The same seed gives the same
    calls."""

    def __init__(self, seed: int = 0, max_turns: int = 20) -> None:
        self._seed = seed
        self._max_turns = max_turns

    async def __call__(self, session: Seat, task: Task) -> None:
        dice = random.Random(f"{self._seed}/{session.name}")
        await session.get_prompt()
        tools = await session.list_tools()
        terminal = await session.terminal_tool()
        if not (tools or terminal):
            raise AgentStopped("no_tool_call", "there is no tool")
        while not session.finished:
            if len(session.rollout.calls) >= self._max_turns:
                raise AgentStopped("max_turns")
            await _call_any(session, tools, dice)


async def _call_any(session: Seat, tools: list[ToolSpec], dice: random.Random) -> None:
    try:
        if not tools:
            await session.call_terminal_tool(str(dice.randint(-10, 100)))
            return
        tool = dice.choice(tools)
        await session.call_tool(tool.name, make_arguments(tool.input_schema, dice))
    except ToolCallFailed:
        return  # the seat has noted the failure
