"""Arguments against a JSON schema, for tools that have no Python signature.

As lax as pydantic is for the others: `"42"` is taken for a number, `"true"` for a boolean.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any

import jsonschema_rs

from toolyard.core.output import JsonObject


def fit(arguments: JsonObject, schema: JsonObject | None) -> tuple[JsonObject, list[str]]:
    """The arguments, coerced where the schema asks for it, and what is still wrong with them."""
    if not schema:
        return arguments, []
    fitted: dict[str, Any] = _coerce(dict(arguments), schema)
    validator = _validator(json.dumps(schema, sort_keys=True))
    try:
        errors = list(validator.iter_errors(fitted))
    except ValueError as problem:  # what JSON cannot hold, such as half a character
        return fitted, [f"input: {problem}"]
    return fitted, [f"{'.'.join(map(str, e.instance_path)) or 'input'}: {e.message}" for e in errors]


@functools.lru_cache(maxsize=512)
def _validator(schema: str) -> Any:  # jsonschema_rs returns one of several validator classes
    return jsonschema_rs.validator_for(json.loads(schema))


def _coerce(value: Any, schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return value
    wanted = schema.get("type")
    if isinstance(value, dict):
        properties = schema.get("properties")
        inner = properties if isinstance(properties, Mapping) else {}
        return {key: _coerce(item, inner.get(key)) for key, item in value.items()}
    if isinstance(value, list):
        return [_coerce(item, schema.get("items")) for item in value]
    if isinstance(value, str) and wanted in _FROM_TEXT:
        try:
            return _FROM_TEXT[wanted](value)
        except ValueError:
            return value  # the validator will say what is wrong with it
    if isinstance(value, float) and wanted == "integer" and value.is_integer():
        return int(value)
    return value


def _boolean(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in ("true", "1", "yes", "on"):
        return True
    if lowered in ("false", "0", "no", "off"):
        return False
    raise ValueError(text)


_FROM_TEXT: dict[str, Callable[[str], Any]] = {"integer": int, "number": float, "boolean": _boolean}
