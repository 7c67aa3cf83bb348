"""A question about numbers that only a program can read, and `python_code`, the sandboxed tool that runs programs.

    toolyard serve examples/training/remainder.py

The prompt says `a plus b times c`. The numbers themselves come to a program on its standard input, so an agent has to
write one, read what it prints, and answer with the remainder by 5. Half of the reward is for the first program, if it
prints that, and half for the answer. An agent that guesses earns 0.1 to 0.15. `python_grpo.py` beside this file learns
it.
"""

import random
from collections.abc import Sequence
from typing import Annotated, Any

from toolyard import Environment, Given, TextBlock, ToolOutput, tool
from toolyard.tools.python_code import CodeForm, PythonCode

LETTERS = ["a", "b", "c", "d"]
SIGNS = {"plus": "+", "minus": "-", "times": "*"}
OPERATIONS = {"short": 1, "long": 2}
"""The split, and how many operations its longest questions have."""
TASKS = 4096
DIVISOR = 5


class Programs(PythonCode):
    """The built-in tool, and a reward for what the first program prints."""

    @tool(form=CodeForm())
    async def python_code(self, code: str, stdin: Annotated[str, Given()] = "") -> ToolOutput:
        """Run a Python program and return what it prints. Nothing is kept from one call to the next.

        Args:
            code: The whole program. It reads the numbers from standard input, in one line.
        """
        output = await super().python_code(code, stdin)
        reward = self.env.worth(output) if self.env.programs == 0 else 0.0
        self.env.programs += 1
        return ToolOutput(blocks=output.blocks, metadata=output.metadata, reward=reward)


class Remainder(Environment):
    """Find the remainder of an expression."""

    toolsets = [Programs]
    programs = 0
    """That the agent has run."""

    @classmethod
    def list_splits(cls) -> Sequence[str]:
        return list(OPERATIONS)

    @classmethod
    def list_tasks(cls, split: str) -> Sequence[dict[str, Any]]:
        return [make_task(split, number) for number in range(TASKS)]

    def get_prompt(self) -> str:
        return question(self.task_spec["words"])

    @tool
    def answer(self, remainder: int) -> ToolOutput:
        """Answer with the remainder by 5. This ends the task.

        Args:
            remainder: From 0 to 4.
        """
        right = remainder == self.right_answer()
        return ToolOutput(blocks=[TextBlock(text="Right." if right else "Wrong.")], reward=right / 2, finished=True)

    def right_answer(self) -> int:
        return solve(self.task_spec["words"], self.task_spec["stdin"])

    def worth(self, output: ToolOutput) -> float:
        """Of a program's output."""
        printed = "".join(block.text for block in output.blocks if isinstance(block, TextBlock))
        return (printed == str(self.right_answer())) / 2


def make_task(split: str, number: int) -> dict[str, Any]:
    """The same task for the same split and number. `stdin` is what every program of the session reads."""
    dice = random.Random(f"{split}/{number}")
    words = LETTERS[:1]
    for letter in LETTERS[1 : dice.randint(1, OPERATIONS[split]) + 1]:
        words += [dice.choice(list(SIGNS)), letter]
    return {"words": words, "stdin": " ".join(str(dice.randint(10, 99_999)) for _ in LETTERS)}


def question(words: Sequence[str]) -> str:
    return " ".join(words)


def solve(words: Sequence[str], stdin: str) -> int:
    """Products first, then sums, as Python has it."""
    values = dict(zip(LETTERS, map(int, stdin.split()), strict=True))
    total, term, sign = 0, values[words[0]], 1
    for word, letter in zip(words[1::2], words[2::2], strict=True):
        if word == "times":
            term *= values[letter]
        else:
            total, term, sign = total + sign * term, values[letter], 1 if word == "plus" else -1
    return (total + sign * term) % DIVISOR
