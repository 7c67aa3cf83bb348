"""What a tool returns: blocks for the model, reward and end of episode for the trainer."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr

from toolyard.core.encoding import encode

JsonObject: TypeAlias = Mapping[str, Any]


class Model(BaseModel):
    """Base of the models that cross a wire. It refuses unknown fields."""

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
    """What the model reads."""
    metadata: dict[str, Any] | None = None
    """For logs and analysis. By convention no model sees it."""
    reward: float | None = None
    """The reward of this step. None means that it has none, which is not 0."""
    finished: bool = False
    """Whether the episode ends here."""
    rewards: dict[str, float] | None = Field(default=None, exclude=True)
    """Rewards with names. `reward` is their weighted sum, unless you set it. They travel as `metadata["rewards"]`."""
    weights: dict[str, float] | None = Field(default=None, exclude=True, repr=False)
    """The weight of each named reward in `reward`; 1 by default. Weights do not travel."""

    def model_post_init(self, context: object, /) -> None:
        if self.rewards:
            if self.reward is None:
                self.reward = _weighted_sum(self.rewards, self.weights or {})
            self.metadata = {**(self.metadata or {}), REWARDS: self.rewards}
        elif self.metadata is not None and REWARDS in self.metadata:
            self.rewards = _named_rewards(self.metadata[REWARDS])

    @property
    def text(self) -> str:
        """The text blocks, joined: what a model that reads only text sees."""
        return "\n".join([block.text for block in self.blocks if isinstance(block, TextBlock)])


REWARDS = "rewards"
"""The key of the metadata that holds named rewards."""


def _weighted_sum(rewards: Mapping[str, float], weights: Mapping[str, float]) -> float:
    return math.fsum(weights.get(name, 1.0) * value for name, value in rewards.items())


def _named_rewards(value: object) -> dict[str, float] | None:
    """Named rewards in metadata from another server; None if the value is something else."""
    if not isinstance(value, dict) or not value:
        return None
    named = all(isinstance(name, str) for name in value)
    return value if named and all(type(reward) in (int, float) for reward in value.values()) else None


Reason: TypeAlias = Literal[
    # the agent's failures
    "no_such_tool",
    "bad_arguments",
    "tool_failed",  # the tool raised ToolError
    "episode_finished",
    # the author's failure
    "tool_raised",  # the tool broke
    # the infrastructure's failures; never a reward
    "timed_out",
    "lost",
    "overloaded",
    "cancelled",
]


CameAs: TypeAlias = Literal["json", "tuple", "bytes"]


class ValueOutput(ToolOutput):
    """The output of a tool that returned a value instead of text or blocks. Its one block is that value as text.

    Most wires send the block. A wire that carries values sends `value`.
    """

    _came_as: CameAs = PrivateAttr("json")

    @property
    def value(self) -> Any:  # any JSON value; or a tuple of them; or bytes
        text = self.text
        match self._came_as:
            case "bytes":
                return base64.b64decode(text.removeprefix(_DATA))
            case "tuple":
                return tuple(json.loads(text))
            case "json":
                return json.loads(text)

    @property
    def came_as(self) -> CameAs:
        """What kind of value the tool returned, which the block alone does not show."""
        return self._came_as

    @came_as.setter
    def came_as(self, kind: CameAs) -> None:
        self._came_as = kind

    @classmethod
    def of(cls, value: object) -> Self:
        text = _DATA + base64.b64encode(value).decode() if isinstance(value, bytes) else _as_json(value)
        output = cls(blocks=[TextBlock(text=text)])
        output.came_as = "bytes" if isinstance(value, bytes) else "tuple" if isinstance(value, tuple) else "json"
        return output


@dataclass(frozen=True, slots=True)
class ToolFailure:
    """A call without an output, and why, in words that the model may read. It has no reward, not even 0."""

    reason: Reason
    message: str
    said: str | JsonObject | None = None
    """The tool's own words or detail from its ToolError; `message` adds words around them."""
    finished: bool = False
    """It was the last call that the episode has, and the episode is over."""
    metadata: JsonObject | None = None
    """What is wrong, for programs: which arguments, or which tools exist."""

    @property
    def retryable(self) -> bool:
        """Whether the same call may succeed later, because the agent did nothing wrong."""
        return is_retryable(self.reason)


def is_retryable(reason: Reason) -> bool:
    return reason in ("timed_out", "lost", "overloaded", "cancelled")


@dataclass(frozen=True, slots=True)
class AskAgain:
    """A tool returns this when it has no result yet. It names the call that will return the result, or ask again.

    On a wire whose clients ask again, the client makes that call. On all others, the runtime makes it.
    """

    tool: str
    arguments: JsonObject = field(default_factory=dict)


