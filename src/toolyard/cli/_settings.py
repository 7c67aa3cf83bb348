"""Settings as flags."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

from toolyard.settings import SIZES, Settings, flag_of, given_kind, is_size, size, size_text, variable_of


def add_settings(parser: argparse.ArgumentParser) -> None:
    """One flag for each setting."""
    group = parser.add_argument_group("settings", "each may also be set by a variable, for instance TOOLYARD_PORT")
    for knob in dataclasses.fields(Settings):
        add_knob(group, knob, flag_of(knob.name))


@cache
def _kinds() -> dict[str, Any]:
    """The type of each setting. Asking costs as much for one as for all of them."""
    return get_type_hints(Settings)


def add_knob(parser: argparse._ActionsContainer, knob: dataclasses.Field[Any], flag: str) -> None:
    """A flag for one setting. Its default is None, so that the variable or the setting's default decides."""
    shown = f"{knob.default:g}" if isinstance(knob.default, float) else str(knob.default)
    if is_size(knob.name):
        shown = size_text(int(shown))
    default = "" if knob.default in ("", (), None) else f" [{shown}]"
    parser.add_argument(
        flag,
        dest=knob.name,
        default=None,
        help=knob.metadata["help"] + default,
        **_as_argument(knob.name, _kinds()[knob.name]),
    )


def _as_argument(name: str, kind: Any) -> dict[str, Any]:
    kind = given_kind(kind)
    if kind is bool:
        return {"action": argparse.BooleanOptionalAction}
    if get_origin(kind) is tuple:
        return {"action": "append", "metavar": name.upper()}
    if get_origin(kind) is Literal:
        return {"choices": get_args(kind)}
    return {"type": _number(name, kind), "metavar": variable_of(name).rpartition("_")[2]}


def _number(name: str, kind: Any) -> Callable[[str], Any]:
    """Reads what is typed for a setting, or says what it must be."""
    wanted = SIZES if is_size(name) else {int: "a whole number", float: "a number"}.get(kind, "text")
    read = size if is_size(name) else kind

    def typed(text: str) -> Any:
        try:
            return read(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"it is {text!r}; it must be {wanted}") from None

    return typed
