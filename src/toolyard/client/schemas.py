"""Rewrites the schema of a tool for APIs that read less than JSON schema.

OpenAI and Anthropic take references and unions, but refuse a top level that is not a plain object. Google takes a
subset of OpenAPI: for it, references are written out, and keywords that it does not know go into the description.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from toolyard.core.output import JsonObject
from toolyard.core.references import referred

Schema: TypeAlias = dict[str, Any]


def json_schema(schema: JsonObject | None) -> Schema:
    """The schema with a plain object on top, and without titles, which only repeat the names."""
    trimmed: Schema = _trimmed(_plain_object(schema or {}))
    return trimmed


def open_api(schema: JsonObject | None) -> Schema:
    top = _plain_object(schema or {})
    return {"properties": {}, **OpenApi(top).convert(top)}


# The top level.


def _plain_object(schema: JsonObject) -> Schema:
    """Make the top level an object, as every API demands: follow a reference, merge alternatives."""
    top: Schema = dict(schema)
    seen = set()
    while isinstance(ref := top.pop("$ref", None), str) and ref not in seen:
        seen.add(ref)
        top = {**resolve(schema, ref), **top}
    for key in ("allOf", "anyOf", "oneOf"):
        options = [_plain_object({**_definitions(schema), **option}) for option in _schemas(top.pop(key, None))]
        if options:
            top = _merged(top, options, all_hold=key == "allOf")
    return {**top, "type": "object", "properties": top.get("properties", {})}


def _merged(top: Schema, options: Sequence[Schema], *, all_hold: bool) -> Schema:
    """One object with the properties of all options. It requires what each of them requires; for `allOf`, what any
    does."""
    properties = {name: value for option in options for name, value in option["properties"].items()}
    needs = [set(option.get("required", ())) for option in options]
    required = (set.union(*needs) if all_hold else set.intersection(*needs)) | set(top.get("required", ()))
    merged = {**top, "properties": {**properties, **top.get("properties", {})}}
    if required:
        merged["required"] = [name for name in merged["properties"] if name in required]
    return merged


def _definitions(schema: JsonObject) -> Schema:
    return {key: schema[key] for key in ("$defs", "definitions") if key in schema}


def _schemas(value: object) -> list[JsonObject]:
    """The schemas in a value that should be a list of schemas."""
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


def resolve(root: JsonObject, ref: str) -> Schema:
    """The schema at which a reference within `root` points; one that takes anything if there is none."""
    found = referred(root, ref)
    return dict(found) if isinstance(found, Mapping) else {}


# JSON schema.

_NAMED = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
"""Keywords whose keys are names that an author chose: `title` may be one of them."""
_VALUES = ("default", "enum", "const", "examples", "example", "required")
"""Keywords whose values are no schemas."""


def _trimmed(schema: Any) -> Any:  # a schema, or any part of one
    if isinstance(schema, list):
        return [_trimmed(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    trimmed: Schema = {}
    for key, value in schema.items():
        if key in _NAMED and isinstance(value, Mapping):
            trimmed[key] = {name: _trimmed(inner) for name, inner in value.items()}
        elif key != "title":
            trimmed[key] = value if key in _VALUES else _trimmed(value)
    if trimmed.get("type") == "array" and not trimmed.keys() & {"items", "prefixItems"}:
        trimmed["items"] = {}  # APIs refuse an array without
    return trimmed


# OpenAPI, as far as Google goes.

_KEPT = ("minItems", "maxItems", "minimum", "maximum", "minLength", "maxLength", "pattern")
_KEPT_FORMATS = ("float", "double", "int32", "int64", "date-time")
_SAID = {
    "exclusiveMinimum": "More than {}.",
    "exclusiveMaximum": "Less than {}.",
    "multipleOf": "A multiple of {}.",
    "default": "Default: {}.",
}


class OpenApi:
    """Rewrites the schemas of one tool. It resolves references in `root`, and cuts them where they repeat."""

    def __init__(self, root: JsonObject) -> None:
        self._root = root

    def convert(self, schema: Any, path: tuple[str, ...] = ()) -> Schema:
        """`schema` may be `true`, which means anything in JSON schema. `path`: the references that led here."""
        if not isinstance(schema, Mapping):
            return {"type": "string"}
        if isinstance(ref := schema.get("$ref"), str):
            return self._referred(ref, _without(schema, "$ref"), path)
        for key in ("anyOf", "oneOf"):
            if options := _schemas(schema.get(key)):
                return self._union(options, _without(schema, key), path)
        kinds = schema.get("type")
        if isinstance(kinds, list) or kinds == "null":
            rest = _without(schema, "type")
            return self._union([{**rest, "type": kind} for kind in ([kinds] if kinds == "null" else kinds)], rest, path)
        if parts := _schemas(schema.get("allOf")):
            return self._joined(parts, _without(schema, "allOf"), path)
        return self._simple(schema, path)

    def _referred(self, ref: str, rest: Schema, path: tuple[str, ...]) -> Schema:
        if ref in path:
            return {"type": "object", "description": f"Another {ref.rpartition('/')[2]}, of the same shape."}
        return self.convert({**resolve(self._root, ref), **rest}, (*path, ref))

    def _union(self, options: Sequence[JsonObject], rest: Schema, path: tuple[str, ...]) -> Schema:
        """`anyOf`, which may have nothing beside it: a description of all options is copied into each."""
        real = [option for option in options if option.get("type") != "null"]
        nullable = {"nullable": True} if len(real) < len(options) else {}
        if len(real) <= 1:
            return self.convert({**(real[0] if real else {}), **rest}, path) | nullable
        shared = {"description": rest["description"]} if "description" in rest else {}
        return {"anyOf": [self.convert({**shared, **option}, path) | nullable for option in real]}

    def _joined(self, parts: Sequence[JsonObject], rest: Schema, path: tuple[str, ...]) -> Schema:
        """`allOf`: merge all parts into one."""
        joined: Schema = {}
        for part in [*parts, rest]:
            ref = part.get("$ref")
            if isinstance(ref, str):
                if ref in path:
                    return self._referred(ref, rest, path)
                path = (*path, ref)
            whole = {**resolve(self._root, ref), **_without(part, "$ref")} if isinstance(ref, str) else part
            properties = {**joined.get("properties", {}), **whole.get("properties", {})}
            required = [*joined.get("required", ()), *whole.get("required", ())]
            joined = {**joined, **whole, "properties": properties, "required": required}
        return self.convert(joined if joined["properties"] else _without(joined, "properties", "required"), path)

    def _simple(self, schema: JsonObject, path: tuple[str, ...]) -> Schema:
        values = [schema["const"]] if "const" in schema else schema.get("enum", [])
        kind = _type_of(schema, values)
        converted: Schema = {"type": kind}
        notes = [schema["description"]] if schema.get("description") else []
        if None in values:
            converted["nullable"] = True
            values = [value for value in values if value is not None]
        if values and all(isinstance(value, str) for value in values):
            converted["enum"] = values
        elif values:  # an enum can only be of strings
            notes.append(f"One of {', '.join(map(json.dumps, values))}.")
        converted |= {key: schema[key] for key in _KEPT if key in schema}
        if schema.get("format") in _KEPT_FORMATS:
            converted["format"] = schema["format"]
        elif "format" in schema:
            notes.append(f"Format: {schema['format']}.")
        notes += [said.format(json.dumps(schema[key])) for key, said in _SAID.items() if schema.get(key) is not None]
        if kind == "object":
            converted |= self._members(schema, path, notes)
        elif kind == "array":
            converted |= self._items(schema, path)
        if notes:
            converted["description"] = " ".join(notes)
        return converted

    def _members(self, schema: JsonObject, path: tuple[str, ...], notes: list[str]) -> Schema:
        if isinstance(values := schema.get("additionalProperties"), Mapping) and values:
            notes.append(f"Any keys; each value is {json.dumps(self.convert(values, path))}.")
        properties = schema.get("properties", {})
        if not properties:
            return {}
        members: Schema = {"properties": {name: self.convert(inner, path) for name, inner in properties.items()}}
        if required := [name for name in schema.get("required", ()) if name in properties]:
            members["required"] = required
        return members

    def _items(self, schema: JsonObject, path: tuple[str, ...]) -> Schema:
        places = _schemas(schema.get("prefixItems"))  # of a tuple
        different = list({json.dumps(place, sort_keys=True): place for place in places}.values())
        if len(different) > 1:
            return {"items": self.convert({"anyOf": different}, path)}
        return {"items": self.convert(different[0] if different else schema.get("items"), path)}


def _without(schema: JsonObject, *keys: str) -> Schema:
    return {key: value for key, value in schema.items() if key not in keys}


def _type_of(schema: JsonObject, values: Sequence[object]) -> str:
    """The type of a schema, which must have one. For a schema that takes any value it is text."""
    if isinstance(kind := schema.get("type"), str):
        return kind
    if "properties" in schema:
        return "object"
    if "items" in schema or "prefixItems" in schema:
        return "array"
    match values[0] if values else "":
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case _:
            return "string"
