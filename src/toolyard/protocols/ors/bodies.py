"""What ORS requests say. Unknown keys are refused, numbers may come as text."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any, Self, TypeVar

from pydantic import ValidationError, model_validator

from toolyard.asgi import HttpError
from toolyard.core.messages import GroupCandidate
from toolyard.core.output import Model

B = TypeVar("B", bound=Model)

_ECHO_MOST = 10_000


class Split(Model):
    split: str


class TaskAt(Model):
    split: str
    index: int


class TaskRange(Model):
    split: str
    start: int | None = None
    stop: int | None = None


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


class ToolCall(Model):
    name: str
    input: dict[str, Any]
    task_id: str | None = None


class ScoreGroup(Model):
    candidates: list[GroupCandidate]
    task_id: str | None = None


def parse(model: type[B], body: object) -> B:
    try:
        return model.model_validate(body)
    except ValidationError as error:
        echo = len(repr(body)) <= _ECHO_MOST
        problems = error.errors(include_url=False, include_context=False, include_input=echo)
        raise HttpError(422, [{**problem, "loc": ["body", *problem["loc"]]} for problem in problems]) from None


def parse_secrets(header: str) -> Mapping[str, str]:
    """`X-Secrets`: base64 of `{"NAME": {"value": "…"}}`."""
    if not header:
        return {}
    try:
        given = json.loads(base64.b64decode(header, validate=True))
        return {str(name): str(secret["value"]) for name, secret in given.items()}
    except (binascii.Error, ValueError, AttributeError, TypeError, KeyError):
        raise HttpError(400, 'X-Secrets must be base64 of {"NAME": {"value": "…"}}') from None
