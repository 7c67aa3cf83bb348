"""`base`: accepts any text and confirms it, to try out a trainer without any tool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from toolyard.core.environment import Environment, Toolset
from toolyard.core.output import JsonObject, TextBlock, ToolOutput
from toolyard.core.tool import Given, tool


@dataclass(frozen=True, slots=True)
class AnyText:
    """Reads every text as a call, even an empty one."""

    shown: Sequence[str] = ()

    def read(self, text: str) -> JsonObject | None:
        return {"action": text}

    def answer(self, text: str, result: str) -> str:
        return result


class Base(Toolset):
    """Counts the turns of a trajectory."""

    def __init__(self, env: Environment) -> None:
        super().__init__(env)
        self._turns = 0

    @tool(form=AnyText())
    async def base(self, action: str = "", trajectory_id: Annotated[str, Given()] = "this session") -> ToolOutput:
        """Do nothing, and say so. The episode is over with it.

        Args:
            action: Any text.
            trajectory_id: What the trainer calls the trajectory.
        """
        turn, self._turns = self._turns, self._turns + 1
        return ToolOutput(
            blocks=[TextBlock(text=f"Base observation for {trajectory_id} in turn {turn}")], finished=True
        )
