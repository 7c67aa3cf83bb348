"""Reads the bodies of ORS requests. Refuses unknown keys; takes numbers that come as text."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Annotated, Any, Self, TypeAlias, TypeVar

import orjson
from pydantic import AfterValidator, Base64Bytes, BaseModel, Field, TypeAdapter, ValidationError, model_validator

from toolyard.asgi import HttpError, decode, unprocessable
from toolyard.core.messages import GroupCandidate
from toolyard.core.output import Model

B = TypeVar("B", bound=Model)

_ECHO_MOST = 10_000


class SplitName(Model):
    split: str


class TaskAt(Model):
    split: str
    index: int


class TaskRange(Model):
    split: str
    start: int | None = None
    stop: int | None = None


class Search(Model):
    question: str
    top_k: int = 5


class FilesAt(Model):
    path: str = "."


class Archive(Model):
    archive: Base64Bytes
    path: str = "."


class Fork(Model):
    count: Annotated[int, Field(ge=1, le=1024)] = 1


class Secret(BaseModel):
    """One secret. OpenReward sends more about it, such as where it may be used; we only hand over its value."""

    value: str


_SECRETS = TypeAdapter(dict[str, Secret])


class Create(Model):
    env_name: str | None = None
    task_spec: dict[str, Any] | None = None
    split: str | None = None
    index: int | None = None
    secrets: dict[str, str] | None = None
    toolset_name: str | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.split is None) != (self.index is None) and self.task_spec is not None:
            raise ValueError("split and index must both be provided together")
        if (self.task_spec is not None) == (self.split is not None and self.index is not None):
            raise ValueError("Provide either task_spec or both split and index, not both/neither")
        return self


def _plain_id(given: str) -> str:
    if len(given) > 256 or not given.isprintable() or given != given.strip():
        raise ValueError("a task_id is one line of at most 256 printable characters, with no space at its ends")
    return given


CallId: TypeAlias = Annotated[str, AfterValidator(_plain_id)]
"""The server sends it back as the data of an event, so it must not be able to end that event."""


class ToolCall(Model):
    name: str
    input: dict[str, Any]
    task_id: CallId | None = None


class ScoreGroup(Model):
    candidates: list[GroupCandidate]
    task_id: CallId | None = None


def parse(model: type[B], data: bytes) -> B:
    try:
        parsed: B = model.__pydantic_validator__.validate_json(data)
        return parsed
    except ValidationError:
        body = decode(data)  # takes JSON that pydantic refuses, and says better what is wrong with the rest
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise unprocessable(error, echo=_worth_echoing(body)) from None


def _worth_echoing(body: object) -> bool:
    """Whether an error may quote the body: not if it is long, or nested too deeply to be written."""
    try:
        return len(orjson.dumps(body)) <= _ECHO_MOST
    except orjson.JSONEncodeError:
        return False


def parse_secrets(header: str) -> Mapping[str, str]:
    """Read `X-Secrets`: base64 of `{"NAME": {"value": "…"}}`."""
    if not header:
        return {}
    try:
        given = _SECRETS.validate_json(base64.b64decode(header, validate=True))
    except (binascii.Error, ValueError):
        raise HttpError(400, 'X-Secrets must be base64 of {"NAME": {"value": "…"}}') from None
    return {name: secret.value for name, secret in given.items()}
