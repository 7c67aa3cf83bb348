"""What a trainer posts: one action for each of several trajectories, in every dialect that trainers speak."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, TypeAlias

from toolyard.asgi import HttpError, decode
from toolyard.core.output import JsonObject

_KNOWN = frozenset({"trajectory_ids", "actions", "extra_fields", "finish", "is_last_step"})


Item: TypeAlias = tuple[str, str, JsonObject, bool, bool]
"""One action of one trajectory: the trajectory's name, the text, what the trainer says besides; whether the trajectory
is over, so that there is no action, only something to clean up; and whether there will be no action after this one.

A bare tuple, since there are many, and each is taken apart at once.
"""


def parse(body: bytes) -> list[Item]:
    """The batch, or a 422 that says what is wrong with it."""
    value = decode(body)
    if not isinstance(value, dict):
        raise _invalid(
            [], "model_attributes_type", "Input should be a valid dictionary or object to extract fields from"
        )
    names = _list(value, "trajectory_ids")
    if not _only(str, names):
        names = [_name(name, i) for i, name in enumerate(names)]
    actions = _list(value, "actions")
    if not _only(str, actions):
        wrong = next(i for i, action in enumerate(actions) if not isinstance(action, str))
        raise _invalid(["actions", wrong], "string_type", "Input should be a valid string")
    if not names:
        raise _invalid(["trajectory_ids"], "too_short", "List should have at least 1 item")
    if len(actions) != len(names):
        raise _invalid([], "value_error", "Value error, Length of actions must match trajectory_ids")
    extras = _extras(value, len(names))
    said: set[str] = set().union(*extras)
    finish, last = _flags(value, "finish", extras, said), _flags(value, "is_last_step", extras, said)
    return list(zip(names, actions, extras, finish, last, strict=True))


def _extras(value: dict[str, Any], count: int) -> Sequence[JsonObject]:
    """The extra fields of each, with whatever lists of the right length stand beside them in the request."""
    extras: list[JsonObject]
    if value.get("extra_fields") is None:
        extras = [{}] * count
    else:
        extras = _list(value, "extra_fields")
        if not _only(dict, extras):
            extras = [_extra(extra, i) for i, extra in enumerate(extras)]
        if len(extras) != count:
            raise _invalid([], "value_error", "Value error, Length of extra_fields must match trajectory_ids")
    for key, column in value.items():
        if key not in _KNOWN and isinstance(column, list) and len(column) == count:
            extras = [{key: one, **extra} for one, extra in zip(column, extras, strict=True)]
    return extras


def _flags(value: dict[str, Any], key: str, extras: Sequence[JsonObject], said: Collection[str]) -> Sequence[bool]:
    """Set for an item if either place says so. The list may be shorter than the batch."""
    listed = [] if value.get(key) is None else _list(value, key)
    if not _only(bool, listed):
        wrong = next((i for i, flag in enumerate(listed) if not isinstance(flag, bool | int | None)), None)
        if wrong is not None:
            message = "Input should be a valid boolean, unable to interpret input"
            raise _invalid([key, wrong], "bool_parsing", message)
        listed = list(map(bool, listed))
    flags = listed[: len(extras)] + [False] * (len(extras) - len(listed))
    if key in said:
        flags = [flag or bool(extra.get(key)) for flag, extra in zip(flags, extras, strict=True)]
    return flags


def _list(value: dict[str, Any], key: str) -> list[Any]:
    if key not in value:
        raise _invalid([key], "missing", "Field required")
    if not isinstance(found := value[key], list):
        raise _invalid([key], "list_type", "Input should be a valid list")
    return found


def _only(kind: type, values: list[Any]) -> bool:
    """Whether all are of exactly this type, which is the usual case and quickly seen."""
    for value in values:  # noqa: SIM110  # all() with a generator takes longer
        if type(value) is not kind:
            return False
    return True


def _extra(given: object, i: int) -> JsonObject:
    if given is not None and not isinstance(given, dict):
        raise _invalid(["extra_fields", i], "dict_type", "Input should be a valid dictionary")
    return given or {}


def _name(given: object, i: int) -> str:
    if isinstance(given, str):
        return given
    if isinstance(given, int | float):
        return str(given)
    raise _invalid(["trajectory_ids", i], "string_type", "Input should be a valid string")


def _invalid(where: Sequence[str | int], kind: str, message: str) -> HttpError:
    return HttpError(422, [{"type": kind, "loc": ["body", *where], "msg": message, "input": None}])
