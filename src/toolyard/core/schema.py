"""Validates arguments against a JSON schema, for tools that have no Python signature.

It is as lax as pydantic is for other tools: it takes `"42"` for a number and `"true"` for a boolean.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import jsonschema_rs

from toolyard.core.mistakes import Mistake, of_schema
from toolyard.core.output import JsonObject
from toolyard.core.references import referred


def fit(arguments: JsonObject, schema: JsonObject | None) -> tuple[JsonObject, Sequence[Mistake]]:
    """Coerce the arguments to the types that the schema asks for. Return also what is still wrong with them."""
    if not schema:
        return arguments, []
    fitted: dict[str, Any] = _coerce(dict(arguments), schema, schema)
    validator = _validator(json.dumps(schema, sort_keys=True))
    try:
        errors = list(validator.iter_errors(fitted))
    except ValueError as problem:  # what JSON cannot hold, such as half a character
        return fitted, [Mistake((), "wrong", str(problem), own_words=True)]
    return fitted, of_schema(errors)


@functools.lru_cache(maxsize=512)
def _validator(schema: str) -> Any:  # jsonschema_rs returns one of several validator classes
    return jsonschema_rs.validator_for(json.loads(schema))


def _coerce(value: Any, schema: Any, root: JsonObject) -> Any:
    meant = list(_simple(schema, root, set()))
    if isinstance(value, dict):
        inner = _only(meant, "properties")
        return {key: _coerce(item, inner.get(key), root) for key, item in value.items()}
    if isinstance(value, list):
        return [_coerce(item, _only(meant, "items"), root) for item in value]
    if not isinstance(value, str | float):
        return value
    types = [name for one in meant for name in _types(one)]
    if isinstance(value, float):
        return int(value) if "integer" in types and "number" not in types and value.is_integer() else value
    return value if "string" in types else _from_text(value, types)


def _simple(schema: Any, root: JsonObject, seen: set[str]) -> Iterator[JsonObject]:
    """The schema, and the schemas that it refers to or combines, as pydantic writes `int | None`."""
    if not isinstance(schema, Mapping):
        return
    yield schema
    for word in ("anyOf", "oneOf", "allOf"):
        if isinstance(choices := schema.get(word), list):
            for choice in choices:
                yield from _simple(choice, root, seen)
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/") and reference not in seen:
        seen.add(reference)
        yield from _simple(referred(root, reference), root, seen)


def _only(schemas: Sequence[JsonObject], word: str) -> JsonObject:
    """The value of this keyword in the one schema that has it. Empty if several have it: the validator decides then."""
    found = [schema[word] for schema in schemas if isinstance(schema.get(word), Mapping)]
    return found[0] if len(found) == 1 else {}


def _types(schema: JsonObject) -> Sequence[str]:
    wanted = schema.get("type")
    return [wanted] if isinstance(wanted, str) else wanted if isinstance(wanted, list) else []


def _from_text(text: str, types: Sequence[str]) -> Any:
    for name in types:
        if name in _FROM_TEXT:
            with suppress(ValueError):
                return _FROM_TEXT[name](text)
    return text  # the validator says what is wrong with it


def _boolean(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in ("true", "1", "yes", "on"):
        return True
    if lowered in ("false", "0", "no", "off"):
        return False
    raise ValueError(text)


_FROM_TEXT: dict[str, Callable[[str], Any]] = {"integer": int, "number": float, "boolean": _boolean}
