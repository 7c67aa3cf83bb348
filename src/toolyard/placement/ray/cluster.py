"""The connection to a Ray cluster."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from toolyard.core.errors import ClusterUnavailable, describe
from toolyard.placement.ray.host import HostActor, Inside
from toolyard.placement.ray.sending import pack
from toolyard.placement.threads import Threads
from toolyard.placement.worker import Served

_ray: Any = ray  # which has types for some of its functions only

_SMALL = 64 * 2**10
_REACH_SECONDS = 5.0
_ANSWER_SECONDS = 5.0
_LEAVE_SECONDS = 20.0
_HEADLESS_SECONDS = 1_000_000
"""Ray would end this process when the head of the cluster has been away for a minute."""
_OURS = ("", "local")


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
    """One that this process is part of, and what is served there. Ray may take its time, so it is asked in threads."""

    def __init__(self, address: str, served: Served, inside: Inside) -> None:
        self._address = address
        self._served = pack(served)
        self._inside = inside
        self._threads = Threads(8)
        self._looking: asyncio.Future[list[Node]] | None = None
        self._is_ours = not ray.is_initialized()
        """For us to leave: not if this process had joined it before."""
        self._join()

    async def nodes(self) -> list[Node]:
        """Those that are alive. Without its head, a cluster never answers: then it is not asked again until it does."""
        if self._looking is None:
            self._looking = asyncio.ensure_future(self._threads.run(_nodes))
        await asyncio.wait((self._looking,), timeout=_ANSWER_SECONDS)
        if not self._looking.done():
            raise ClusterUnavailable("the cluster does not answer")
        looking, self._looking = self._looking, None
        return looking.result()

    async def create(self, node: Node, resources: Mapping[str, float]) -> Any:
        """Ask for an actor on that node; Ray's handle of it. It ends with this process, or with the node."""
        return await self._threads.run(partial(self._create, node, {**resources}))

    async def kill(self, handle: Any) -> None:
        """Nothing, if it has ended already."""
        await self._threads.run(partial(_kill, handle), always=True)

    async def rejoin(self) -> None:
        """A cluster that answers no more may have been started anew."""
        if not self._is_ours:
            raise ClusterUnavailable("the cluster does not answer, and it is not for us to join it again")
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        await self._threads.run(self._leave)
        await self._threads.run(self._join)

    async def leave(self) -> None:
        """A cluster that was started here ends."""
        leaving = asyncio.ensure_future(self._threads.run(self._leave, always=True))
        await asyncio.wait((leaving,), timeout=_LEAVE_SECONDS)
        self._threads.close()

    def _join(self) -> None:
        if self._is_ours:
            _init(self._address)
        # What is small goes with each actor: a node that is gone, and not yet known to be, may have the nearest copy.
        self._packed = self._served if len(self._served) <= _SMALL else ray.put(self._served)
        self._actor = ray.remote(HostActor)

    def _leave(self) -> None:
        if self._is_ours:
            ray.shutdown()

    def _create(self, node: Node, resources: dict[str, float]) -> Any:
        return self._actor.options(
            num_cpus=resources.pop("CPU", 0),
            num_gpus=resources.pop("GPU", 0),
            memory=resources.pop("memory", None),
            resources=resources,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
            max_restarts=0,
        ).remote(self._packed, self._inside)


def _nodes() -> list[Node]:
    return [
        Node(node["NodeID"], node["NodeManagerAddress"], node["Resources"]) for node in _ray.nodes() if node["Alive"]
    ]


def _kill(handle: Any) -> None:
    if ray.is_initialized():  # otherwise Ray would start a cluster to look for it
        ray.kill(handle)


def _init(address: str) -> None:
    here: Any = {"include_dashboard": False} if address in _OURS else {}
    os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", str(_HEADLESS_SECONDS))
    if here:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        _check_reachable(address)
        with _signals_kept():
            ray.init(address or "local", log_to_driver=False, logging_level=logging.ERROR, **here)
    except (OSError, ValueError, RuntimeError) as error:
        raise ClusterUnavailable(f"cannot join the Ray cluster {address!r}: {describe(error)}") from error


def _check_reachable(address: str) -> None:
    """Ray itself would try for minutes."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if colon:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_SECONDS).close()


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
