"""Programs without any walls: only for development where there is nothing better.

Programs run as the server's own user, can read and change everything that this user can, and use the network. Each
sandbox has only its own directory and environment. The limits are those that the kernel keeps for a process, and those
that the server checks now and then.

Ending a program ends its process group and, on Linux, everything that still descends from it or has its environment. A
process that leaves the group, loses its parents and clears its environment escapes; on other systems leaving the group
is enough. If the server is killed, its programs live on until the next server finds them by their environment.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from toolyard.sandboxes.base import ENVIRONMENT, Limits, Missing, Profile, Report
from toolyard.sandboxes.process_based import origin
from toolyard.sandboxes.process_based.backend import RoomBackend
from toolyard.sandboxes.process_based.host_room import HostRoom
from toolyard.sandboxes.process_based.launcher import environment, kill, processes, relieve, tree
from toolyard.sandboxes.process_based.programs import HelperProcess, start
from toolyard.sandboxes.process_based.room import resources_of, script
from toolyard.sandboxes.process_based.sandbox import RoomSandbox
from toolyard.sandboxes.view import View

_log = logging.getLogger("toolyard.sandbox")

_MARK = "TOOLYARD_SANDBOX"
"""A variable in the environment of each program: its sandbox and its own name."""
_ROUNDS_MOST, _ROUND_SECONDS = 100, 0.002


class SubprocessBackend(RoomBackend):
    name = "subprocess"

    async def start(self) -> Report:
        _log.warning(
            "SANDBOXES DO NOT ISOLATE: the subprocess backend runs untrusted code as this user, with this user's files "
            "and network. It is for development only."
        )
        await asyncio.to_thread(_sweep)
        return self.report()

    async def open(self, limits: Limits | None = None, *, profile: Profile = "plain") -> RoomSandbox:
        self._view.check(profile)
        limits = limits or Limits()
        return self._sandbox_in(SubprocessRoom(origin.make_directory(self.name), self._view), limits, profile)

    def report(self) -> Report:
        nothing = "the subprocess backend isolates nothing"
        layers = dict.fromkeys(("files", "network", "processes", "user", "system calls"), "none")
        layers |= {"memory": "data of each process, watched", "number of processes": "none", "disk": "none"}
        return Report(self.name, "L0", layers, [Missing("isolation", nothing, "use the native backend")])


class SubprocessRoom(HostRoom):
    def __init__(self, directory: Path, view: View, owner: int = -1) -> None:
        super().__init__(directory, owner)
        self.python: Sequence[str] = (view.python.executable, "-I")
        self._temporary = self._make("tmp")
        if owner >= 0:
            directory.chmod(0o711)
        places = {
            "PATH": view.path([f"{view.python.prefix}/bin"]),
            "HOME": str(self._work),
            "TMPDIR": str(self._temporary),
        }
        self._environment = {**ENVIRONMENT, **places}

    async def start(
        self, argv: Sequence[str], *, env: Mapping[str, str], limits: Limits, lasting: bool = False
    ) -> HelperProcess:
        name = self._new_name()
        orders = {
            "do": "exec",
            "env": self._marked(env, name),
            "limits": resources_of(limits, lasting=lasting, each_process=True, processes=False),
        }
        return start(
            [*script((*self.python, "-S"), "process_based/launcher", repr(orders)), *argv],
            env=self._environment,
            output_bytes=limits.output_bytes,
            name=name,
            cwd=str(self._work),
        )

    def _new_name(self) -> str:
        return f"{self._directory.name}/{secrets.token_hex(8)}"

    def _marked(self, env: Mapping[str, str], name: str) -> Mapping[str, str]:
        """An environment by which to find processes that a program leaves behind."""
        return {**env, _MARK: name}

    async def interrupt(self, program: HelperProcess) -> None:
        if not program.ended.done():
            os.kill(program.pid, signal.SIGINT)

    async def relieve(self, program: HelperProcess, since: float, first: int = 0) -> None:
        if not program.ended.done():
            below = tree(program.pid)
            relieve([*below, *_marked(program.name).difference(below)], since, first)

    async def kill(self, program: HelperProcess) -> None:
        below = tree(program.pid)[1:] if not program.ended.done() else []
        program.kill_group()
        for pid in below:
            kill(pid, signal.SIGKILL)
        await end_marked(program.name)

    async def close(self) -> None:
        await end_marked(self._directory.name)
        await super().close()


async def end_marked(name: str) -> None:
    """End processes with this name in their environment, until none is left."""
    for _ in range(_ROUNDS_MOST):
        marked = _marked(name)
        if not marked:
            break
        for pid in marked:
            kill(pid, signal.SIGKILL)
        await asyncio.sleep(_ROUND_SECONDS)


def _marked(name: str) -> set[int]:
    wanted = f"{_MARK}={name}".encode()
    return {pid for pid in processes() if wanted in environment(pid)}


def _sweep() -> None:
    """Remove what servers that were killed left behind."""
    for directory in origin.forsaken_directories(SubprocessBackend.name):
        asyncio.run(end_marked(directory.name))
        origin.remove(directory)
