"""Translates answers of `ors` and `openreward` to Toolyard's types, and candidates to theirs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from toolyard.core.environment import Split
from toolyard.core.messages import GroupCandidate, GroupScore, Message
from toolyard.core.output import Block, ImageBlock, TextBlock, ToolOutput
from toolyard.core.tool import ListToolsOutput, ToolSpec

Foreign: TypeAlias = Any
"""A class or object of a package that need not be installed."""


def same(answer: Any) -> Any:
    return answer


def splits(answer: Foreign) -> Any:
    if isinstance(answer, str) or not isinstance(answer, Iterable):
        return answer  # the runtime says what is wrong with it
    return [split if isinstance(split, str) else Split(name=split.name, type=split.type) for split in answer]


def blocks(answer: Foreign) -> list[Block]:
    return [block(each) for each in answer]


def block(theirs: Foreign) -> Block:
    detail = None if theirs.detail is None else dict(theirs.detail)
    if theirs.type == "text":
        return TextBlock(text=theirs.text, detail=detail)
    return ImageBlock(data=theirs.data, mimeType=theirs.mimeType, detail=detail)


def output(types: Foreign, tool: str, answer: Foreign) -> ToolOutput:
    if not isinstance(answer, types.ToolOutput):
        raise TypeError(f"{tool!r} returned {type(answer).__name__}; expected ToolOutput")
    metadata = None if answer.metadata is None else dict(answer.metadata)
    return ToolOutput(blocks=blocks(answer.blocks), metadata=metadata, reward=answer.reward, finished=answer.finished)


def messages(answer: Foreign) -> list[Message]:
    return [Message.model_validate(message.model_dump()) for message in answer]


def specs(answer: Foreign) -> ListToolsOutput:
    tools = [ToolSpec(name=s.name, description=s.description, input_schema=s.input_schema) for s in answer.tools]
    return ListToolsOutput(tools=tools)


def scores(answer: Foreign) -> list[GroupScore | float]:
    return [s if isinstance(s, int | float) else GroupScore(reward=s.reward, metadata=s.metadata) for s in answer]


def candidates(types: Foreign, ours: Sequence[GroupCandidate]) -> list[Foreign]:
    return [types.GroupCandidate.model_validate(candidate.model_dump()) for candidate in ours]


ABOUT_CLASS: Mapping[str, Callable[[Foreign], Any]] = {
    "list_splits": splits,
    "list_tasks": same,
    "num_tasks": same,
    "get_task": same,
}
ABOUT_INSTANCE: Mapping[str, Callable[[Foreign], Any]] = {
    "setup": same,
    "teardown": same,
    "get_prompt": blocks,
    "get_messages": messages,
    "list_task_tools": specs,
    "score_group": scores,
}
"""The foreign hooks to call, with the translation of each answer."""


def translated(answer: Any, ours: Callable[[Any], Any]) -> Any:
    """The translated answer, or an awaitable of it."""

    async def later() -> Any:
        return ours(await answer)

    return later() if inspect.isawaitable(answer) else ours(answer)


def through(function: Callable[..., Any], ours: Callable[[Any], Any]) -> Callable[..., Any]:
    """The function with a translated answer; a coroutine if it is one, so that it stays on the loop."""

    def called(*args: Any) -> Any:
        return translated(function(*args), ours)

    async def awaited(*args: Any) -> Any:
        return ours(await function(*args))

    return awaited if inspect.iscoroutinefunction(function) else called
