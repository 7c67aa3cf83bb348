"""An endpoint's answer: the model's message, the calls in it, and its tokens."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from toolyard.agents.rollout import Tokens
from toolyard.core.output import JsonObject

_KEPT = ("content", "refusal", "reasoning_content", "reasoning", "reasoning_details")
"""Fields of a message that the next request repeats. Some models need their own reasoning."""


@dataclass(frozen=True, slots=True)
class WrittenCall:
    """A call as the model wrote it; its arguments may be no JSON."""

    id: str
    name: str
    arguments: str

    def read(self) -> JsonObject:
        """The arguments. Raises `ValueError`, worded for the model, unless they are a JSON object."""
        try:
            found = json.loads(self.arguments or "{}")
        except (ValueError, RecursionError) as error:
            raise ValueError(f"the arguments are not JSON ({error}); write one JSON object") from None
        if not isinstance(found, dict):
            raise ValueError(f"the arguments must be a JSON object, not {self.arguments[:100]}")
        return found


@dataclass(frozen=True, slots=True)
class Reply:
    message: dict[str, Any]
    """The message as the conversation keeps it."""
    calls: Sequence[WrittenCall]
    finish_reason: str
    tokens: Tokens

    @property
    def text(self) -> str:
        return self.message["content"] or ""

    @property
    def said(self) -> str:
        """What the model wrote beside its calls, its reasoning first."""
        thought = self.message.get("reasoning_content") or self.message.get("reasoning")
        return "\n".join(filter(None, (f"<think>{thought}</think>" if thought else "", self.text)))


def reply_of(said: JsonObject) -> Reply:
    """Read an answer. Raises any exception if it is malformed."""
    choice = said["choices"][0]
    message = choice["message"]
    calls = [_call(call) for call in message.get("tool_calls") or ()]
    kept = {name: message[name] for name in _KEPT if message.get(name)}
    content = kept.pop("content", None)
    if content is not None and not isinstance(content, str):
        content = "".join(part.get("text") or "" for part in content)
    written = {"tool_calls": [_written(call) for call in calls]} if calls else {}
    whole = {"role": "assistant", "content": content, **kept, **written}
    return Reply(whole, calls, str(choice.get("finish_reason") or ""), tokens_of(said.get("usage") or {}))


def _call(said: JsonObject) -> WrittenCall:
    function = said.get("function") or {}
    arguments = function.get("arguments") or ""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return WrittenCall(str(said.get("id") or f"call_{uuid.uuid4().hex[:12]}"), str(function.get("name") or ""), text)


def _written(call: WrittenCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def sendable(message: JsonObject) -> JsonObject:
    """The message without arguments that are no JSON: some endpoints break on their own model's mistakes."""
    if not message.get("tool_calls"):
        return message
    return {**message, "tool_calls": [_sendable_call(call) for call in message["tool_calls"]]}


def _sendable_call(call: JsonObject) -> JsonObject:
    function = call["function"]
    try:
        WrittenCall("", "", function["arguments"]).read()
    except ValueError:
        return {**call, "function": {**function, "arguments": "{}"}}
    return call


def tokens_of(usage: JsonObject) -> Tokens:
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    reasoning = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens")
    told = {"prompt": usage.get("prompt_tokens"), "completion": usage.get("completion_tokens")}
    return Tokens.of({**told, "cached": cached, "reasoning": reasoning})


def joined(chunks: Sequence[JsonObject]) -> JsonObject:
    """Join the pieces of a streamed answer. Raises `ValueError` if the stream broke off."""
    message: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    finish, usage = "", None
    for chunk in chunks:
        usage = chunk.get("usage") or usage
        for choice in (chunk.get("choices") or ())[:1]:
            finish = choice.get("finish_reason") or finish
            _add(message, calls, choice.get("delta") or {})
    if not finish:
        raise ValueError("the stream ended before the answer did")
    message["tool_calls"] = [calls[index] for index in sorted(calls)]
    return {"choices": [{"message": message, "finish_reason": finish}], "usage": usage}


def _add(message: dict[str, Any], calls: dict[int, dict[str, Any]], delta: JsonObject) -> None:
    for name in _KEPT:
        if piece := delta.get(name):
            message[name] = message.get(name, type(piece)()) + piece
    for piece in delta.get("tool_calls") or ():
        call = calls.setdefault(piece.get("index") or 0, {"function": {"name": "", "arguments": ""}})
        call["id"] = call.get("id") or piece.get("id")
        function = piece.get("function") or {}
        call["function"]["name"] += function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""
