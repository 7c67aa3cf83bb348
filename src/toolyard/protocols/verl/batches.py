"""Reads what a trainer posts: one action for each of several trajectories, in every dialect that trainers write."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.json import Decoder

from toolyard.asgi import HttpError, decode
from toolyard.core.output import JsonObject

Item: TypeAlias = tuple[str, str, dict[str, Any], bool, bool]
"""One action of one trajectory: the trajectory's name, the text, the trainer's extra fields, `finish` and `last`.

With `finish` the trajectory is over, so that there is no action and only something to close. With `last` this is its
last action. A bare tuple, because there are many and the caller unpacks each at once.
"""


def _nested(levels: int) -> Any:  # a type
    """The type of a JSON value with at most so many levels."""
    scalar = value = str | int | float | bool | None
    for _ in range(levels):
        value = scalar | list[value] | dict[str, value]  # type: ignore[valid-type]
    return value


_SHALLOW = _nested(6)
"""msgspec would recurse as deep as Python can. Deeper values are left to `decode`, which has a limit."""


class Sent(Struct, forbid_unknown_fields=True):
    """A batch as most trainers write it. `_understood` reads all others, more slowly."""

    trajectory_ids: list[str]
    actions: list[str]
    extra_fields: list[dict[str, _SHALLOW]] | None = None  # type: ignore[valid-type]
    finish: list[bool] = []
    is_last_step: list[bool] = []


_SENT = Decoder(Sent)


def parse(body: bytes) -> list[Item]:
    """The items of a batch. Raises a 422 that says what is wrong with it."""
    try:
        sent = _SENT.decode(body)
    except (ValueError, RecursionError):
        sent = _understood(decode(body))
    names, actions = sent.trajectory_ids, sent.actions
    if not names:
        raise _invalid(["trajectory_ids"], "too_short", "List should have at least 1 item")
    if len(actions) != len(names):
        raise _invalid([], "value_error", "Value error, Length of actions must match trajectory_ids")
    extras = sent.extra_fields
    if extras is None:
        extras = [{} for _ in names]
    if len(extras) != len(names):
        raise _invalid([], "value_error", "Value error, Length of extra_fields must match trajectory_ids")
    said: set[str] = set().union(*extras)
    finish = _flags(sent.finish, "finish", extras, said)
    last = _flags(sent.is_last_step, "is_last_step", extras, said)
    return list(zip(names, actions, extras, finish, last, strict=True))


def _flags(listed: Sequence[bool], key: str, extras: Sequence[JsonObject], said: Collection[str]) -> Sequence[bool]:
    """The flags of all items: set in the list, which may be too short, or in the item's extra fields."""
    missing = len(extras) - len(listed)
    flags = [*listed[: len(extras)], *[False] * missing] if missing else listed
    if key in said:
        flags = [flag or bool(extra.get(key)) for flag, extra in zip(flags, extras, strict=True)]
    return flags


def _understood(value: object) -> Sent:
    """Read a batch in another dialect: with numbers as names, 0 or 1 as flags, null for missing fields."""
    if not isinstance(value, dict):
        raise _invalid(
            [], "model_attributes_type", "Input should be a valid dictionary or object to extract fields from"
        )
    names = [_name(name, i) for i, name in enumerate(_list(value, "trajectory_ids"))]
    actions = _list(value, "actions")
    wrong = next((i for i, action in enumerate(actions) if not isinstance(action, str)), None)
    if wrong is not None:
        raise _invalid(["actions", wrong], "string_type", "Input should be a valid string")
    sent = {key: one for key, one in value.items() if one is not None}
    extras: list[dict[str, Any]] = [{} for _ in names]
    if "extra_fields" in sent:
        extras = [_extra(extra, i) for i, extra in enumerate(_list(sent, "extra_fields"))]
    flags = {
        key: [_flag(key, flag, i) for i, flag in enumerate(_list(sent, key))]
        for key in ("finish", "is_last_step")
        if key in sent
    }
    others = {key: one for key, one in sent.items() if key not in Sent.__struct_fields__}
    return Sent(names, actions, _with_columns(extras, others), **flags)


def _with_columns(extras: list[dict[str, Any]], others: Mapping[str, object]) -> list[dict[str, Any]]:
    """The extra fields of each item, with its values from all other lists of the same length in the request."""
    for key, column in others.items():
        if isinstance(column, list) and len(column) == len(extras):
            extras = [{key: one, **extra} for one, extra in zip(column, extras, strict=True)]
    return extras


def _list(value: dict[str, Any], key: str) -> list[Any]:
    if key not in value:
        raise _invalid([key], "missing", "Field required")
    if not isinstance(found := value[key], list):
        raise _invalid([key], "list_type", "Input should be a valid list")
    return found


def _extra(given: object, i: int) -> dict[str, Any]:
    if given is not None and not isinstance(given, dict):
        raise _invalid(["extra_fields", i], "dict_type", "Input should be a valid dictionary")
    return given or {}


def _flag(key: str, given: object, i: int) -> bool:
    if not isinstance(given, bool | int | None):
        raise _invalid([key, i], "bool_parsing", "Input should be a valid boolean, unable to interpret input")
    return bool(given)


def _name(given: object, i: int) -> str:
    if isinstance(given, str):
        return given
    if isinstance(given, int | float):
        return str(given)
    raise _invalid(["trajectory_ids", i], "string_type", "Input should be a valid string")


def _invalid(where: Sequence[str | int], kind: str, message: str) -> HttpError:
    return HttpError(422, [{"type": kind, "loc": ["body", *where], "msg": message, "input": None}])
