"""A coin lies under one of four cups. Peeking costs a little, guessing wrong costs all.

    toolyard serve examples/training/cups.py

`train.py` beside this file learns it. An agent that guesses earns 0.25 on average; one that peeks first and believes
what it sees earns 0.9.
"""

import random
from collections.abc import Sequence
from typing import Any, Literal

from toolyard import Environment, TextBlock, ToolOutput, tool

CUPS = 4
TASKS = 1000
PEEKING_COSTS = 0.1


class Cups(Environment):
    """Find the coin."""

    peeked = False

    @classmethod
    def list_splits(cls) -> Sequence[str]:
        return ["train"]

    @classmethod
    def list_tasks(cls, split: str) -> Sequence[dict[str, Any]]:
        return [{"coin": random.Random(number).randint(1, CUPS)} for number in range(TASKS)]

    def get_prompt(self) -> str:
        return f"A coin is under one of {CUPS} cups. Peek, or lift a cup."

    @tool
    async def peek(self) -> ToolOutput:
        """Look under all cups. That costs 0.1, once."""
        cost = 0.0 if self.peeked else -PEEKING_COSTS
        self.peeked = True
        return ToolOutput(blocks=[TextBlock(text=f"The coin is under cup {self.task_spec['coin']}.")], reward=cost)

    @tool
    async def lift(self, cup: Literal[1, 2, 3, 4]) -> ToolOutput:
        """Lift one cup. That ends the game: 1 for the coin, 0 for nothing.

        Args:
            cup: Which one.
        """
        found = cup == self.task_spec["coin"]
        text = "There it is." if found else "There is nothing."
        return ToolOutput(blocks=[TextBlock(text=text)], reward=float(found), finished=True)
