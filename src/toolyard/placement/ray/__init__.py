"""Sessions on actors across a Ray cluster: a few actors on each node, with many sessions in each.

Ray places the actors and lists the nodes. Questions and answers do not pass through Ray but over our own connection to
each actor, which costs a fraction of a Ray call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from toolyard.core.errors import ClusterUnavailable

try:
    import ray as _  # noqa: F401  # checked here once, for all files of this folder
except ImportError as missing:
    raise ClusterUnavailable("--placement ray needs the package ray: pip install 'toolyard[ray]'") from missing

from toolyard.placement.base import Placed, SessionSpec
from toolyard.placement.local import LocalPlacement
from toolyard.placement.ray.actor import ActorEnvironment
from toolyard.placement.ray.cluster import Cluster
from toolyard.placement.ray.host import Inside
from toolyard.placement.ray.pool import ActorPool, group_of
from toolyard.placement.worker_side import Served

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RayOptions:
    inside: Inside
    address: str = ""
    """The address of a running cluster; empty to start one on this machine, which ends with the server."""
    actors: int = 0
    """Actors on each node. 0: one for each processor, or one if sessions have processes of their own."""
    cpus: float = 0
    """Processors that Ray reserves for an actor whose environment has no `resources`."""


class RayPlacement:
    is_here = False

    def __init__(self, served: Served, options: RayOptions) -> None:
        self._served = served
        self._options = options
        self._usual = {"CPU": options.cpus}
        self._here = LocalPlacement(served.threads)
        """Runs class methods, which need no session."""
        self._cluster: Cluster | None = None
        self._pool: ActorPool | None = None

    @property
    def processes(self) -> int:
        """How many actors there are. Processes of sessions within actors are not counted."""
        return len(self._pool.actors) if self._pool is not None else 0

    @property
    def problem(self) -> str:
        return self._pool.problem if self._pool is not None else "the cluster has not been joined"

    def prepare(self) -> None:
        """Join the cluster; once there is an event loop, start actors."""
        if self._cluster is None:
            self._cluster = Cluster(self._options.address, self._served, self._options.inside)
        if self._pool is None and _has_loop():
            self._pool = self._new_pool(self._cluster)

    async def place(self, spec: SessionSpec) -> Placed:
        self.prepare()
        assert self._pool is not None
        actor = await self._pool.least_loaded(group_of(spec.environment, self._usual))
        return await ActorEnvironment.start(spec, actor)

    async def ask(self, hook: Callable[..., Any], *args: object) -> Any:
        return await self._here.ask(hook, *args)

    async def stop(self) -> None:
        """End every actor and leave the cluster. A cluster that we started ends."""
        await self._here.stop()
        if self._pool is not None:
            await self._pool.stop()
            self._pool = None
        if self._cluster is not None:
            await self._cluster.leave()
            self._cluster.close()
            self._cluster = None

    def _new_pool(self, cluster: Cluster) -> ActorPool:
        groups = {group_of(environment, self._usual) for environment in self._served.environments.values()}
        each = self._options.actors or (0 if self._options.inside.kind == "local" else 1)
        return ActorPool(cluster, sorted(groups), each)


def _has_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
