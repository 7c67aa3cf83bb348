"""Environments that are played in Studio: one with every kind of parameter, and one that means harm."""

from __future__ import annotations

import asyncio
import enum
import struct
import zlib
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, Field

from toolyard import (
    Environment,
    ImageBlock,
    ListToolsOutput,
    TextBlock,
    ToolError,
    ToolOutput,
    ToolSpec,
    terminal,
    tool,
)

HOSTILE = (
    "<script>document.title='caught'</script><img src=/caught onerror=\"document.title='caught'\">"
    "<a href=javascript:alert(1)>x</a>\x1b[31mred\x1b[0m \u202egnp.exe\u2066 \u200bzero\x00 \ud800 end"
)
LONG = "x😀y" * 1_700_000
"""Five megabytes in one line."""


def png() -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + b"\x10\x80\x70" * 8 for _ in range(8))
    head = struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


class Tasks(Sequence[dict[str, Any]]):
    """A million of them, none of which is made before it is asked for."""

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: Any) -> Any:
        return {"goal": 10, "number": index}


class Counter(Environment):
    """Count to ten.

    Whoever gets there is paid.
    """

    def __init__(self, task_spec: Any = {}, secrets: Any = {}) -> None:
        super().__init__(task_spec, secrets)
        self.count = 0

    @classmethod
    def list_splits(cls) -> list[str]:
        return ["train", "test"]

    @classmethod
    def list_tasks(cls, split: str) -> Any:
        return Tasks() if split == "train" else [{"goal": 3, "why": "<b>short</b>"}]

    def get_prompt(self) -> list[Any]:
        return [TextBlock(text=f"Count to {self.task_spec['goal']}."), png()]

    def fork(self) -> Counter:
        made = type(self)(self.task_spec, self.secrets)
        made.count = self.count
        return made

    @tool
    def add(
        self,
        n: int,
        how: Literal["up", "down"] = "up",
        loud: bool = False,
        note: str | None = None,
        extra: dict[str, list[int]] = {},
    ) -> ToolOutput:
        """Add to the count.

        Args:
            n: How much.
        """
        self.count += n if how == "up" else -n
        done = self.count >= self.task_spec["goal"]
        said = f"the count is {self.count}{'!' * loud} {note or ''}{extra or ''}".strip()
        return ToolOutput(blocks=[TextBlock(text=said)], reward=1.0 if done else 0.25, finished=done)

    @tool
    def weigh(self, n: float) -> str:
        """Weigh something.

        Args:
            n: How heavy it is.
        """
        return f"it weighs {n}"

    @tool
    def picture(self) -> bytes:
        """Show a picture."""
        return png()

    @tool
    def refuse(self, why: str) -> str:
        """Refuse."""
        raise ToolError(why)

    @tool
    def breaks(self) -> str:
        """Break."""
        raise RuntimeError("the author did not expect this")

    @tool
    async def wait(self, seconds: float) -> str:
        """Take some time."""
        await asyncio.sleep(seconds)
        return "waited"

    @tool
    @terminal
    def answer(self, text: str) -> ToolOutput:
        """Answer."""
        return ToolOutput(blocks=[TextBlock(text=f"you said {text}")], reward=0.5, finished=True)


class Stubborn(Environment):
    """It can be played, and not forked, and its setup fails for task 1."""

    @classmethod
    def list_splits(cls) -> list[str]:
        return ["test"]

    @classmethod
    def list_tasks(cls, split: str) -> list[dict[str, Any]]:
        return [{"fails": False}, {"fails": True}]

    def setup(self) -> None:
        self.lock = asyncio.Lock()
        if self.task_spec["fails"]:
            raise RuntimeError("there is no such world")

    def get_prompt(self) -> str:
        return "Try."

    @tool
    def look(self) -> str:
        """Look."""
        return "nothing"


