"""The connection to a Ray cluster, and what of the author's is sent there."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import sysconfig
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import ray
from ray import cloudpickle
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from toolyard.core.errors import ClusterUnavailable, DefinitionError, describe
from toolyard.placement.ray.host import HostActor, Inside
from toolyard.placement.worker import Served

_ray: Any = ray  # which has types for some of its functions only
_cloudpickle: Any = cloudpickle

_SMALL = 64 * 2**10
_REACH_SECONDS = 5.0
_OURS = ("", "local")
_INSTALLED = list(dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib", "platstdlib")))


@dataclass(frozen=True, slots=True)
class Node:
    """A machine of the cluster that is alive."""

    id: str
    address: str
    resources: Mapping[str, float]

    def holds(self, resources: Mapping[str, float]) -> int:
        """How many actors that need so much would fit, if it were empty. A node without processors is for no work."""
        if not self.resources.get("CPU"):
            return 0
        fits = [int(self.resources.get(name, 0) / amount) for name, amount in resources.items() if amount]
        return min(fits, default=sys.maxsize)


class Cluster:
    """One that this process is part of, and what is served there. Asking it takes time: not on the event loop."""

    def __init__(self, address: str, served: Served, inside: Inside) -> None:
        packed = pack(served)
        self._is_ours = _join(address)
        # What is small goes with each actor: a node that is gone, and not yet known to be, may have the nearest copy.
        self._packed = packed if len(packed) <= _SMALL else ray.put(packed)
        self._inside = inside
        self._actor = ray.remote(HostActor)

    def nodes(self) -> list[Node]:
        """Those that are alive."""
        return [
            Node(node["NodeID"], node["NodeManagerAddress"], node["Resources"])
            for node in _ray.nodes()
            if node["Alive"]
        ]

    def create(self, node: Node, resources: Mapping[str, float]) -> Any:
        """Ask for an actor on that node; Ray's handle of it. It ends with this process, or with the node."""
        more = {**resources}
        return self._actor.options(
            num_cpus=more.pop("CPU", 0),
            num_gpus=more.pop("GPU", 0),
            memory=more.pop("memory", None),
            resources=more,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
            max_restarts=0,
        ).remote(self._packed, self._inside)

    def kill(self, handle: Any) -> None:
        """Nothing, if it has ended already."""
        if ray.is_initialized():  # otherwise Ray would start a cluster to look for it
            ray.kill(handle)

    def leave(self) -> None:
        """A cluster that was started here ends."""
        if self._is_ours:
            ray.shutdown()


def _join(address: str) -> bool:
    """Whether it is for us to leave: not if this process had joined one before."""
    if ray.is_initialized():
        return False
    here: Any = {"include_dashboard": False} if address in _OURS else {}
    if here:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        _check_reachable(address)
        with _signals_kept():
            ray.init(address or "local", log_to_driver=False, logging_level=logging.ERROR, **here)
    except (OSError, ValueError, RuntimeError) as error:
        raise ClusterUnavailable(f"cannot join the Ray cluster {address!r}: {describe(error)}") from error
    return True


def _check_reachable(address: str) -> None:
    """Ray itself would try for minutes."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if colon:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_SECONDS).close()


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


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray would exit on SIGTERM; a server drains first."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
