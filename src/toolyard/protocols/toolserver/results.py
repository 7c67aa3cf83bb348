"""Writes results for this wire: values as they are, or wrapped so that the client can take them apart."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterator

from toolyard.core.output import Block, ImageBlock, TextBlock, ToolOutput, ValueOutput

_KINDS = ("simple", "composite", "binary")


def as_json(output: ToolOutput) -> object:
    """The result as JSON. Rewards, or the end of the episode, are one more part of it."""
    whole = _wrapped(output.value) if isinstance(output, ValueOutput) else _blocks(output.blocks)
    if output.reward is None and not output.finished and not output.rewards:
        return whole
    named = {"rewards": output.rewards} if output.rewards else {}
    return _composite([whole, _simple({"reward": output.reward, "finished": output.finished, **named})])


def _wrapped(value: object) -> object:
    match value:
        case dict() if "data" in value and value.get("type") in _KINDS:
            return _nameless(value)
        case dict():
            return _simple(value)
        case tuple() if len(value) > 1:
            return _composite([_wrapped(item) for item in value])
        case tuple():
            return _simple(value[0] if value else None)
        case bytes():
            # Without a name: the client then makes one up. It would crash on a name that is null.
            return {"type": "binary", "media_type": "bytes", "data": base64.b64encode(value).decode()}
        case _:
            return value


def _nameless(wrapped: object) -> object:
    """Drop null names from a value that the tool wrapped itself, as XAgent's tools do: the client crashes on them."""
    match wrapped:
        case {"type": "composite", "data": list(parts), **more}:
            return {"type": "composite", "data": [_nameless(part) for part in parts], **more}
        case {"type": "binary", "name": None, **more}:
            return {"type": "binary", **more}
        case _:
            return wrapped


def _blocks(blocks: list[TextBlock | ImageBlock]) -> object:
    if len(blocks) == 1:
        return _block(blocks[0])
    parts = list(_parts(blocks))
    return None if not parts else parts[0] if len(parts) == 1 else _composite(parts)


def _parts(blocks: list[TextBlock | ImageBlock]) -> Iterator[object]:
    """One part for each block. Blocks whose details name the same group are one part."""
    for (_, group), members in itertools.groupby(enumerate(blocks), lambda at: _group(*at)):
        some = [_block(block) for _, block in members]
        yield some[0] if group is None or len(some) == 1 else _composite(some)


def _group(place: int, block: Block) -> tuple[int, object]:
    group = (block.detail or {}).get("group")
    return (place, None) if group is None else (-1, group)


def _block(block: Block) -> object:
    if isinstance(block, TextBlock):
        return block.text
    return {"type": "binary", "media_type": block.mimeType, "data": block.data}


def _simple(value: object) -> object:
    return {"type": "simple", "data": value}


def _composite(parts: list[object]) -> object:
    return {"type": "composite", "data": parts}
