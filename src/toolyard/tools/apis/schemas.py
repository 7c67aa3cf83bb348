"""Turns the schemas of an OpenAPI document into self-contained JSON schemas of bounded size, with references
resolved."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jsonschema_rs

from toolyard.core.output import JsonObject
from toolyard.tools.apis.document import Document, listed, mapping, text

_DEEPEST = 12
_PARTS = 250
"""The most schemas within the schema of one tool. The rest is left out, and its values are not checked."""
_VALUES = 200
"""The most values within a default or an enumeration."""

_TYPES = frozenset({"string", "number", "integer", "boolean", "array", "object", "null"})


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_type(value: object) -> bool:
    if isinstance(value, list):
        return bool(value) and len(set(map(str, value))) == len(value) and all(isinstance(v, str) for v in value)
    return isinstance(value, str)


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value) and len(set(value)) == len(value)


def is_plain(value: object) -> bool:
    """Whether it is a small JSON value."""
    left, waiting = _VALUES, [value]
    while waiting:
        match waiting.pop():
            case dict() as found if all(isinstance(key, str) for key in found):
                waiting += found.values()
            case list() as found:
                waiting += found
            case None | str() | bool() | int():
                pass
            case float() as number if abs(number) < 1e300:
                pass
            case _:
                return False
        left -= 1
        if left < len(waiting):
            return False
    return True


def closed(properties: Mapping[str, JsonObject], required: Sequence[str]) -> dict[str, Any]:
    """The schema of a tool. It refuses unknown arguments, which would be lost in silence otherwise."""
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


@functools.lru_cache(1024)
def _is_pattern(pattern: str) -> bool:
    try:
        jsonschema_rs.validator_for({"pattern": pattern})
    except (jsonschema_rs.ValidationError, ValueError):  # some dialects of regular expressions are unknown here
        return False
    return True


_KEPT: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("title", "description", "format"), _is_text),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"), _is_count),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _is_number),
    "multipleOf": lambda value: _is_number(value) and value > 0,
    "uniqueItems": lambda value: isinstance(value, bool),
    "required": _are_texts,
    "enum": lambda value: isinstance(value, list) and bool(value) and is_plain(value),
    "pattern": lambda value: isinstance(value, str) and _is_pattern(value),
    **dict.fromkeys(("const", "default"), is_plain),
}
"""Keywords to keep if they are well formed. All others are for people or for other programs."""


@dataclass(slots=True)
class Schemas:
    """The schemas of one tool, which share a bound."""

    document: Document
    left: int = _PARTS
    within: list[str] = field(default_factory=list)
    """The references that led here; a repeated one means that a schema contains itself."""

    def plain(self, schema: object, where: str) -> JsonObject:
        if isinstance(schema, bool):
            return {} if schema else {"not": {}}
        found = mapping(schema, where)
        self.left -= 1
        if self.left < 0 or len(self.within) > _DEEPEST:
            return {}
        reference = found.get("$ref")
        mark = reference if isinstance(reference, str) else ""
        if mark and mark in self.within:
            return {word: found[word] for word in ("title", "description") if _is_text(found.get(word))}
        self.within.append(mark)
        try:
            return self._referred(found, where) if "$ref" in found else self._written(found, where)
        finally:
            self.within.pop()

    def _referred(self, schema: Mapping[str, Any], where: str) -> JsonObject:
        beside = {word: value for word, value in schema.items() if word != "$ref"}
        target = self.document.target(text(schema["$ref"], f"{where}/$ref"), where)
        there = self.plain(target, f"{self.document.name}: {schema['$ref']}")
        return {**there, **self._written(beside, where)}

    def _written(self, schema: Mapping[str, Any], where: str) -> JsonObject:
        made: dict[str, Any] = {}
        if isinstance(kind := schema.get("type"), str | list) and _is_type(kind):
            types = [one for one in ([kind] if isinstance(kind, str) else kind) if one in _TYPES]
            if schema.get("nullable") is True and "null" not in types and types:
                types.append("null")
            if types:
                made["type"] = types[0] if len(types) == 1 else types
        made |= {word: schema[word] for word in _KEPT if word in schema and _KEPT[word](schema[word])}
        self._parts(schema, where, made)
        _from_3_0(schema, made)
        if is_plain(example := schema.get("example")) and example is not None:
            made["examples"] = [example]
        return made

    def _parts(self, schema: Mapping[str, Any], where: str, made: dict[str, Any]) -> None:
        for word in ("items", "not", "contains", "propertyNames", "additionalProperties"):
            if word in schema:
                made[word] = self.plain(schema[word], f"{where}/{word}")
        for word in ("allOf", "anyOf", "oneOf", "prefixItems"):
            if word in schema and (options := listed(schema[word], f"{where}/{word}")):
                made[word] = [self.plain(one, f"{where}/{word}/{n}") for n, one in enumerate(options)]
        if "properties" in schema:
            there = mapping(schema["properties"], f"{where}/properties")
            inner = {name: self.plain(one, f"{where}/properties/{name}") for name, one in there.items()}
            ours = [name for name, one in there.items() if isinstance(one, dict) and one.get("readOnly") is True]
            made["properties"] = {name: one for name, one in inner.items() if name not in ours}
            if "required" in made:
                made["required"] = [name for name in made["required"] if name not in ours]


def _from_3_0(schema: Mapping[str, Any], made: dict[str, Any]) -> None:
    """Translate what OpenAPI 3.0 spells differently from JSON schema."""
    for word, limit in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if schema.get(word) is True and limit in made:
            made[word] = made.pop(limit)
    if schema.get("nullable") is True and "enum" in made and None not in made["enum"]:
        made["enum"] = [*made["enum"], None]
