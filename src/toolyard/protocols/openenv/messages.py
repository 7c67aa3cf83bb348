"""What OpenEnv's clients send over a WebSocket, and the frames that they get back."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, TypeAdapter, ValidationError

from toolyard.asgi import HttpError, decode
from toolyard.core.encoding import encode
from toolyard.core.output import JsonObject, Model

Code: TypeAlias = Literal[
    "EXECUTION_ERROR", "VALIDATION_ERROR", "UNKNOWN_TYPE", "INVALID_JSON", "CAPACITY_REACHED", "SESSION_ERROR"
]

_HEAVY = 2**18
"""A longer message is decoded in a thread, so that the event loop does not stand still."""
_ERRORS_MOST = 20
_SHOWN_MOST = 200


class Trouble(Exception):
    """A message gets an error. The socket goes on."""

    def __init__(self, code: Code, message: str, **more: object) -> None:
        super().__init__(message)
        self.data: JsonObject = {"message": message, "code": code, **more}

    @property
    def frame(self) -> bytes:
        return frame("error", self.data)


# Messages.


class ResetMessage(Model):
    type: Literal["reset"]
    data: dict[str, Any] = {}


class StepMessage(Model):
    type: Literal["step"]
    data: dict[str, Any]


class StateMessage(Model):
    type: Literal["state"]


class CloseMessage(Model):
    type: Literal["close"]


class McpMessage(Model):
    type: Literal["mcp"]
    data: dict[str, Any]


Said: TypeAlias = ResetMessage | StepMessage | StateMessage | CloseMessage | McpMessage

_KINDS: Mapping[str, type[Said]] = {
    "reset": ResetMessage,
    "step": StepMessage,
    "state": StateMessage,
    "close": CloseMessage,
    "mcp": McpMessage,
}

# What is in them.


class Reset(BaseModel):
    """The task to begin. Unknown keys, which environments of OpenEnv may know, are ignored."""

    model_config = ConfigDict(extra="ignore")

    split: str | None = None
    index: int | None = None
    task_spec: dict[str, Any] | None = None
    secrets: dict[str, str] | None = None
    episode_id: Annotated[str, Field(max_length=256)] | None = None
    seed: int | None = None


class Preview(Reset):
    """A reset as OpenEnv reads it over HTTP."""

    seed: Annotated[int, Field(ge=0)] | None = None


class CallToolAction(Model):
    type: Literal["call_tool"] = "call_tool"
    tool_name: str
    arguments: dict[str, Any] = {}
    metadata: dict[str, Any] = {}


class ListToolsAction(Model):
    type: Literal["list_tools"]
    metadata: dict[str, Any] = {}


def _kind(action: object) -> str:
    return "list_tools" if isinstance(action, dict) and action.get("type") == "list_tools" else "call_tool"


Action: TypeAlias = Annotated[
    Annotated[CallToolAction, Tag("call_tool")] | Annotated[ListToolsAction, Tag("list_tools")], Discriminator(_kind)
]
_ACTIONS: TypeAdapter[CallToolAction | ListToolsAction] = TypeAdapter(Action)


async def decoded(text: str) -> Any:  # any JSON value
    """Raises `Trouble` for what is not JSON."""
    try:
        return decode(text.encode()) if len(text) <= _HEAVY else await asyncio.to_thread(decode, text.encode())
    except (HttpError, UnicodeEncodeError):
        raise Trouble("INVALID_JSON", "Invalid JSON: the message cannot be read") from None


def said(value: object) -> Said:
    """Raises `Trouble` for what is no message."""
    if not isinstance(value, dict):
        raise Trouble("VALIDATION_ERROR", f"Invalid message: it is one object, not a {type(value).__name__}", errors=[])
    kind = value.get("type")
    if not isinstance(kind, str) or (model := _KINDS.get(kind)) is None:
        raise Trouble("UNKNOWN_TYPE", f"Unknown message type: {str(kind)[:_SHOWN_MOST]}")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise invalid(error) from None


def action(data: JsonObject) -> CallToolAction | ListToolsAction:
    try:
        return _ACTIONS.validate_python(data)
    except ValidationError as error:
        raise invalid(error) from None


def reset(data: JsonObject) -> Reset:
    try:
        return Reset.model_validate(data)
    except ValidationError as error:
        raise invalid(error) from None


def invalid(error: ValidationError) -> Trouble:
    """An error whose message names the first problem, because OpenEnv's client shows nothing else."""
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    first = ".".join(map(str, problems[0]["loc"]))[:_SHOWN_MOST]
    message = f"Invalid message: {first}: {problems[0]['msg'][:_SHOWN_MOST]}"
    return Trouble("VALIDATION_ERROR", message, errors=problems[:_ERRORS_MOST])


def frame(kind: str, data: object) -> bytes:
    return encode({"type": kind, "data": data})
