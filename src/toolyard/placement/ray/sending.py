"""What of the author's is sent to the nodes of a cluster, and how."""

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

_KNOWN = ("toolyard", "__main__")  # the second goes as it is anyway
_INSTALLED = [*site.getsitepackages(), site.getusersitepackages(), *sysconfig.get_paths().values()]


def pack(served: Served) -> bytes:
    """What belongs to an installed package goes by name, and everything else as it is."""
    with _by_value(_not_installed()):
        try:
            packed: bytes = _cloudpickle.dumps(served)
        except Exception as error:  # what an author keeps in a module or class can be anything
            names = ", ".join(served.environments)
            raise DefinitionError(
                f"{names} cannot be sent to the cluster: {describe(error)}. Install the package on every node, "
                f"or make in setup() what cannot be sent"
            ) from error
    return packed


def _not_installed() -> list[ModuleType]:
    """The modules at the top that a node cannot be expected to have."""
    tops = {name: module for name, module in sys.modules.items() if "." not in name and _is_itself(name, module)}
    return [module for name, module in tops.items() if not _is_installed(name, module)]


def _is_itself(name: str, module: object) -> bool:
    """Some put other things there, or the same under two names."""
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
