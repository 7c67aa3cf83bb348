"""Reads lists of APIs for a ToolBench endpoint, one API a line: XAgent's RapidAPIEnv. The endpoint calls the APIs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from toolyard.core.encoding import encode
from toolyard.core.errors import DefinitionError, ServiceUnavailable
from toolyard.core.output import JsonObject
from toolyard.core.tool import ToolSpec
from toolyard.tools.apis.document import listed, mapping, text
from toolyard.tools.apis.names import DESCRIPTION, UniqueNames
from toolyard.tools.apis.operation import ApiRequest
from toolyard.tools.apis.schemas import is_plain

TITLE = "RapidAPIEnv"

_NAME = re.compile(r"[A-Za-z0-9_]+")
_TYPES = frozenset({"string", "number", "integer", "boolean", "array", "object"})


@dataclass(frozen=True, slots=True)
class EndpointOperation:
    endpoint: str
    category: str
    tool: str
    api: str
    key: str = field(default="", repr=False)

    def request(self, arguments: JsonObject) -> ApiRequest:
        if not self.endpoint:
            raise ServiceUnavailable(f"there is no endpoint to ask: {TITLE} needs a base URL")
        body = {
            "category": self.category,
            "tool_name": self.tool,
            "api_name": self.api,
            "tool_input": arguments,
            "strip": "truncate",
            "toolbench_key": self.key,
        }
        headers = {"content-type": "application/json", "toolbench_key": self.key}
        return ApiRequest("POST", self.endpoint, headers, encode(body), [self.key])


def read_list(
    lines: bytes, where: str, names: UniqueNames, *, endpoint: str, key: str
) -> Iterator[tuple[ToolSpec, EndpointOperation]]:
    """`{"name": "rapi_<tool>_<api>", "category", "api": "<tool>", "description", "parameters"}`, one a line."""
    for number, line in enumerate(lines.split(b"\n"), 1):
        if line and not line.isspace():
            entry = _entry(line, f"{where}:{number}")
            tool, name = entry["api"], entry["name"]
            spec = ToolSpec.model_construct(
                name=names.give(name),
                description=entry["description"][:DESCRIPTION] or name,
                input_schema=_schema(entry["parameters"], f"{where}:{number}"),
            )
            yield spec, EndpointOperation(endpoint, entry["category"], tool, name.removeprefix(f"rapi_{tool}_"), key)


def _entry(line: bytes, where: str) -> dict[str, Any]:
    try:
        said = mapping(orjson.loads(line), where)
    except orjson.JSONDecodeError as error:
        raise DefinitionError(f"{where}: this line is not JSON: {error}") from None
    entry: dict[str, Any] = {word: text(said.get(word), f"{where}: {word}") for word in ("name", "api")}
    if not _NAME.fullmatch(entry["name"]):
        raise DefinitionError(f"{where}: {entry['name'][:100]!r} is not made of letters, digits and underscores")
    entry |= {word: text(said.get(word, ""), f"{where}: {word}") for word in ("category", "description")}
    return {**entry, "parameters": said.get("parameters", {})}


def _schema(parameters: object, where: str) -> JsonObject:
    said = mapping(parameters, f"{where}: parameters")
    properties = mapping(said.get("properties", {}), f"{where}: parameters.properties")
    required = listed(said.get("required", []), f"{where}: parameters.required")
    if unknown := [name for name in required if not isinstance(name, str) or name not in properties]:
        raise DefinitionError(f"{where}: parameters.required: there is no parameter {unknown[0]!r}")
    made = {name: property_of(one, f"{where}: parameters.properties.{name}") for name, one in properties.items()}
    return {"type": "object", "properties": made, "required": list(dict.fromkeys(required))}


def property_of(said: object, where: str) -> JsonObject:
    """The schema of a parameter. RapidAPI's types are JSON's in capitals; all its other types are texts."""
    if not isinstance(said, dict):
        raise DefinitionError(f"{where}: an object is expected here")
    kind = said.get("type")
    kind = kind.lower() if isinstance(kind, str) else ""
    made: dict[str, Any] = {"type": kind if kind in _TYPES else "string"}
    description, default = said.get("description"), said.get("default")
    if isinstance(description, str) and description:
        made["description"] = description
    if default not in (None, "") and is_plain(default):
        made["default"] = default
    return made