class Hostile(Environment):
    """<script>document.title = 'caught'</script>"""

    @classmethod
    def list_splits(cls) -> list[str]:
        return ["<img src=/caught>"]

    @classmethod
    def list_tasks(cls, split: str) -> list[dict[str, Any]]:
        return [{"text": HOSTILE}]

    def get_prompt(self) -> str:
        return HOSTILE

    def list_task_tools(self) -> ListToolsOutput:
        schema = {
            "type": "object",
            "properties": {
                "<b>\u202ex</b>": {"type": "string", "description": HOSTILE},
                "__proto__": {"type": "integer"},
            },
            "$ref": "#",
        }
        return ListToolsOutput(tools=[ToolSpec(name="<i>\u202etool</i>", description=HOSTILE, input_schema=schema)])

    def call_task_tool(self, name: str, arguments: Any) -> str:
        return HOSTILE

    @tool
    def say(self) -> str:
        """Say something."""
        return HOSTILE

    @tool
    def drawing(self) -> ToolOutput:
        """Draw something with a script in it."""
        data = "PHN2ZyB4bWxucz0iaHR0cDovL3d3dy53My5vcmcvMjAwMC9zdmciPjxzY3JpcHQ+YWxlcnQoMSk8L3NjcmlwdD48L3N2Zz4="
        broken = ImageBlock(data="no base64 at all!", mimeType="image/png")
        return ToolOutput(blocks=[ImageBlock(data=data, mimeType="image/svg+xml"), broken])

    @tool
    def shout(self) -> str:
        """Say too much in one line."""
        return LONG


class Huge(Environment):
    """Whatever it says, it says too much."""

    @classmethod
    def list_splits(cls) -> list[str]:
        return ["test"]

    @classmethod
    def list_tasks(cls, split: str) -> list[dict[str, Any]]:
        return [{"text": "y" * 3_000_000}, {"tools": 3000}]

    def get_prompt(self) -> str:
        return "Look."

    def list_task_tools(self) -> ListToolsOutput:
        if many := self.task_spec.get("tools"):
            schema = {"type": "object", "properties": {"text": {"type": "string"}}}
            return ListToolsOutput(
                tools=[ToolSpec(name=f"tool_{n}", description="", input_schema=schema) for n in range(many)]
            )
        wide = {f"p{number}": {"type": "string"} for number in range(20_000)}
        choices = {"one": {"enum": [f"v{number}" for number in range(100_000)]}}
        circle = {"a": {"$ref": "#/$defs/A"}}
        words = {"a": {"type": "string", "default": "q" * 1_000_000, "description": "d" * 1_000_000}}
        schemas = {"wide": wide, "choices": choices, "circle": circle, "words": words}
        return ListToolsOutput(
            tools=[
                ToolSpec(
                    name=name,
                    description="\u202e" + "z" * 1_000_000,
                    input_schema={"type": "object", "properties": one, "$defs": {"A": {"$ref": "#/$defs/A"}}},
                )
                for name, one in schemas.items()
            ]
        )

    def call_task_tool(self, name: str, arguments: Any) -> str:
        return f"{name} {arguments}"

    @tool
    def parts(self, n: int) -> ToolOutput:
        """Say much in small parts."""
        rewards = {f"r{number}": 0.0 for number in range(n)}
        return ToolOutput(blocks=[TextBlock(text="x")] * n, reward=0.0, rewards=rewards)

    @tool
    def images(self, n: int) -> ToolOutput:
        """Draw much."""
        return ToolOutput(blocks=[ImageBlock(data="AAAA", mimeType="image/png")] * n)


class Colour(enum.Enum):
    red = "red"
    green = "green"


class Point(BaseModel):
    x: int
    label: str | None = None


class Kinds(Environment):
    """Takes what is seldom taken, and says what it got, in a docstring that
    its author broke to fit an editor.

    - one
    - two
    """

    @classmethod
    def list_splits(cls) -> list[str]:
        return ["test"]

    @classmethod
    def list_tasks(cls, split: str) -> list[dict[str, Any]]:
        return [{"text": "t" * 400}]

    def get_prompt(self) -> str:
        return "A prompt that fills the page. " * 300

    @tool
    def nulls(self, number: int | None, text: str | None, choice: Literal["a", "b"] | None, flag: bool | None) -> str:
        """Take null."""
        return repr((number, text, choice, flag))

    @tool
    def defaults(self, number: int | None = 3, flag: bool | None = True, point: Point | None = None) -> str:
        """Take null where that is not the default."""
        return repr((number, flag, point))

    @tool
    def shapes(self, point: Point, colour: Colour, sizes: list[int], few: int = Field(default=5, ge=1, le=10)) -> str:
        """Take what has a shape."""
        return repr((point, colour, sizes, few))

    @tool
    def silent(self) -> str:
        """Say nothing."""
        return ""


class Unseen(Environment):
    """Begins \u202eback\u202c and has \u200bnothing\x1b[31m."""

    @classmethod
    def list_splits(cls) -> list[str]:
        return ["te\u202est"]

    @classmethod
    def list_tasks(cls, split: str) -> list[dict[str, Any]]:
        return [{}]

    def get_prompt(self) -> str:
        return "Look."

    @tool
    def look(self) -> str:
        """Look \u2066here."""
        return "seen"
