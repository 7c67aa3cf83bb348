"""Describes a tool that an agent wrote, by its docstring, or else by its type hints."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import docstring_parser

from toolyard.core.output import JsonObject
from toolyard.core.tool import ToolSpec

DOC_MOST = 20_000
PARAMETERS_MOST = 100
TEXT_MOST = 200
"""The most characters of a parameter's name or default."""

_TYPES: Mapping[str, str] = {
    **dict.fromkeys(("str", "string", "text"), "string"),
    **dict.fromkeys(("int", "integer"), "integer"),
    **dict.fromkeys(("float", "number"), "number"),
    **dict.fromkeys(("bool", "boolean"), "boolean"),
    **dict.fromkeys(("dict", "object", "mapping"), "object"),
    **dict.fromkeys(("list", "array", "sequence", "tuple", "set"), "array"),
}
_TYPE = re.compile(r"(?:typing\.)?(?:optional\[)?(?:typing\.)?(\w+)", re.IGNORECASE)


def described(name: str, doc: str, signature: Sequence[JsonObject]) -> ToolSpec:
    """Make the spec. Lines `:param TYPE[?] NAME: text` are the parameters; without any, the function's own."""
    doc = doc[:DOC_MOST]
    parsed = _parsed(doc)
    known = {parameter["name"]: parameter for parameter in signature[:PARAMETERS_MOST]}
    properties: dict[str, Any] = {}
    required: list[str] = []
    for param in parsed.params[:PARAMETERS_MOST]:
        found = known.get(param.arg_name, {})
        properties[param.arg_name] = _property(param.type_name or found.get("type"), param.description, param.default)
        if not (param.is_optional or found.get("optional")):
            required.append(param.arg_name)
    if not properties:
        properties = {name: _property(one.get("type"), None, one.get("default")) for name, one in known.items()}
        required = [name for name, one in known.items() if not one.get("optional")]
    words = "\n".join(part for part in (parsed.short_description, parsed.long_description) if part) or doc
    schema = {"type": "object", "properties": properties, "required": required}
    return ToolSpec(name=name, description=words, input_schema=schema)


def parameters(described: object) -> Sequence[JsonObject]:
    """The parameters of a function, as untrusted code reports them; leaves out malformed ones."""
    items = described if isinstance(described, list) else []
    named = (one for one in items if isinstance(one, dict) and isinstance(one.get("name"), str))
    return [one for one in named if len(one["name"]) <= TEXT_MOST]


def _parsed(doc: str) -> docstring_parser.Docstring:
    try:
        return docstring_parser.parse(doc)
    except docstring_parser.ParseError:
        return docstring_parser.Docstring()


def _property(type_name: object, description: str | None, default: object) -> JsonObject:
    schema: dict[str, object] = {}
    if isinstance(type_name, str) and (word := _TYPE.match(type_name)) and word[1].lower() in _TYPES:
        schema["type"] = _TYPES[word[1].lower()]
    if description:
        schema["description"] = description
    if isinstance(default, str | int | float) and len(str(default)) <= TEXT_MOST:
        schema["default"] = _read(default, schema.get("type")) if isinstance(default, str) else default
    return schema


def _read(text: str, type_name: object) -> object:
    """A docstring's default, as a value of its type."""
    try:
        match type_name:
            case "integer":
                return int(text)
            case "number":
                return float(text)
            case "boolean":
                return {"true": True, "false": False}.get(text.lower(), text)
    except ValueError:  # the default is described in words
        return text
    return text