CallResult: TypeAlias = ToolOutput | ToolFailure
Returned: TypeAlias = ToolOutput | ToolFailure | str
"""A result, or the bare text that most tools return: turning each text into blocks would cost too much."""
Reply: TypeAlias = Returned | AskAgain
"""What running a tool returned: its result, or which call to make for it."""


def as_result(returned: Returned) -> CallResult:
    """The same result, with bare text turned into an output."""
    return returned if isinstance(returned, ToolFailure) else as_output(returned)


def as_reply(value: object) -> ToolOutput | AskAgain:
    """As `as_output`, for a tool that may also return `AskAgain`."""
    return value if isinstance(value, AskAgain) else as_output(value)


def as_output(value: object) -> ToolOutput:
    """Make a `ToolOutput` of what a tool returned: an output, text, blocks, an image, any JSON value, or bytes."""
    match value:
        case ToolOutput():
            return value
        case str():
            return ToolOutput(blocks=[TextBlock(text=value)])
        case None:
            return ToolOutput()
        case _ if _is_shown(value) or (isinstance(value, list | tuple) and any(map(_is_shown, value))):
            return ToolOutput(blocks=list(as_blocks(value)))
        case _:
            return ValueOutput.of(value)


def _is_shown(value: object) -> bool:
    """Whether it is a block, or an image that becomes one."""
    return isinstance(value, TextBlock | ImageBlock) or (is_image(value) and _picture_type(value) != "")


def as_blocks(value: object) -> Blocks:
    """Make blocks of what an author returned, as a prompt or from a tool."""
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
            return (TextBlock(text=_as_json(value)),)


def _as_json(value: object) -> str:
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{type(value).__name__} where text, blocks, an image or another JSON value is expected: {error}"
        ) from None


_DATA = "data:application/octet-stream;base64,"
_SIGNATURES = {b"\x89PNG": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif", b"RIFF": "image/webp"}


def is_image(value: object) -> bool:
    """Encoded image bytes, or an object that can draw itself as PNG, as Pillow's images do."""
    if isinstance(value, TextBlock | ImageBlock):  # first: looking up an attribute that pydantic models lack is slow
        return False
    return isinstance(value, bytes) or hasattr(value, "_repr_png_")


def has_image(value: object) -> bool:
    """Whether it holds an image, so that making blocks of it takes time."""
    return is_image(value) or (isinstance(value, list | tuple) and any(is_image(item) for item in value))


def image_block(value: Any) -> ImageBlock:  # Any: an object of a library that we do not depend on
    data = value if isinstance(value, bytes) else value._repr_png_()
    if mime := _picture_type(data):
        return ImageBlock(data=base64.b64encode(data).decode(), mimeType=mime)
    raise TypeError(f"these {len(data)} bytes are not a PNG, JPEG, GIF or WebP image")


def _picture_type(value: object) -> str:
    """The media type of encoded bytes, or of an object that draws itself as PNG. Empty if it is no image."""
    if not isinstance(value, bytes):
        return "image/png"
    return next((mime for signature, mime in _SIGNATURES.items() if value.startswith(signature)), "")


def named_images(blocks: Blocks) -> str:
    """One line for clients that read only text, such as `[an image: image/png]`; empty if there is no image."""
    kinds = [block.mimeType for block in blocks if isinstance(block, ImageBlock)]
    if not kinds:
        return ""
    return f"[an image: {kinds[0]}]" if len(kinds) == 1 else f"[{len(kinds)} images: {', '.join(kinds)}]"


def snapshot(output: ToolOutput) -> tuple[ToolOutput, int]:
    """Copy the output as it is now, so that the author may change its objects later. Return also its size, in bytes.

    Raises if something in it cannot be written as JSON.
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
    """The same output with at most `limit` characters in its blocks. It says where and how much was cut.

    Metadata that alone is longer than `limit` is left out, and so is a block's detail that no longer fits.
    """
    size = sum(_length(block) + _detail_length(block) for block in output.blocks)
    metadata = output.metadata or {}
    if len(encode(metadata)) > limit:
        rewards = {REWARDS: metadata[REWARDS]} if REWARDS in metadata else {}
        metadata = rewards if len(encode(rewards)) <= limit else {}
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
            left -= _length(block)
        if (length := _detail_length(kept[-1])) > left:
            kept[-1] = kept[-1].model_copy(update={"detail": None})
        else:
            left -= length
    metadata = {**metadata, "cut_from": size}
    return ToolOutput(blocks=kept, metadata=metadata, reward=output.reward, finished=output.finished)


def _length(block: Block) -> int:
    return len(block.text if isinstance(block, TextBlock) else block.data)


def _detail_length(block: Block) -> int:
    return 0 if block.detail is None else len(encode(block.detail))
