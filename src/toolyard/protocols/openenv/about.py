"""Describes an environment to OpenEnv's tools: schemas, metadata, and the document of its routes."""

from __future__ import annotations

import inspect
from typing import Any

from pydantic import BaseModel, ConfigDict

from toolyard.core.environment import Environment
from toolyard.core.output import JsonObject
from toolyard.protocols.openenv.messages import CallToolAction
from toolyard.version import __version__


class ToolTrouble(BaseModel):
    error_type: str
    message: str


class CallToolObservation(BaseModel):
    """What the model may see of a call."""

    metadata: dict[str, Any] = {}
    tool_name: str
    result: dict[str, Any] | None = None
    error: ToolTrouble | None = None


class ResetObservation(BaseModel):
    """What the model may see of a task."""

    metadata: dict[str, Any] = {}
    prompt: str


class State(BaseModel):
    model_config = ConfigDict(extra="allow")

    episode_id: str | None = None
    step_count: int = 0


def schema() -> JsonObject:
    """The schemas. Harnesses recognise by the title of the action's schema that they can ask for tools."""
    return {
        "action": CallToolAction.model_json_schema(),
        "observation": CallToolObservation.model_json_schema(),
        "state": State.model_json_schema(),
        "reset_observation": ResetObservation.model_json_schema(),
    }


def metadata(environment: type[Environment]) -> JsonObject:
    about = environment.__doc__ if environment.__doc__ != Environment.__doc__ else None
    return {
        "name": environment.name(),
        "description": inspect.cleandoc(about) if about else f"The environment {environment.name()}",
        "readme_content": None,
        "version": __version__,
        "author": None,
        "documentation_url": None,
    }


def openapi(environment: type[Environment]) -> JsonObject:
    """Paths start from the environment's own address."""
    ok = {"responses": {"200": {"description": "The answer, as JSON"}}}
    gets = ("/health", "/metadata", "/schema", "/openapi.json", "/state", "/list_environments")
    return {
        "openapi": "3.1.0",
        "info": {"title": f"{environment.name()} over OpenEnv", "version": __version__},
        "paths": {
            **{path: {"get": {"summary": path[1:], **ok}} for path in gets},
            "/reset": {"post": {"summary": "The first observation of a task, without a session that stays", **ok}},
            "/step": {"post": {"summary": "Refused: steps are taken on the WebSocket at /ws", "responses": _REFUSED}},
            "/mcp": {"post": {"summary": "Tools by JSON-RPC, and sessions by name", **ok}},
        },
    }


_REFUSED = {"409": {"description": "There is no session without a WebSocket"}}
