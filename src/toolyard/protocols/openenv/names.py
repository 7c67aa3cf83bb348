"""Translates names of tools for OpenEnv, which reserves four."""

from __future__ import annotations

from toolyard.core.environment import Environment

_KEPT = frozenset({"reset", "step", "state", "close"})
_PREFIX = "env_"


def theirs(name: str) -> str:
    return _PREFIX + name if name in _KEPT else name


def ours(name: str, environment: type[Environment]) -> str:
    """The tool that a client means. If a tool is really called `env_reset`, the name means that tool."""
    without = name.removeprefix(_PREFIX)
    return without if without in _KEPT and name not in environment._definition.tools else name
