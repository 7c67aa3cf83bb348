"""The keeper: our process that is part of a Ray cluster. It asks Ray for nodes and actors, on behalf of the server.

It is a process of its own because Ray ends every process that has joined a cluster when the cluster's head stays away
or comes back as another one. The server survives that, and so does every actor that Ray does not end.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import socket
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from toolyard.core.errors import ClusterUnavailable, describe
from toolyard.placement.ray.host import JOINED, RAYLET_GONE, Errand, HostActor
from toolyard.rpc import RpcConnection, TheirQuestion

log = logging.getLogger("toolyard.placement")

_ray: Any = ray  # which has types for some of its functions only

_PIECE, _SMALL = 64 * 2**10, 4 * 2**20
_REACH_SECONDS = 5.0
_JOIN_SECONDS = 15.0
"""Time to join a running cluster. Ray itself would wait for minutes if the cluster ends meanwhile."""
_OURS = ("", "local")


class ClusterKeeper:
    def __init__(self, errand: Errand) -> None:
        _join(errand.address)
        self._here = ray.get_runtime_context().get_node_id()
        """The node by whose raylet this process has joined. Without that raylet it gets no actor, on any node."""
        self._served = _pieces(errand.served)
        self._inside = errand.inside
        self._actor = ray.remote(HostActor)
        self._handles: dict[str, Any] = {}
        self._doing: Mapping[str, Callable[..., Any]] = {"nodes": self._nodes, "open": self._open, "kill": self._kill}

    async def live(self, sock: socket.socket) -> None:
        """Serve until the server hangs up. A cluster that was started here ends then."""
        await (await RpcConnection.on(sock, self._answer)).lost
        ray.shutdown()

    async def _answer(self, question: TheirQuestion) -> Any:
        try:
            return await self._doing[question.what](*question.about)
        except ClusterUnavailable:
            raise
        except Exception as error:  # Ray's; its cause is what was raised in an actor
            raise ClusterUnavailable(describe(getattr(error, "cause", None) or error).partition("\n")[0]) from None

    async def _nodes(self) -> Sequence[Any]:
        """The nodes that are alive. A cluster without its head never answers."""
        nodes = await asyncio.to_thread(_ray.nodes)
        if not any(node["NodeID"] == self._here and _is_there(node) for node in nodes):
            raise ClusterUnavailable(RAYLET_GONE)
        return [[node["NodeID"], node["NodeManagerAddress"], node["Resources"]] for node in nodes if node["Alive"]]

    async def _open(self, node: str, resources: dict[str, float], key: bytes) -> Sequence[Any]:
        """Start an actor on that node, and wait until it listens. It ends with this process, or with the node."""
        handle = await asyncio.to_thread(self._create, node, resources)
        try:
            opened = await handle.open.remote(key, *self._served)
        except BaseException:
            ray.kill(handle)
            raise
        self._handles[handle._actor_id.hex()] = handle
        return [handle._actor_id.hex(), *opened]

    async def _kill(self, actor: str) -> None:
        """Kill an actor. Ignore one that has ended, or that an earlier keeper started."""
        if (handle := self._handles.pop(actor, None)) is not None:
            await asyncio.to_thread(ray.kill, handle)

    def _create(self, node: str, resources: dict[str, float]) -> Any:
        return self._actor.options(
            num_cpus=resources.pop("CPU", 0),
            num_gpus=resources.pop("GPU", 0),
            memory=resources.pop("memory", None),
            resources=resources,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            max_restarts=0,
        ).remote(self._inside)


def _pieces(served: bytes) -> Sequence[Any]:
    """Cut `served` into pieces so small that Ray passes them on directly, unless it is too large in all.

    Otherwise it goes through Ray's store, which may take a while: the nearest copy may be on a node that is gone, which
    Ray does not know yet.
    """
    if len(served) > _SMALL:
        return [ray.put(served)]
    return [served[start : start + _PIECE] for start in range(0, len(served), _PIECE)]


def _is_there(node: Mapping[str, Any]) -> bool:
    """Whether the raylet of this node runs. Its socket shows that at once; the cluster takes half a minute."""
    with socket.socket(socket.AF_UNIX) as raylet:
        return bool(node["Alive"]) and raylet.connect_ex(node["RayletSocketName"]) == 0


def _join(address: str) -> None:
    here: Any = {"include_dashboard": False} if address in _OURS else {}
    if here:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        _check_reachable(address)
        ray.init(address or "local", log_to_driver=False, logging_level=logging.ERROR, **here)
    except (OSError, ValueError, RuntimeError) as error:
        raise ClusterUnavailable(f"cannot join the Ray cluster {address!r}: {describe(error)}") from error


def _check_reachable(address: str) -> None:
    """Fail at once if nothing listens there: Ray itself would try for minutes."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if colon:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_SECONDS).close()


def _give_up(address: str, output: TextIO) -> None:
    """End the process, because joining cannot be interrupted."""
    print(f"cannot join the Ray cluster {address!r}: it took over {_JOIN_SECONDS:g} s", file=output, flush=True)
    os._exit(1)


def main(end: int) -> None:
    """Read the errand, join, write whether that worked, then serve the connection at descriptor `end`."""
    output = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Ray prints messages there that the server must not read
    errand: Errand = pickle.load(sys.stdin.buffer)
    late = threading.Timer(_JOIN_SECONDS, _give_up, (errand.address, output))
    late.daemon = True
    if errand.address not in _OURS:
        late.start()
    try:
        keeper = ClusterKeeper(errand)
    except ClusterUnavailable as error:
        print(error, file=output, flush=True)
        os._exit(1)
    late.cancel()
    print(JOINED, file=output, flush=True)
    output.close()
    try:
        asyncio.new_event_loop().run_until_complete(keeper.live(socket.socket(fileno=end)))
    except BaseException:
        log.exception("the keeper of the cluster ends")
    finally:
        os._exit(0)  # threads may wait for an answer of Ray's for ever


if __name__ == "__main__":
    main(int(sys.argv[1]))
