"""The server to try, and what the cases cannot find out by asking it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Target:
    url: str
    environment: str = ""
    """Empty: the first that the server lists."""
    split: str = ""
    """Empty: the first that has a task."""
    index: int = 0
    tool: str = ""
    """A tool whose call succeeds. Empty: the first that succeeds with made-up arguments."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    action: str = ""
    """For verl-tool: a text that calls a tool."""
    api_key: str = ""
    seconds: float = 10.0
    """How long each answer may take."""
