"""The code in an actor of the cluster: sessions in some placement, controlled over a connection. Ray starts it."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import threading
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import ray
import uvloop
from ray import cloudpickle

from toolyard.placement.fork_server import ProcessLimits
from toolyard.placement.local import LocalPlacement
from toolyard.placement.process import PoolPlacement, ProcessPlacement
from toolyard.placement.ray.handshake import admit, listen
from toolyard.placement.worker_side import Hosting, InnerPlacement, Served
from toolyard.rpc import RpcConnection

_ray: Any = ray  # which has types for some of its functions only

log = logging.getLogger("toolyard.placement")

Kind: TypeAlias = Literal["local", "process", "pool"]

_WAIT_SECONDS = 60.0
"""How long the host waits for a connection of the server that asked for it."""
_END_SECONDS = 10.0
"""How long the teardowns of sessions may take when the server is gone."""


@dataclass(frozen=True, slots=True)
class Inside:
    """The placement within an actor."""

    kind: Kind
    limits: ProcessLimits
    pool_processes: int = 0

    def placement(self, served: Served) -> InnerPlacement:
        match self.kind:
            case "local":
                return LocalPlacement(served.threads)
            case "process":
                return ProcessPlacement(served, self.limits)
            case "pool":
                return PoolPlacement(served, self.limits, size=self.pool_processes)


@dataclass(frozen=True, slots=True)
class Errand:
    """The first message to the keeper: which cluster to join, and what its actors should run."""

    address: str
    served: bytes
    inside: Inside


JOINED = "joined"
"""The keeper writes this when it has joined. Otherwise it writes why it could not."""
RAYLET_GONE = "the raylet by which the server had joined Ray has ended"
"""The keeper answers this when it can no longer ask the cluster for actors."""


class HostActor:
    """The actor, as Ray sees it."""

    def __init__(self, inside: Inside) -> None:
        self._inside = inside

    def open(self, key: bytes, *packed: bytes) -> tuple[str, int, int]:
        """Load the environments, and listen for the server, which has this key. Return address, port and pid."""
        served: Served = cloudpickle.loads(b"".join(packed))
        listener = listen(_ray.util.get_node_ip_address())
        # Not in a thread of Ray's: the guard of a fork server ends with the thread that forked it.
        threading.Thread(target=_live, args=(served, self._inside, listener, key), name="toolyard", daemon=True).start()
        address, port, *_ = listener.getsockname()
        return address, port, os.getpid()


def _live(served: Served, inside: Inside, listener: socket.socket, key: bytes) -> None:
    """Serve until the server hangs up, then end this process."""
    try:
        placement = inside.placement(served)
        placement.prepare()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(ActorHosting(served, placement).serve(listener, key))
    except BaseException:
        log.exception("the host ends")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


class ActorHosting(Hosting):
    """Hosts the sessions of an actor. They may live in further processes."""

    async def serve(self, listener: socket.socket, key: bytes) -> None:
        self._served.enter()
        async with asyncio.timeout(_WAIT_SECONDS):
            sock = await admit(listener, key)
        listener.close()
        await (await RpcConnection.on(sock, self._answer)).lost
        if ending := [asyncio.ensure_future(placed.teardown()) for placed in self._placed.values()]:
            await asyncio.wait(ending, timeout=_END_SECONDS)
        await self._placement.stop()
