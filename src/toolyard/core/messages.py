"""Messages of a conversation, and candidates to compare: types that only the OpenReward dialect has."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal, Self, TypeAlias

from pydantic import model_validator

from toolyard.core.output import Block, Blocks, ImageBlock, JsonObject, Model, TextBlock


class ReasoningBlock(Model):
    text: str
    signature: str | None = None
    detail: JsonObject | None = None
    type: Literal["reasoning"] = "reasoning"


class ToolCallBlock(Model):
    id: str
    name: str
    input: JsonObject
    detail: JsonObject | None = None
    type: Literal["tool_call"] = "tool_call"


class ToolResultBlock(Model):
    tool_call_id: str
    blocks: Blocks
    is_error: bool = False
    detail: JsonObject | None = None
    type: Literal["tool_result"] = "tool_result"


MessageBlock: TypeAlias = TextBlock | ImageBlock | ReasoningBlock | ToolCallBlock | ToolResultBlock

BLOCKS_OF_ROLE = {
    "system": {"text", "image"},
    "user": {"text", "image", "tool_result"},
    "assistant": {"text", "image", "reasoning", "tool_call"},
}
BLOCK_TYPES = ("text", "image", "reasoning", "tool_call", "tool_result")


class Message(Model):
    role: Literal["system", "user", "assistant"]
    blocks: Sequence[MessageBlock]
    detail: JsonObject | None = None

    @model_validator(mode="after")
    def _each_block_in_its_role(self) -> Self:
        for block in self.blocks:
            if block.type not in BLOCKS_OF_ROLE[self.role]:
                raise ValueError(f"a {block.type!r} block does not belong in a {self.role!r} message")
        return self


class GroupCandidate(Model):
    messages: list[Message]
    metadata: JsonObject | None = None


class GroupScore(Model):
    reward: float
    metadata: JsonObject | None = None


def flatten(messages: Sequence[Message]) -> list[Block]:
    """Write the conversation as plain blocks, for clients that only read a prompt."""
    if len(messages) == 1 and messages[0].role == "user":
        plain = [block for block in messages[0].blocks if isinstance(block, TextBlock | ImageBlock)]
        if len(plain) == len(messages[0].blocks):
            return plain
    blocks: list[Block] = []
    for message in messages:
        blocks.append(TextBlock(text=f"[{message.role}]", detail={"role": message.role}))
        for block in message.blocks:
            blocks.extend(_flatten_block(block))
    return blocks


def _flatten_block(block: MessageBlock) -> Sequence[Block]:
    match block:
        case ReasoningBlock():
            return [TextBlock(text=f"<think>{block.text}</think>", detail={"type": "reasoning"})]
        case ToolCallBlock():
            text = f"[tool_call {block.name}] {json.dumps(dict(block.input))}"
            return [TextBlock(text=text, detail={"type": "tool_call", "id": block.id})]
        case ToolResultBlock():
            head = "[tool_result (error)]" if block.is_error else "[tool_result]"
            detail = {"type": "tool_result", "tool_call_id": block.tool_call_id}
            return [TextBlock(text=head, detail=detail), *block.blocks]
        case _:
            return [block]
