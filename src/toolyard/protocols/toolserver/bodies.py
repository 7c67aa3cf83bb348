"""Reads the bodies of this wire's requests, in the spelling of its documents and in that of its code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, TypeVar

from pydantic import AliasChoices, BaseModel, Field, ValidationError, model_validator

from toolyard.asgi import HttpError, decode, unprocessable

B = TypeVar("B", bound=BaseModel)

NAMES_MOST = 50_000
"""Names in one request: a request with a million would hold up all others."""


class Execution(BaseModel):
    """A tool call."""

    tool_name: str = Field(validation_alias=AliasChoices("tool_name", "tool"))
    arguments: dict[str, Any] = Field(validation_alias=AliasChoices("arguments", "parameters"))
    env_name: str | None = None


class Question(BaseModel):
    question: str
    top_k: int = 5


class NewTool(BaseModel):
    tool_name: str
    code: str


class Binding(BaseModel):
    """The environment and task of a new node, if it has one."""

    environment: str | None = None
    task_spec: dict[str, Any] | None = None
    split: str | None = None
    index: int | None = None
    secrets: dict[str, str] = {}

    @model_validator(mode="before")
    @classmethod
    def _of_ors(cls, body: object) -> object:
        if isinstance(body, dict) and "env_name" in body:
            return {"environment": body["env_name"], **body}
        return body

    @model_validator(mode="after")
    def _one_task(self) -> Self:
        by_place = self.split is not None or self.index is not None
        if by_place and (self.split is None or self.index is None or self.task_spec is not None):
            raise ValueError("give either task_spec, or split and index")
        if self.environment is None and (by_place or self.task_spec is not None or self.secrets):
            raise ValueError("name the environment that the task is of")
        return self


def parse(model: type[B], data: bytes) -> B:
    body = decode(data)
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise unprocessable(error) from None


def parse_binding(data: bytes) -> Binding:
    """Read the body of a new node. Clients of this wire send none, or `null`, as their libraries do for no body."""
    return parse(Binding, data) if data.strip() not in (b"", b"null") else Binding()


def parse_names(data: bytes, *keys: str) -> Sequence[str]:
    """Read a bare list of names, or an object with the list under one of these keys."""
    body = decode(data)
    names = next((body[key] for key in keys if key in body), None) if isinstance(body, dict) else body
    if not isinstance(names, list) or len(names) > NAMES_MOST or not all(isinstance(name, str) for name in names):
        wanted = f"a list of at most {NAMES_MOST} names is wanted, bare or as {keys[0]!r}"
        raise HttpError(422, [{"type": "list_type", "loc": ["body"], "msg": wanted}])
    found: Sequence[str] = names
    return found
