"""Environments that agents play in the tests."""

from __future__ import annotations

import base64
import copy
import struct
import zlib

import anyio

from toolyard import Environment, ImageBlock, TextBlock, ToolError, ToolOutput, terminal, tool


def png() -> str:
    """A picture of one black pixel."""

    def piece(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    whole = b"\x89PNG\r\n\x1a\n" + piece(b"IHDR", head) + piece(b"IDAT", zlib.compress(b"\0\0")) + piece(b"IEND", b"")
    return base64.b64encode(whole).decode()


PNG = png()


class Guess(Environment):
    """A number to say. Half the reward is for looking first."""

    setups = 0

    @classmethod
    def list_splits(cls):
        return ["train", "test"]

    @classmethod
    def list_tasks(cls, split):
        return [{"n": n} for n in range({"train": 2, "test": 4}[split])]

    def setup(self):
        type(self).setups += 1

    def get_prompt(self):
        return f"Say {self.task_spec['n']}."

    @tool
    def look(self) -> list[TextBlock | ImageBlock]:
        """Look at a picture."""
        return [TextBlock(text="a picture"), ImageBlock(data=PNG, mimeType="image/png")]

    @tool
    def say(self, number: int) -> ToolOutput:
        """Say a number.

        Args:
            number: Which one.
        """
        right = number == self.task_spec["n"]
        return ToolOutput(blocks=[TextBlock(text="right" if right else "wrong")], reward=float(right), finished=True)

    @tool
    def hint(self) -> ToolOutput:
        """Get a hint, and something for asking."""
        return ToolOutput(blocks=[TextBlock(text="it is a number")], reward=0.25)

    @tool
    def fail(self) -> str:
        """Fail."""
        raise ToolError("this never works")


class Forked(Guess):
    """The same, and it can be forked."""

    def fork(self):
        return copy.copy(self)


class Essay(Environment):
    """Takes the agent's last message."""

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{}]

    def get_prompt(self):
        return "Write."

    @terminal
    @tool
    def hand_in(self, text: str) -> ToolOutput:
        """Hand in the essay."""
        return ToolOutput(blocks=[TextBlock(text="read")], reward=float(len(text)), finished=True)


class Broken(Guess):
    """Cannot be set up for odd numbers."""

    def setup(self):
        if self.task_spec["n"] % 2:
            raise RuntimeError("no disk")


class Slow(Guess):
    """Has a tool that takes too long."""

    @tool
    async def sleep(self) -> str:
        """Sleep."""
        await anyio.sleep(60)
        return "slept"


class Styled(Guess):
    """Rewards with names."""

    @tool
    async def say(self, number: int) -> ToolOutput:
        """Say the number.

        Args:
            number: The number.
        """
        rewards = {"correct": float(number == self.task_spec["n"]), "even": float(number % 2 == 0)}
        return ToolOutput(rewards=rewards, weights={"even": 0.5}, finished=True)
