"""Follows references within a JSON schema, such as `#/$defs/Color`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolyard.core.output import JsonObject


def referred(root: JsonObject, reference: str) -> Any:  # any JSON value
    """The part of `root` that a reference names; None if it names another document, or nothing."""
    found: Any = root if reference.startswith("#") else None
    for step in reference.split("/")[1:]:
        found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
    return found
