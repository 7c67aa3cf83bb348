"""What a model reads of a call that it wrote wrong: which argument, what is expected and given, or which tools exist.

The words are for the model. The same facts go beside them as metadata, for programs. Both are of bounded length.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from pydantic import ValidationError

from toolyard.core.nearness import nearest
from toolyard.core.output import JsonObject, ToolFailure, cut_text
from toolyard.core.references import referred

_WORDS_MOST = 4_000
_GIVEN_MOST = 100
"""Characters of a value that the model wrote."""
_MISTAKES_MOST = 10
_NAMES_MOST = 30
"""Names of tools or arguments, and values that an argument may have."""

_ENCODER = json.JSONEncoder(ensure_ascii=False, default=str)

_OWN_WORDS = frozenset({"value_error", "assertion_error"})
"""Errors of pydantic whose message an author wrote."""

Path: TypeAlias = tuple[str | int, ...]
Kind: TypeAlias = Literal["missing", "unexpected", "wrong"]


class Mistake(NamedTuple):
    path: Path
    kind: Kind
    words: str
    """What is wrong, for where the schema does not say it."""
    own_words: bool = False
    """An author wrote the words, and they say more than the schema."""


def wrong_arguments(
    tool: str, schema: JsonObject | None, written: JsonObject, mistakes: Sequence[Mistake]
) -> ToolFailure:
    """The failure of a call whose arguments do not fit. It shows nothing but what the model wrote: other arguments,
    which the trainer filled in, may hold the answer."""
    schema = schema or {}
    mistakes = [*mistakes, *_unknown(schema, written, mistakes)]
    told = [_Told.of(mistake, schema, written) for mistake in mistakes[:_MISTAKES_MOST]]
    sentences = [one.sentence(tool) for one in told]
    if len(mistakes) > _MISTAKES_MOST:
        sentences.append(f"And {len(mistakes) - _MISTAKES_MOST} more.")
    if any(one.kind != "wrong" for one in told):
        sentences.append(_takes(tool, schema))
    message = cut_text(f"Tool input validation error: {' '.join(filter(None, sentences))}", _WORDS_MOST)
    errors = [one.as_json() for one in told]
    return ToolFailure("bad_arguments", message, metadata={"tool": tool[:_GIVEN_MOST], "errors": errors})


def no_such_tool(name: str, tools: Iterable[str], others: Iterable[str] = ()) -> ToolFailure:
    """The failure of a call of a tool that does not exist. `others` can be called too, but are too many to list."""
    listed = list(tools)
    metadata = which_tools(name, listed, others)
    message = f"{name[:_WORDS_MOST]!r} is not a valid tool{advice(metadata)}"
    return ToolFailure("no_such_tool", message, metadata=metadata)


def which_tools(name: str, tools: Sequence[str], others: Iterable[str] = ()) -> JsonObject:
    return {
        "tool": name[:_GIVEN_MOST],
        "did_you_mean": [*nearest(name, [*tools, *others], 3)],
        "tools": [one[:_GIVEN_MOST] for one in tools[:_NAMES_MOST]],
        "tools_total": len(tools),
    }


def advice(metadata: JsonObject) -> str:
    """The rest of the sentence about an unknown tool: `. Did you mean 'look'? The tools are: look, move.`"""
    meant, tools, total = metadata["did_you_mean"], metadata["tools"], metadata["tools_total"]
    more = f" and {total - len(tools)} more" if total > len(tools) else ""
    asked = f" Did you mean {_either(map(repr, meant))}?" if meant else ""
    there = f" The tools are: {', '.join(tools)}{more}." if tools else " There are no tools."
    return f".{asked}{there}"


# Mistakes, as those who validate find them.


def of_pydantic(error: ValidationError, written: JsonObject) -> Sequence[Mistake]:
    """One for each argument: pydantic lists each branch of a union, and tools are not described that way."""
    found: dict[Path, Mistake] = {}
    for one in error.errors(include_url=False, include_context=False, include_input=False):
        kind: Kind = {"missing": "missing", "extra_forbidden": "unexpected"}.get(one["type"], "wrong")  # type: ignore[assignment]  # of three
        path = one["loc"] if kind == "missing" else _reached(one["loc"], written) or one["loc"][:1]
        words = re.sub("^(Value error|Assertion failed), ", "", one["msg"])
        if path not in found:
            found[path] = Mistake(path, kind, words, one["type"] in _OWN_WORDS)
    return list(found.values())


def of_schema(errors: Iterable[Any]) -> Sequence[Mistake]:  # errors of jsonschema_rs
    found: list[Mistake] = []
    for error in errors:
        path = tuple(error.instance_path)
        match error.kind.name:
            case "required":
                found.append(Mistake((*path, error.kind.property), "missing", error.message))
            case "additionalProperties" | "unevaluatedProperties":
                found += [Mistake((*path, name), "unexpected", error.message) for name in error.kind.unexpected]
            case _:
                found.append(Mistake(path, "wrong", error.message))
    return found


def _reached(path: Path, written: Any) -> Path:
    """The part of the path that leads to something the model wrote."""
    for at, step in enumerate(path):
        try:
            written = written[step]
        except (LookupError, TypeError):
            return path[:at]
    return path


def _unknown(schema: JsonObject, written: JsonObject, mistakes: Sequence[Mistake]) -> Iterator[Mistake]:
    """Arguments that the tool does not have. By themselves they are no mistake, but they may explain another."""
    known = schema.get("properties", {})
    named = {mistake.path for mistake in mistakes}
    if not any(mistake.kind == "missing" for mistake in mistakes) or schema.get("additionalProperties"):
        return
    for name in written:
        if name not in known and (name,) not in named:
            yield Mistake((name,), "unexpected", "")


class _Told(NamedTuple):
    """A mistake in words."""

    field: str
    kind: Kind
    expected: str
    given: str
    words: str
    meant: str

    @classmethod
    def of(cls, mistake: Mistake, schema: JsonObject, written: JsonObject) -> _Told:
        path = mistake.path
        given: Any = written
        for step in path:
            try:
                given = given[step]
            except (LookupError, TypeError):
                given = ...
                break
        about = _schema_at(path, schema)
        expected = "" if mistake.kind == "unexpected" or about is None else in_words(about, schema)
        meant: Sequence[str] = ()
        if mistake.kind == "unexpected":
            parent = _schema_at(path[:-1], schema) or {}
            others = parent.get("properties", {}).keys() - (written.keys() if len(path) == 1 else ())
            meant = nearest(str(path[-1]), others)
        shown = "" if given is ... or not path else _json(given)
        words = mistake.words if mistake.own_words or not expected else ""
        return cls(_named(path), mistake.kind, expected, shown, words, meant[0] if meant else "")

    def sentence(self, tool: str) -> str:
        name = repr(self.field) if self.field else "the input"
        match self.kind:
            case "missing":
                return f"{name} is missing{f': it must be {self.expected}' if self.expected else ''}."
            case "unexpected":
                asked = f"; did you mean {self.meant!r}?" if self.meant else "."
                return f"{name} is no argument of {tool}{asked}"
            case "wrong":
                got = f" (given: {self.given})" if self.given else ""
                return f"{name}: {self.words}{got}." if self.words else f"{name} must be {self.expected}{got}."

    def as_json(self) -> JsonObject:
        told = {"field": self.field, "problem": self.kind, "expected": self.words or self.expected}
        more = {"given": self.given, "did_you_mean": self.meant}
        return {**told, **{name: value for name, value in more.items() if value}}


def _named(path: Path) -> str:
    """`board.rows[2]`."""
    named = ""
    for step in path:
        named += f"[{step}]" if isinstance(step, int) else f".{step}" if named else step
    return cut_text(named, _GIVEN_MOST)


def _json(value: object) -> str:
    """The beginning of a value as JSON. It may be as large as a request, and deep."""
    if isinstance(value, str):
        text = json.dumps(value[: _GIVEN_MOST + 1], ensure_ascii=False)
        return text if len(value) <= _GIVEN_MOST else f"{text[:_GIVEN_MOST]}… ({len(value):,} characters)"
    text = ""
    for part in _ENCODER.iterencode(value):
        text += part[: _GIVEN_MOST + 1]
        if len(text) > _GIVEN_MOST:
            return f"{text[:_GIVEN_MOST]}…"
    return text


def _takes(tool: str, schema: JsonObject) -> str:
    known, required = schema.get("properties", {}), schema.get("required", ())
    if not known:
        return f"{tool} takes no arguments."
    listed = [
        f"{name} ({in_words(about, schema)}{'' if name in required else ', optional'})"
        for name, about in list(known.items())[:_NAMES_MOST]
    ]
    more = f" and {len(known) - _NAMES_MOST} more" if len(known) > _NAMES_MOST else ""
    return f"{tool} takes {', '.join(listed)}{more}."


# A schema in words.

_TYPES = {
    "string": "a string",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "object": "an object",
    "array": "a list",
    "null": "null",
}
_LIMITS = {
    "minLength": "of at least {} characters",
    "maxLength": "of at most {} characters",
    "pattern": "that matches {}",
    "format": "({})",
    "minimum": "of at least {}",
    "maximum": "of at most {}",
    "exclusiveMinimum": "greater than {}",
    "exclusiveMaximum": "less than {}",
    "multipleOf": "that is a multiple of {}",
    "minItems": "of at least {} items",
    "maxItems": "of at most {} items",
}


def in_words(schema: Any, root: JsonObject, depth: int = 3) -> str:
    """`a whole number of at least 1`, `one of "x", "y"`, `a list of strings or null`."""
    schema = _resolved(schema, root)
    if not isinstance(schema, Mapping) or depth == 0:
        return "a value"
    if "const" in schema:
        return _json(schema["const"])
    if isinstance(choices := schema.get("enum"), list) and choices:
        shown = ", ".join(map(_json, choices[:_NAMES_MOST]))
        return f"one of {shown}{', …' if len(choices) > _NAMES_MOST else ''}" if len(choices) > 1 else shown
    for word in ("anyOf", "oneOf"):
        if isinstance(branches := schema.get(word), list):
            return _either(dict.fromkeys(in_words(one, root, depth - 1) for one in branches))
    kinds = schema.get("type")
    named = [_TYPES.get(str(kind), "a value") for kind in (kinds if isinstance(kinds, list) else [kinds])]
    if kinds == "array" and isinstance(items := schema.get("items"), Mapping) and items:
        named = [f"a list, each item {in_words(items, root, depth - 1)}"]
    limits = [form.format(schema[word]) for word, form in _LIMITS.items() if word in schema]
    return f"{_either(named)} {' and '.join(limits)}" if limits else _either(named)


def _either(words: Iterable[str]) -> str:
    *first, last = [*words] or ["a value"]
    return f"{', '.join(first)} or {last}" if first else last


def _schema_at(path: Path, schema: JsonObject) -> Any:
    """The schema of the value there; None if the schema does not say."""
    found: Any = schema
    for step in path:
        found = next((inner for one in _branches(found, schema) if (inner := _inner(one, step)) is not None), None)
        if found is None:
            return None
    return found


def _branches(schema: Any, root: JsonObject) -> Iterator[JsonObject]:
    schema = _resolved(schema, root)
    if isinstance(schema, Mapping):
        yield schema
        for word in ("anyOf", "oneOf", "allOf"):
            for one in schema.get(word) or ():
                if isinstance(inner := _resolved(one, root), Mapping):
                    yield inner


def _inner(schema: JsonObject, step: str | int) -> Any:
    if isinstance(step, int):
        return schema.get("items")
    return (schema.get("properties") or {}).get(step)


def _resolved(schema: Any, root: JsonObject) -> Any:
    """The schema that a reference within the same document leads to."""
    for _ in range(10):  # a reference may lead to another, and in a circle
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(reference, str) or not reference.startswith("#/"):
            return schema
        schema = referred(root, reference)
    return None
