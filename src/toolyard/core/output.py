"""What a tool gives back: blocks for the model, reward and end of episode for the trainer."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict

from toolyard.core.encoding import encode

JsonObject: TypeAlias = Mapping[str, Any]


class Model(BaseModel):
    """Base of what crosses a wire: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


class TextBlock(Model):
    text: str
    detail: dict[str, Any] | None = None
    type: Literal["text"] = "text"


class ImageBlock(Model):
    data: str
    """Base64, without a `data:` prefix."""
    mimeType: str
    detail: dict[str, Any] | None = None
    type: Literal["image"] = "image"


Block: TypeAlias = TextBlock | ImageBlock
Blocks: TypeAlias = Sequence[TextBlock | ImageBlock]


class ToolOutput(Model):
    blocks: list[TextBlock | ImageBlock] = []
    metadata: dict[str, Any] | None = None
    reward: float | None = None
    finished: bool = False

    @property
    def text(self) -> str:
        """The text blocks, joined; what a model that reads only text would see."""
        return "\n".join(block.text for block in self.blocks if isinstance(block, TextBlock))


Reason: TypeAlias = Literal[
    # what the agent did
    "no_such_tool",
    "bad_arguments",
    "tool_failed",  # the tool said so, with ToolError
    "tool_raised",  # the tool broke
    "episode_finished",
    # what the infrastructure did; never a reward
    "timed_out",
    "lost",
    "overloaded",
    "cancelled",
]


@dataclass(frozen=True, slots=True)
class ToolFailure:
    """A call that produced no output, and why, in words the model may read. It has no reward, not even 0."""

    reason: Reason
    message: str

    @property
    def retryable(self) -> bool:
        """Whether the same call may well succeed later, the fault not being the agent's."""
        return self.reason in ("timed_out", "lost", "overloaded", "cancelled")


CallResult: TypeAlias = ToolOutput | ToolFailure
Returned: TypeAlias = ToolOutput | ToolFailure | str
"""A result that may still be the bare text that most tools return, where making blocks of it would cost too much."""


def as_output(value: object) -> ToolOutput:
    """Make a `ToolOutput` of whatever a tool returned: one itself, text, blocks, an image, or any JSON value."""
    match value:
        case ToolOutput():
            return value
        case str():
            return ToolOutput(blocks=[TextBlock(text=value)])
        case None:
            return ToolOutput()
        case list() | tuple() if not value:  # a list of nothing is an answer, and a model should read it
            return ToolOutput(blocks=[TextBlock(text="[]")])
        case _:
            return ToolOutput(blocks=list(as_blocks(value)))


def as_blocks(value: object) -> Blocks:
    """Blocks from what authors find natural to return, as a prompt or from a tool."""
    match value:
        case None:
            raise TypeError("None where text, blocks, an image or another JSON value is expected: is a return missing?")
        case str():
            return (TextBlock(text=value),)
        case TextBlock() | ImageBlock():
            return (value,)
        case list() | tuple() if all(isinstance(item, TextBlock | ImageBlock) for item in value):
            return value
        case list() | tuple() if any(isinstance(item, TextBlock | ImageBlock) or is_image(item) for item in value):
            return tuple(block for item in value for block in as_blocks(item))
        case _ if is_image(value):
            return (image_block(value),)
        case _:
            return (TextBlock(text=json.dumps(value, ensure_ascii=False)),)


_SIGNATURES = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif", b"RIFF": "image/webp"}


def is_image(value: object) -> bool:
    """Encoded image bytes, or an object that can draw itself as PNG, as Pillow's images do."""
    return isinstance(value, bytes) or hasattr(value, "_repr_png_")


def has_image(value: object) -> bool:
    """Whether blocks made of it hold a picture that is still to be encoded."""
    return is_image(value) or (isinstance(value, list | tuple) and any(is_image(item) for item in value))


def image_block(value: Any) -> ImageBlock:  # Any: an object of a library that we do not depend on
    data = value if isinstance(value, bytes) else value._repr_png_()
    for signature, mime in _SIGNATURES.items():
        if data.startswith(signature):
            return ImageBlock(data=base64.b64encode(data).decode(), mimeType=mime)
    raise TypeError(f"these {len(data)} bytes are not a PNG, JPEG, GIF or WebP image")


def snapshot(output: ToolOutput) -> tuple[ToolOutput, int]:
    """The output as it is now, whatever its author does to the objects in it later; and about how many bytes it takes.

    Raises when something in it cannot be written as JSON.
    """
    size = 0
    plain = output.metadata is None
    for block in output.blocks:  # not a generator: this runs for every call
        size += len(block.text if isinstance(block, TextBlock) else block.data)
        plain = plain and block.detail is None
    if plain:
        return output, size
    text = encode([output.metadata, *(block.detail for block in output.blocks)])
    metadata, *details = json.loads(text)
    blocks = [block.model_copy(update={"detail": detail}) for block, detail in zip(output.blocks, details, strict=True)]
    return output.model_copy(update={"blocks": blocks, "metadata": metadata}), size + len(text)


def cut_text(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n[cut here: {len(text):,} characters, only the first {limit:,} are shown]"


def cut(output: ToolOutput, limit: int) -> ToolOutput:
    """The same output with at most `limit` characters in its blocks, saying where and how much was cut.

    Metadata that alone is longer than that is left out.
    """
    size = sum(len(block.text if isinstance(block, TextBlock) else block.data) for block in output.blocks)
    metadata = output.metadata or {}
    if len(encode(metadata)) > limit:
        metadata = {}
    elif size <= limit:
        return output
    kept: list[Block] = []
    left = limit
    for block in output.blocks:
        if isinstance(block, TextBlock) and len(block.text) > left:
            kept.append(block.model_copy(update={"text": cut_text(block.text, left)}))
            left = 0
        elif isinstance(block, ImageBlock) and len(block.data) > left:
            kept.append(TextBlock(text=f"[an image of {len(block.data):,} base64 characters is left out: too large]"))
        else:
            kept.append(block)
            left -= len(block.text if isinstance(block, TextBlock) else block.data)
    return output.model_copy(update={"blocks": kept, "metadata": {**metadata, "cut_from": size}})
