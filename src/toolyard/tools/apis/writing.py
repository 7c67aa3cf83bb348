"""Writes values into an address, a header or a form, in OpenAPI's styles."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias
from urllib.parse import quote

Pair: TypeAlias = tuple[str, str]

STYLES: Mapping[str, Sequence[str]] = {
    "path": ("simple",),
    "query": ("form", "spaceDelimited", "pipeDelimited", "deepObject"),
    "header": ("simple",),
    "cookie": ("form",),
}
"""The styles for each place, the default first."""
JSON = "json"
"""A further style: the value as JSON."""

_BETWEEN = {"spaceDelimited": "%20", "pipeDelimited": "%7C"}


def escaped(text: str) -> str:
    """The text with all characters escaped that have a meaning in an address."""
    return quote(text, safe="", errors="replace")


def as_text(value: Any) -> str:  # any JSON value
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case None:
            return ""
        case _:
            return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def joined(value: Any, style: str, *, explode: bool) -> str:
    """The value as one escaped text: `3`, `a,b`, or `key,value` and `key=value` for objects."""
    if style == JSON:
        return escaped(json.dumps(value, separators=(",", ":")))
    match value:
        case list():
            parts = [escaped(as_text(one)) for one in value]
        case dict():
            between = "=" if explode else ","
            parts = [f"{escaped(key)}{between}{escaped(as_text(one))}" for key, one in value.items()]
        case _:
            return escaped(as_text(value))
    return _BETWEEN.get(style, ",").join(parts)


def pairs(name: str, value: Any, style: str, *, explode: bool) -> Iterator[Pair]:
    """The value as escaped parts of a query."""
    match value:
        case dict() if style == "deepObject":
            for key, one in value.items():
                yield from pairs(f"{name}[{key}]", one, style, explode=explode)
        case list() if style in ("form", "deepObject") and explode:
            yield from ((escaped(name), escaped(as_text(one))) for one in value)
        case dict() if style == "form" and explode:
            yield from ((escaped(key), escaped(as_text(one))) for key, one in value.items())
        case _:
            yield escaped(name), joined(value, style, explode=False)


def unescaped(value: Any, *, explode: bool) -> str:
    """The value for a header, where nothing is escaped. The caller checks the characters."""
    match value:
        case list():
            return ",".join(map(as_text, value))
        case dict():
            between = "=" if explode else ","
            return ",".join(f"{key}{between}{as_text(one)}" for key, one in value.items())
        case _:
            return as_text(value)


def form(value: Any) -> str:
    """The value as form fields. A list becomes a repeated field, and anything deeper JSON."""
    fields = value if isinstance(value, dict) else {"value": value}
    each = ((name, one) for name, inner in fields.items() for one in (inner if isinstance(inner, list) else [inner]))
    return "&".join(f"{escaped(name)}={escaped(as_text(one))}" for name, one in each)
