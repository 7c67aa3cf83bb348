"""Reads what a person typed for a flag: a name with its value, or a JSON object."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from toolyard.core.errors import ToolyardError


class UsageError(ToolyardError):
    """The command line makes no sense."""


def pairs_of(flag: str, typed: Iterable[str]) -> dict[str, str]:
    """The values of a flag that was typed several times as NAME=VALUE."""
    found = {}
    for text in typed:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise UsageError(f"{flag} is {text!r}; it has the form NAME=VALUE")
        found[name] = value
    return found


def object_of(flag: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{flag} must be a JSON object, and {text!r} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise UsageError(f"{flag} must be a JSON object, {{…}}, and not {text!r}")
    return found
