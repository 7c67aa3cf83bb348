"""A Ray cluster, as the server sees it: through the keeper, a process that asks Ray on the server's behalf."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from toolyard.core.errors import ClusterUnavailable, describe
from toolyard.placement.ray.host import JOINED, Errand, Inside
from toolyard.placement.ray.sending import pack
from toolyard.placement.threads import Threads
from toolyard.placement.worker_side import Served
from toolyard.rpc import PeerLost, RpcConnection

_ANSWER_SECONDS = 5.0
_LEAVE_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class ClusterNode:
    """A machine of the cluster that is alive."""

    id: str
    address: str
    resources: Mapping[str, float]

    def holds(self, resources: Mapping[str, float]) -> int:
        """How many actors with these resources would fit on an empty node. A node without processors takes none."""
        if not self.resources.get("CPU"):
            return 0
        fits = [int(self.resources.get(name, 0) / amount) for name, amount in resources.items() if amount]
        return min(fits, default=sys.maxsize)


class ListeningActor(NamedTuple):
    """An actor that waits for our connection."""

    actor: str
    address: str
    port: int
    pid: int


class Cluster:
    def __init__(self, address: str, served: Served, inside: Inside) -> None:
        self._errand = pickle.dumps(Errand(address, pack(served), inside))
        self._threads = Threads(2)
        self._looking: asyncio.Future[Any] | None = None
        self._sock: socket.socket | None = None
        """Our end of the connection to the keeper; None if there is no keeper now."""
        self._connection: RpcConnection | None = None
        """The same connection, once it was used."""
        self._problem = ""
        """Why the cluster could not be joined when that was tried last."""
        self._join()

    async def nodes(self) -> Sequence[ClusterNode]:
        """The nodes that are alive. While one question is unanswered, this asks no other."""
        if self._looking is None:
            self._looking = (await self._opened()).ask("nodes")
        await asyncio.wait((self._looking,), timeout=_ANSWER_SECONDS)
        if not self._looking.done():
            raise ClusterUnavailable("the Ray cluster does not answer")
        looking, self._looking = self._looking, None
        return [ClusterNode(*node) for node in _answer(looking)]

    async def open(self, node: ClusterNode, resources: Mapping[str, float], key: bytes) -> ListeningActor:
        """Ask for an actor on that node, and wait until it listens for a connection that proves to have the key."""
        asked = (await self._opened()).ask("open", node.id, resources, key)
        try:
            await asyncio.wait((asked,))
        except asyncio.CancelledError:
            asked.stop()
            raise
        return ListeningActor(*_answer(asked))

    async def kill(self, actor: str) -> None:
        if self._connection is not None:
            with contextlib.suppress(PeerLost):  # all actors end with the keeper
                await self._connection.ask("kill", actor)

    async def rejoin(self) -> None:
        """Join again, with a new keeper: a cluster that does not answer may have been started anew."""
        self._process.kill()
        await self.leave()
        await self._threads.run(self._join)

    async def leave(self) -> None:
        """Leave the cluster. A cluster that we started ends."""
        if self._connection is not None:
            self._connection.close()
        elif self._sock is not None:
            self._sock.close()
        self._sock = self._connection = self._looking = None
        await self._threads.run(self._bury, always=True)

    def close(self) -> None:
        self._threads.close()

    def _join(self) -> None:
        """Start a keeper, which may take some seconds. The first time is before the server answers requests."""
        try:
            said = self._start_keeper()
        except OSError as error:  # as when this process can open no more files
            said = f"cannot start the process that asks Ray: {describe(error)}"
        self._problem = "" if said == JOINED else said or "cannot join the Ray cluster: see what was written to stderr"
        if self._problem:
            raise ClusterUnavailable(self._problem)

    def _start_keeper(self) -> str:
        """Return what it says: that it has joined, or why it cannot."""
        ours, theirs = socket.socketpair()
        command = [sys.executable, "-m", "toolyard.placement.ray.keeper", str(theirs.fileno())]
        try:
            with theirs:
                self._process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # an interrupt from the terminal is for the server
                )
            with self._process.stdin as stdin, self._process.stdout as stdout:  # type: ignore[union-attr]  # both are pipes
                with contextlib.suppress(BrokenPipeError):
                    stdin.write(self._errand)
                    stdin.close()
                said = stdout.read().decode().strip()
        except BaseException:
            ours.close()
            raise
        if said == JOINED:
            self._sock = ours
        else:
            ours.close()
            self._bury()
        return said

    async def _opened(self) -> RpcConnection:
        if self._sock is None:
            raise ClusterUnavailable(self._problem)
        if self._connection is None:
            self._connection = await RpcConnection.on(self._sock)
        return self._connection

    def _bury(self) -> None:
        try:
            self._process.wait(_LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _answer(asked: asyncio.Future[Any]) -> Any:
    try:
        return asked.result()
    except PeerLost as lost:
        raise ClusterUnavailable(f"the process that asks Ray is lost: {lost}") from None
