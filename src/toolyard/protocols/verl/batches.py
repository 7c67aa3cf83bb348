"""What a trainer posts: one action for each of several trajectories, in every dialect that trainers speak."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from toolyard.asgi import HttpError, decode
from toolyard.core.output import JsonObject

_KNOWN = frozenset({"trajectory_ids", "actions", "extra_fields"})


@dataclass(frozen=True, slots=True)
class Item:
    """One action of one trajectory."""

    trajectory: str
    text: str
    extra: JsonObject
    """What the trainer says beside the action."""
    finish: bool
    """The trajectory is over: there is no action, only something to clean up."""
    last: bool
    """There will be no action after this one."""


def parse(body: bytes) -> list[Item]:
    """The batch, or a 422 that says what is wrong with it."""
    value = decode(body)
    if not isinstance(value, dict):
        raise _invalid(
            [], "model_attributes_type", "Input should be a valid dictionary or object to extract fields from"
        )
    names = [_name(name, i) for i, name in enumerate(_list(value, "trajectory_ids"))]
    actions = _list(value, "actions")
    for i, action in enumerate(actions):
        if not isinstance(action, str):
            raise _invalid(["actions", i], "string_type", "Input should be a valid string")
    if not names:
        raise _invalid(["trajectory_ids"], "too_short", "List should have at least 1 item")
    if len(actions) != len(names):
        raise _invalid([], "value_error", "Value error, Length of actions must match trajectory_ids")
    extras = _extras(value, len(names))
    finish, last = _flags(value, "finish", extras), _flags(value, "is_last_step", extras)
    return [
        Item(name, action, extra, ended, final)
        for name, action, extra, ended, final in zip(names, actions, extras, finish, last, strict=True)
    ]


def _extras(value: dict[str, Any], count: int) -> Sequence[JsonObject]:
    """The extra fields of each, with whatever lists of the right length stand beside them in the request."""
    given = value.get("extra_fields")
    if given is None:
        extras: list[JsonObject] = [{}] * count
    else:
        extras = []
        for i, extra in enumerate(_list(value, "extra_fields")):
            if extra is not None and not isinstance(extra, dict):
                raise _invalid(["extra_fields", i], "dict_type", "Input should be a valid dictionary")
            extras.append(extra or {})
        if len(extras) != count:
            raise _invalid([], "value_error", "Value error, Length of extra_fields must match trajectory_ids")
    for key in value.keys() - _KNOWN - {"finish", "is_last_step"}:
        if isinstance(column := value[key], list) and len(column) == count:
            extras = [{key: one, **extra} for one, extra in zip(column, extras, strict=True)]
    return extras


def _flags(value: dict[str, Any], key: str, extras: Sequence[JsonObject]) -> Sequence[bool]:
    """Set for an item if either place says so. The list may be shorter than the batch."""
    given = value.get(key)
    listed = [] if given is None else _list(value, key)
    for i, flag in enumerate(listed):
        if not isinstance(flag, bool | int | None):
            raise _invalid([key, i], "bool_parsing", "Input should be a valid boolean, unable to interpret input")
    return [bool(extra.get(key)) or (i < len(listed) and bool(listed[i])) for i, extra in enumerate(extras)]


def _list(value: dict[str, Any], key: str) -> list[Any]:
    if key not in value:
        raise _invalid([key], "missing", "Field required")
    if not isinstance(found := value[key], list):
        raise _invalid([key], "list_type", "Input should be a valid list")
    return found


def _name(given: object, i: int) -> str:
    if isinstance(given, str):
        return given
    if isinstance(given, int | float):
        return str(given)
    raise _invalid(["trajectory_ids", i], "string_type", "Input should be a valid string")


def _invalid(where: Sequence[str | int], kind: str, message: str) -> HttpError:
    return HttpError(422, [{"type": kind, "loc": ["body", *where], "msg": message, "input": None}])
