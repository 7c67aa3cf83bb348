"""An environment with secrets in its tasks, rewards and exceptions, and the words that its agent may say.

`toolyard serve` loads this file too, so it uses nothing of the tests.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated

import anyio

from toolyard import Environment, ImageBlock, ServiceUnavailable, Split, TextBlock, ToolError, ToolOutput, tool
from toolyard.core.tool import Given

ANSWER = "xyzzy-the-answer"
"""In the task, and wherever an author might carelessly put it."""
REWARD = 0.640625
"""The reward of a right answer; no other number is written like that."""
SECRETS = [
    ANSWER.encode(),
    str(REWARD).encode(),
    b'"reward"',
    b'"finished"',
    b'"metadata"',
    b'"detail":{',
    b"task_spec",
]
"""What no agent may ever receive."""


Hidden = Annotated[str, Given()]
Whole = Annotated[dict, Given(everything=True)]


class Vault(Environment):
    """Has an answer that an agent must find out by itself."""

    def __init__(self, task_spec={}, secrets={}):
        super().__init__(task_spec, secrets)
        self.notes = []

    @classmethod
    def list_splits(cls):
        return [Split(name="train", type="train")]

    @classmethod
    def list_tasks(cls, split):
        return [{"number": number, "answer": ANSWER} for number in range(4)]

    async def setup(self):
        if self.task_spec.get("setup_boom"):
            raise ValueError(f"setup knows {self.task_spec['answer']}")
        if folder := self.task_spec.get("setup_waits"):
            await passed(folder, "setup")

    def get_prompt(self):
        if self.task_spec.get("prompt_boom"):
            raise ValueError(f"the prompt knows {self.task_spec['answer']}")
        return [TextBlock(text=f"Open vault {self.task_spec['number']}.", detail={"answer": ANSWER})]

    @tool
    async def note(self, text: str) -> str:
        """Write something down; all of it so far.

        Args:
            text: What to write down.
        """
        self.notes.append(text)
        await anyio.lowlevel.checkpoint()
        return " ".join(self.notes)

    @tool
    async def guess(self, answer: str, last: bool = True) -> ToolOutput:
        """Say what opens it.

        Args:
            answer: The word.
            last: Whether that is the end.
        """
        right = answer == "sesame"
        block = TextBlock(text="click", detail={"answer": self.task_spec["answer"]})
        metadata = {"answer": self.task_spec["answer"], "right": right}
        return ToolOutput(blocks=[block], metadata=metadata, reward=REWARD if right else 0.0, finished=last)

    @tool
    async def judge(self, code: str, answer: Hidden = "", task: Whole = {}) -> str:
        """Say whether a program is right.

        Args:
            code: The program.
        """
        return str(answer in code or answer in str(task.get("code")))

    @tool
    async def look(self) -> list:
        """What it looks like."""
        return [TextBlock(text="a door"), ImageBlock(data="aGVsbG8=", mimeType="image/png"), TextBlock(text="é 🙂")]

    @tool
    async def refuse(self) -> str:
        """Say no."""
        raise ToolError("not today", detail={"answer": ANSWER})

    @tool
    async def boom(self) -> str:
        """Break."""
        raise ValueError(f"expected {self.task_spec['answer']}")

    @tool
    async def lose(self) -> str:
        """Lose the service behind it."""
        raise ServiceUnavailable(f"no answer from http://{self.task_spec['answer']}.internal")

    @tool(concurrent=True)
    async def wait(self, folder: str, key: str) -> str:
        """Until somebody lets it go on; how many came.

        Args:
            folder: Where that is to be seen.
            key: Its name.
        """
        number = arrived(Path(folder), key)
        await passed(folder, key)
        return f"{key} came {number} times"


class Other(Vault):
    """A second environment."""


def arrived(folder: Path, key: str) -> int:
    """How many have come by now."""
    number = len(list(folder.glob(f"{key}-came-*"))) + 1
    (folder / f"{key}-came-{number}-{os.getpid()}-{time.monotonic_ns()}").touch()
    return number


async def passed(folder: str, key: str) -> None:
    with anyio.fail_after(60):
        while not (Path(folder) / f"{key}-go").exists():
            await anyio.sleep(0.01)
