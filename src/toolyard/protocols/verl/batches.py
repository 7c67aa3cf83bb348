"""What a trainer posts: one action for each of several trajectories, in every dialect that trainers speak."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NotRequired, TypeAlias, cast

from pydantic import ConfigDict, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from toolyard.asgi import HttpError, decode
from toolyard.core.output import JsonObject

Item: TypeAlias = tuple[str, str, dict[str, Any], bool, bool]
"""One action of one trajectory: the trajectory's name, the text, what the trainer says besides; whether the trajectory
is over, so that there is no action, only something to clean up; and whether there will be no action after this one.

A bare tuple, since there are many, and each is taken apart at once.
"""


class Sent(TypedDict):
    """A batch as most trainers write it. There may be other columns, which go to the extra fields."""

    __pydantic_config__ = ConfigDict(extra="allow", strict=True)  # type: ignore[misc]

    trajectory_ids: list[str]
    actions: list[str]
    extra_fields: NotRequired[list[dict[str, Any]]]
    finish: NotRequired[list[bool]]
    is_last_step: NotRequired[list[bool]]


_SENT = TypeAdapter(Sent).validator
_KNOWN = frozenset(Sent.__annotations__)


def parse(body: bytes) -> list[Item]:
    """The batch, or a 422 that says what is wrong with it."""
    try:
        sent: Sent = _SENT.validate_json(body)
    except ValidationError:
        sent = _understood(decode(body))
    names, actions = sent["trajectory_ids"], sent["actions"]
    if not names:
        raise _invalid(["trajectory_ids"], "too_short", "List should have at least 1 item")
    if len(actions) != len(names):
        raise _invalid([], "value_error", "Value error, Length of actions must match trajectory_ids")
    extras = _extras(sent, len(names))
    said: set[str] = set().union(*extras)
    finish = _flags(sent.get("finish", ()), "finish", extras, said)
    last = _flags(sent.get("is_last_step", ()), "is_last_step", extras, said)
    return list(zip(names, actions, extras, finish, last, strict=True))


def _extras(sent: Sent, count: int) -> Sequence[dict[str, Any]]:
    """The extra fields of each, with whatever lists of the right length stand beside them in the request."""
    extras: Sequence[dict[str, Any]] = sent["extra_fields"] if "extra_fields" in sent else [{} for _ in range(count)]
    if len(extras) != count:
        raise _invalid([], "value_error", "Value error, Length of extra_fields must match trajectory_ids")
    if sent.keys() <= _KNOWN:
        return extras
    for key, column in sent.items():
        if key not in _KNOWN and isinstance(column, list) and len(column) == count:
            extras = [{key: one, **extra} for one, extra in zip(column, extras, strict=True)]
    return extras


def _flags(listed: Sequence[bool], key: str, extras: Sequence[JsonObject], said: Collection[str]) -> Sequence[bool]:
    """Set for an item if either place says so. The list may be shorter than the batch."""
    missing = len(extras) - len(listed)
    flags = [*listed[: len(extras)], *[False] * missing] if missing else listed
    if key in said:
        flags = [flag or bool(extra.get(key)) for flag, extra in zip(flags, extras, strict=True)]
    return flags


def _understood(value: object) -> Sent:
    """A batch in another dialect: names that are numbers, flags that are 0 or 1, null for what is not there."""
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
    if "extra_fields" in sent:
        sent["extra_fields"] = [_extra(extra, i) for i, extra in enumerate(_list(sent, "extra_fields"))]
    for key in ("finish", "is_last_step"):
        if key in sent:
            sent[key] = [_flag(key, flag, i) for i, flag in enumerate(_list(sent, key))]
    return cast(Sent, {**sent, "trajectory_ids": names, "actions": actions})


def _list(value: dict[str, Any], key: str) -> list[Any]:
    if key not in value:
        raise _invalid([key], "missing", "Field required")
    if not isinstance(found := value[key], list):
        raise _invalid([key], "list_type", "Input should be a valid list")
    return found


def _extra(given: object, i: int) -> JsonObject:
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
