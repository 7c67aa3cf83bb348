"""Writes prompts and results as messages of the Chat Completions API, images among them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from toolyard.core.messages import Message, MessageBlock, ToolCallBlock, ToolResultBlock
from toolyard.core.output import Block, ImageBlock, TextBlock, named_images


def messages_of(prompt: Sequence[Message]) -> list[dict[str, Any]]:
    return [written for message in prompt for written in _written(message)]


def _written(message: Message) -> Iterator[dict[str, Any]]:
    """Each tool result is a message of its own in this API."""
    for block in message.blocks:
        if isinstance(block, ToolResultBlock):
            yield from results_of([(block.tool_call_id, block.blocks)])
    shown = [block for block in message.blocks if isinstance(block, TextBlock | ImageBlock)]
    calls = [_call(block) for block in message.blocks if isinstance(block, ToolCallBlock)]
    if calls:
        yield {"role": message.role, "content": content_of(shown) or None, "tool_calls": calls}
    elif shown or _is_empty(message.blocks):
        yield {"role": message.role, "content": content_of(shown)}


def _is_empty(blocks: Sequence[MessageBlock]) -> bool:
    return not any(isinstance(block, ToolResultBlock) for block in blocks)


def _call(block: ToolCallBlock) -> dict[str, Any]:
    function = {"name": block.name, "arguments": json.dumps(dict(block.input))}
    return {"id": block.id, "type": "function", "function": function}


def content_of(blocks: Sequence[Block]) -> str | list[dict[str, Any]]:
    """Plain text, or a list of parts if there is an image."""
    if not any(isinstance(block, ImageBlock) for block in blocks):
        return "\n".join(block.text for block in blocks if isinstance(block, TextBlock))
    return [_part(block) for block in blocks]


def _part(block: Block) -> dict[str, Any]:
    if isinstance(block, TextBlock):
        return {"type": "text", "text": block.text}
    return {"type": "image_url", "image_url": {"url": f"data:{block.mimeType};base64,{block.data}"}}


def results_of(results: Sequence[tuple[str, Sequence[Block]]]) -> Iterator[dict[str, Any]]:
    """One message for each call, by its id, and one user message for all images: results can only be text."""
    images: list[dict[str, Any]] = []
    for call, blocks in results:
        text = "\n".join(block.text for block in blocks if isinstance(block, TextBlock))
        yield {"role": "tool", "tool_call_id": call, "content": "\n".join(filter(None, (text, named_images(blocks))))}
        found = [_part(block) for block in blocks if isinstance(block, ImageBlock)]
        images += [{"type": "text", "text": f"What the call {call} returned:"}, *found] if found else []
    if images:
        yield {"role": "user", "content": images}
