"""Makes up arguments for a tool from its JSON schema."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from typing import Any

from toolyard.core.output import JsonObject
from toolyard.core.references import referred

_TEXTS = ["", "0", "1", "42", "-3.5", "A", "yes", "hello", "the answer is 42", "a\nb", " ", "<b>x</b>", "é 漢字 🙂"]
_DEEPEST = 4


def make_arguments(schema: JsonObject | None, dice: random.Random) -> dict[str, Any]:
    if not schema:
        return {}
    made = _Maker(schema, dice).value(schema, 0)
    return made if isinstance(made, dict) else {}


def least_arguments(schema: JsonObject | None) -> dict[str, Any]:
    """Only the required arguments, each with the least value: empty texts and lists, 0, False, the first of a few."""
    if not schema:
        return {}
    made = _Least(schema, random.Random(0)).value(schema, 0)
    return made if isinstance(made, dict) else {}


class _Maker:
    def __init__(self, root: JsonObject, dice: random.Random) -> None:
        self._root = root
        self._dice = dice
        self._by_type: Mapping[str, Callable[[Any, int], Any]] = {
            "object": self._object,
            "array": self._array,
            "string": self._string,
            "integer": self._integer,
            "number": self._number,
            "boolean": self._boolean,
            "null": lambda schema, depth: None,
        }

    def value(self, schema: Any, depth: int) -> Any:
        dice = self._dice
        if not isinstance(schema, Mapping):
            return dice.choice(_TEXTS)
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return dice.choice(schema["enum"])
        if schema.get("examples") and dice.random() < 0.5:
            return dice.choice(schema["examples"])
        if "default" in schema and dice.random() < 0.3:
            return schema["default"]
        if "$ref" in schema:
            return self.value(referred(self._root, schema["$ref"]) or {}, depth + 1)
        for choice in ("anyOf", "oneOf", "allOf"):
            if schema.get(choice):
                return self.value(dice.choice(schema[choice]), depth)
        kind = schema.get("type", "object" if "properties" in schema else "string")
        if isinstance(kind, list):
            kind = dice.choice(kind)
        return self._by_type[kind](schema, depth)

    def _object(self, schema: JsonObject, depth: int) -> dict[str, Any]:
        required = schema.get("required", [])
        optional = 0.0 if depth > _DEEPEST else 0.5
        return {
            name: self.value(inner, depth + 1)
            for name, inner in schema.get("properties", {}).items()
            if name in required or self._dice.random() < optional
        }

    def _array(self, schema: JsonObject, depth: int) -> list[Any]:
        least = schema.get("minItems", 0)
        most = max(least, min(schema.get("maxItems", least + 3), least if depth > _DEEPEST else least + 3))
        return [self.value(schema.get("items"), depth + 1) for _ in range(self._dice.randint(least, most))]

    def _string(self, schema: JsonObject, depth: int) -> str:
        text = self._dice.choice(_TEXTS)
        return text.ljust(schema.get("minLength", 0), "x")[: schema.get("maxLength")]

    def _boolean(self, schema: JsonObject, depth: int) -> bool:
        return self._dice.random() < 0.5

    def _integer(self, schema: JsonObject, depth: int) -> int:
        low, high = _range(schema, 1)
        step = int(schema.get("multipleOf", 1)) or 1
        return self._dice.randint(math.ceil(low / step), max(math.ceil(low / step), math.floor(high / step))) * step

    def _number(self, schema: JsonObject, depth: int) -> float:
        low, high = _range(schema, 0.001)
        return min(high, max(low, round(self._dice.uniform(low, high), 3)))


class _Least(_Maker):
    def value(self, schema: Any, depth: int) -> Any:
        if not isinstance(schema, Mapping):
            return ""
        if schema.get("enum") and "const" not in schema:
            return schema["enum"][0]
        for choice in ("anyOf", "oneOf", "allOf"):
            if schema.get(choice) and not schema.keys() & {"const", "$ref"}:
                return self.value(schema[choice][0], depth)
        kind = schema.get("type")
        plain = {name: schema[name] for name in schema if name not in ("examples", "default")}
        return super().value({**plain, "type": kind[0]} if isinstance(kind, list) else plain, depth)

    def _object(self, schema: JsonObject, depth: int) -> dict[str, Any]:
        required = schema.get("required", []) if depth <= _DEEPEST else []
        return {name: self.value(schema.get("properties", {}).get(name, {}), depth + 1) for name in required}

    def _array(self, schema: JsonObject, depth: int) -> list[Any]:
        return [self.value(schema.get("items"), depth + 1) for _ in range(schema.get("minItems", 0))]

    def _boolean(self, schema: JsonObject, depth: int) -> bool:
        return False

    def _string(self, schema: JsonObject, depth: int) -> str:
        return "x" * int(schema.get("minLength", 0))

    def _integer(self, schema: JsonObject, depth: int) -> int:
        low, high = _range(schema, 1)
        return math.ceil(min(max(0, low), high))

    def _number(self, schema: JsonObject, depth: int) -> float:
        low, high = _range(schema, 0.001)
        return float(min(max(0, low), high))


def _range(schema: JsonObject, beyond: float) -> tuple[float, float]:
    """From the least to the greatest number allowed; from -10 to 100 without limits."""
    low = schema.get("minimum", schema["exclusiveMinimum"] + beyond if "exclusiveMinimum" in schema else None)
    high = schema.get("maximum", schema["exclusiveMaximum"] - beyond if "exclusiveMaximum" in schema else None)
    if low is None:
        low = -10 if high is None else min(-10, high)
    return low, max(100, low) if high is None else high
