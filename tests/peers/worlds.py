"""Environments for the real clients."""

from __future__ import annotations

import base64
import os
import signal
from collections import Counter
from typing import Annotated

import anyio
import anyio.lowlevel
from pydantic import AfterValidator

from tests.peers.scripts.texts import LIMIT, text
from toolyard import Environment, TextBlock, ToolError, ToolOutput, Toolset, terminal, tool
from toolyard.types import GroupScore, Message, ReasoningBlock, ToolCallBlock, ToolResultBlock

ran: Counter[str] = Counter()
"""How often a tool really ran, by the key of the call."""


class CountEnv(Environment):
    """A running sum that starts at the task's number: mixed-up sessions would show."""

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{"start": n, "kind": "sum"} for n in range(300)]

    def setup(self):
        self.total = self.task_spec["start"]

    def get_prompt(self):
        return f"start at {self.total}"

    @tool
    async def add(self, number: int) -> ToolOutput:
        """Add a number.

        Args:
            number: what to add
        """
        self.total += number
        await anyio.lowlevel.checkpoint()
        return ToolOutput(blocks=[TextBlock(text=str(self.total))], reward=number / 10, metadata={"added": number})

    @tool
    def finish(self) -> ToolOutput:
        """End the episode."""
        return ToolOutput(blocks=[TextBlock(text=f"sum {self.total}")], reward=self.total, finished=True)


class TextEnv(Environment):
    """Any text, by its number."""

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{}]

    def get_prompt(self):
        return text(6)

    @tool
    async def text(self, number: int) -> ToolOutput:
        """The text with this number."""
        wanted = text(number)
        return ToolOutput(blocks=[TextBlock(text=wanted, detail={"again": wanted[:LIMIT]})], metadata={wanted[:9]: 1})


class ChatEnv(Environment):
    """A conversation to continue, a last message to grade, and groups of answers to compare."""

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{"answer": "four"}]

    def get_messages(self):
        return [
            Message(role="system", blocks=[TextBlock(text="be brief")]),
            Message(role="user", blocks=[TextBlock(text="2+2?")]),
            Message(
                role="assistant",
                blocks=[ReasoningBlock(text="easy"), ToolCallBlock(id="1", name="think", input={"n": 2})],
            ),
            Message(role="user", blocks=[ToolResultBlock(tool_call_id="1", blocks=[TextBlock(text="done")])]),
        ]

    @tool
    async def think(self) -> str:
        """Think."""
        return "hm"

    @terminal
    @tool
    async def answer(self, message: str) -> ToolOutput:
        """Grade the last message."""
        return ToolOutput(reward=float(message == self.task_spec["answer"]), finished=True)

    async def score_group(self, candidates):
        if not candidates:
            raise ValueError("nobody to compare")
        return [GroupScore(reward=len(c.messages), metadata=c.metadata) for c in candidates]


class codex(Toolset):  # openreward's client only asks for toolsets of a few names
    """A toolset that a client requests by name."""

    @tool
    async def shell(self) -> str:
        """Say which task this is."""
        return f"task {self.env.task_spec['q']}"


class OnceEnv(Environment):
    """Counts how often each call really ran, and answers with more than one piece holds."""

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{}]

    def get_prompt(self):
        return "once"

    @tool
    async def at_once(self, key: str) -> str:
        """Never wait: the answer is one write."""
        ran[key] += 1
        return answer_to(key)

    @tool
    async def in_a_while(self, key: str) -> str:
        """Wait a little: the answer is a stream."""
        ran[key] += 1
        await anyio.sleep(0.15)
        return answer_to(key)


PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


class GravEnv(Environment):
    """Draws, and never comes back."""

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{}]

    def get_prompt(self):
        return "draw"

    @tool
    async def draw(self, count: int) -> list:
        """Draw that many pixels."""
        return [PIXEL] * count

    @tool
    async def never(self) -> str:
        """Wait for ever."""
        await anyio.sleep_forever()


def answer_to(key: str) -> str:
    return f"{key} " * (6000 // (len(key) + 1))


def even(number: int) -> int:
    if number % 2:
        raise ValueError("the number must be even")
    return number


class DoorEnv(Environment):
    """A door with a code. The agent can read and correct its mistakes; and its process can die."""

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{"code": "1234"}]

    def get_prompt(self):
        return "Open the door."

    @tool
    def enter(self, code: str) -> ToolOutput:
        """Enter the code of the door."""
        if code != self.task_spec["code"]:
            raise ToolError(f"{code} does not open the door; the code has four digits that follow each other")
        return ToolOutput(blocks=[TextBlock(text="open")], reward=1.0, finished=True)

    @tool
    def knock(self, times: Annotated[int, AfterValidator(even)]) -> str:
        """Knock at the door."""
        return "who is there?"

    @tool
    def draw(self) -> bytes:
        """Draw the door."""
        return PIXEL

    @tool
    def burn(self) -> str:
        """Take down the process of the session."""
        os.kill(os.getpid(), signal.SIGKILL)
        return "unreachable"
