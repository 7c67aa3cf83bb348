"""Classes written for other frameworks, served unmodified."""

from __future__ import annotations

from collections.abc import Iterable

from toolyard.adapters import ors
from toolyard.core.environment import Environment, Toolset
from toolyard.core.errors import DefinitionError


def is_environment(value: object) -> bool:
    ours = isinstance(value, type) and issubclass(value, Environment) and value is not Environment
    return ours or ors.is_environment(value)


def is_toolset(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Toolset) and value is not Toolset


def session_toolsets(environments: Iterable[type]) -> list[type]:
    """Toolsets that clients of these environments may ask for by name without our being told of them."""
    return ors.session_toolsets(environments)


def adapt(cls: type) -> type[Environment]:
    """An environment of ours as it is; another framework's as a class of ours that drives it."""
    if isinstance(cls, type) and issubclass(cls, Environment):
        return cls
    if ors.is_environment(cls):
        return ors.adapt(cls)
    raise DefinitionError(f"{cls!r} is not an environment: it must extend toolyard.Environment")
