"""Packs the author's code, to send it to the nodes of a cluster."""

from __future__ import annotations

import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any

from ray import cloudpickle

from toolyard.core.errors import DefinitionError, describe
from toolyard.placement.worker_side import Served

_cloudpickle: Any = cloudpickle  # which has no types

_KNOWN = ("toolyard", "__main__")  # cloudpickle sends the second by value anyway
_INSTALLED = [*site.getsitepackages(), site.getusersitepackages(), *sysconfig.get_paths().values()]


def pack(served: Served) -> bytes:
    """Pickle classes of installed packages by name, and all others by value."""
    with _by_value(_not_installed()):
        try:
            packed: bytes = _cloudpickle.dumps(served)
        except Exception as error:  # the author's: a module or class may hold anything
            names = ", ".join(served.environments)
            raise DefinitionError(
                f"{names} cannot be sent to the cluster: {describe(error)}. Install the package on every node, "
                f"or make in setup() what cannot be sent"
            ) from error
    return packed


def _not_installed() -> list[ModuleType]:
    """The top-level modules that a node is not expected to have."""
    tops = {name: module for name, module in sys.modules.items() if "." not in name and _is_itself(name, module)}
    return [module for name, module in tops.items() if not _is_installed(name, module)]


def _is_itself(name: str, module: object) -> bool:
    """Whether this entry of `sys.modules` is a module under its own name: some libraries put other objects there."""
    return isinstance(module, ModuleType) and module.__name__ == name


def _is_installed(name: str, module: ModuleType) -> bool:
    if name in _KNOWN or name in sys.stdlib_module_names:
        return True
    found = PathFinder.find_spec(name, _INSTALLED)
    return found is not None and found.origin == getattr(module, "__file__", None)


@contextmanager
def _by_value(modules: Iterable[ModuleType]) -> Iterator[None]:
    registered = list(modules)
    for module in registered:
        _cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in registered:
            _cloudpickle.unregister_pickle_by_value(module)
