"""What of the author's is sent to the nodes of a cluster, and how."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from ray import cloudpickle

from toolyard.core.errors import DefinitionError, describe
from toolyard.placement.worker import Served

_cloudpickle: Any = cloudpickle  # which has no types

_INSTALLED = list(dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib", "platstdlib")))


def pack(served: Served) -> bytes:
    """Installed packages go by name; what is not installed goes as it is, with the files beside it."""
    classes = [*served.environments.values(), *served.toolsets.values()]
    with _by_value(_loose(base for cls in classes for base in cls.__mro__)):
        try:
            packed: bytes = _cloudpickle.dumps(served)
        except Exception as error:  # what an author keeps in a module or class can be anything
            names = ", ".join(served.environments)
            raise DefinitionError(
                f"{names} cannot be sent to the cluster: {describe(error)}. Install the package on every node, "
                f"or make in setup() what cannot be sent"
            ) from error
    return packed


def _loose(classes: Iterable[type]) -> list[ModuleType]:
    """The modules at the top of these classes that are not installed, and those in the same folders."""
    tops = {name: module for name, module in sys.modules.items() if "." not in name}
    named = {cls.__module__.partition(".")[0] for cls in classes}
    loose = {name for name in named if name in tops and not _is_installed(name, tops[name])}
    folders = {folder for name in loose if (folder := _folder(tops[name]))}
    beside = {name for name, module in tops.items() if _folder(module) in folders and not _is_installed(name, module)}
    return [tops[name] for name in loose | beside if name != "__main__"]  # which goes as it is anyway


def _is_installed(name: str, module: ModuleType) -> bool:
    if name == "toolyard" or name in sys.stdlib_module_names:
        return True
    found = PathFinder.find_spec(name, _INSTALLED)
    return found is not None and found.origin == getattr(module, "__file__", None)


def _folder(module: ModuleType) -> Path | None:
    """Where it lies; of a package, where its folder does."""
    file = getattr(module, "__file__", None)
    if file is None:
        return None
    return Path(file).parents[1] if hasattr(module, "__path__") else Path(file).parent


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
