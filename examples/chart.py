"""A chart to read: the prompt holds a picture, and so does what a tool returns.

Shows: a prompt made of text and an image, a tool that returns an image (PNG bytes are enough; a Pillow image would do
as well), `ToolError` for a mistake of the agent that it should read, a tool that takes a model of parameters as in
ORS, and partial reward. The pictures are drawn with nothing but the standard library.

    toolyard serve examples/chart.py
"""

import base64
import random
import struct
import zlib
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, Field

from toolyard import Environment, ImageBlock, TextBlock, ToolError, ToolOutput, tool

Colour = tuple[int, int, int]
WHITE, GREY, BLACK = (255, 255, 255), (200, 200, 200), (0, 0, 0)
COLOURS: dict[str, Colour] = {
    "red": (214, 39, 40),
    "green": (44, 160, 44),
    "blue": (31, 119, 180),
    "orange": (255, 127, 14),
    "purple": (148, 103, 189),
}


class Reading(BaseModel):
    value: float = Field(description="The height of the bar.", ge=0, le=100)


class Chart(Environment):
    """Read the height of one bar off a bar chart."""

    replayable = True  # the same calls lead to the same state, so a session can be forked or made again

    @classmethod
    def list_splits(cls) -> Sequence[str]:
        return ["train", "test"]

    @classmethod
    def list_tasks(cls, split: str) -> Sequence[dict[str, Any]]:
        return [make_task(split, number) for number in range({"train": 200, "test": 40}[split])]

    def get_prompt(self) -> Sequence[TextBlock | ImageBlock]:
        question = f"How high is the {self.task_spec['ask']} bar? The grey lines are 10 apart, and the first is 0."
        return [TextBlock(text=question), image_block(draw_chart(self.task_spec["bars"]))]

    @tool
    def look_closer(self, bar: str) -> bytes:
        """Get a larger picture of one bar.

        Args:
            bar: Its colour.
        """
        colour = bar.strip().lower()
        if colour not in self.task_spec["bars"]:
            raise ToolError(f"there is no {bar} bar; there are {', '.join(self.task_spec['bars'])}")
        return draw_chart({colour: self.task_spec["bars"][colour]}, scale=6)

    @tool
    def submit(self, reading: Reading) -> ToolOutput:
        """Hand in the height you read. This ends the task."""
        height: float = self.task_spec["bars"][self.task_spec["ask"]]
        off = abs(reading.value - height)
        return ToolOutput(
            blocks=[TextBlock(text=f"The bar is {height:g} high; you were off by {off:g}.")],
            reward=max(0.0, 1 - off / 10),
            finished=True,
        )


def make_task(split: str, number: int) -> dict[str, Any]:
    dice = random.Random(f"{split}/{number}")
    colours = dice.sample(sorted(COLOURS), k=dice.randint(3, 5))
    return {"bars": {colour: dice.randint(5, 100) for colour in colours}, "ask": dice.choice(colours)}


def draw_chart(bars: dict[str, int], scale: int = 2) -> bytes:
    """One unit of height is `scale` pixels."""
    canvas = Canvas(width=scale * (30 * len(bars) + 10), height=scale * 110)
    for line in range(0, 101, 10):
        canvas.fill(0, scale * (105 - line), canvas.width, 1, BLACK if line == 0 else GREY)
    for place, (colour, height) in enumerate(bars.items()):
        canvas.fill(scale * (30 * place + 10), scale * (105 - height), scale * 20, scale * height, COLOURS[colour])
    return canvas.png()


def image_block(png: bytes) -> ImageBlock:
    return ImageBlock(data=base64.b64encode(png).decode(), mimeType="image/png")


class Canvas:
    """A picture to fill rectangles in."""

    def __init__(self, width: int, height: int) -> None:
        self.width = width
        self.rows = [bytearray(WHITE * width) for _ in range(height)]

    def fill(self, left: int, top: int, width: int, height: int, colour: Colour) -> None:
        for row in self.rows[top : top + height]:
            row[3 * left : 3 * (left + width)] = bytes(colour * width)

    def png(self) -> bytes:
        header = struct.pack(">IIBBBBB", self.width, len(self.rows), 8, 2, 0, 0, 0)  # 8 bits a colour, three colours
        pixels = zlib.compress(b"".join(b"\0" + row for row in self.rows))
        chunks = [(b"IHDR", header), (b"IDAT", pixels), (b"IEND", b"")]
        return b"\x89PNG\r\n\x1a\n" + b"".join(
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
            for kind, data in chunks
        )
