"""Sandboxes without namespaces, for hosts that forbid them, as most containers do: level L2.

Each program has a warden, one of our processes, which puts it behind three walls and ends everything that it started.
Landlock restricts the files that it may use and keeps it from inspecting or signalling other processes. A seccomp
filter denies it sockets and everything else that all programs of a host share. It has no capabilities, and if the
server is root, each sandbox has its own user. Programs can see that other processes exist.

There is no cgroup. RLIMIT_DATA limits the memory of each process, and the server watches the memory of all together.
Only the size of each file is limited, not the size of the workspace. If the server is killed, wardens end their
programs, and the next server that starts removes the directories.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from toolyard.core.errors import SandboxLost, SandboxUnavailable
from toolyard.sandboxes import host
from toolyard.sandboxes.base import Limits, Missing, Profile, Report
from toolyard.sandboxes.native.helper_argv import command
from toolyard.sandboxes.process_based import origin
from toolyard.sandboxes.process_based.backend import RoomBackend
from toolyard.sandboxes.process_based.launcher import WALLED, kill, processes, relieve, tree, used
from toolyard.sandboxes.process_based.programs import HelperProcess, start
from toolyard.sandboxes.process_based.room import new_mark, resources_of
from toolyard.sandboxes.process_based.sandbox import RoomSandbox
from toolyard.sandboxes.process_based.trial import Trial, try_out
from toolyard.sandboxes.subprocess import SubprocessRoom, end_marked
from toolyard.sandboxes.view import View

_FIRST_UID, _UIDS_PER_SERVER, _SERVERS = 0x6000_0000, 2**16, 2**12
"""The users that programs are, if the server is root: a different one for each sandbox and each server."""
_NAMES = ("group", "hosts", "nsswitch.conf", "passwd")
"""Files of the host's /etc, beside those that every sandbox may see."""
_ROUNDS_MOST, _ROUND_SECONDS = 100, 0.002
_HINT = "it needs Linux 5.13 with Landlock enabled, and 6.12 where programs cannot have their own user"


class LandlockBackend(RoomBackend):
    name = "landlock"

    def __init__(self, *, view: View | None = None) -> None:
        super().__init__(view)
        self._numbers = itertools.count()
        self._own_users = False

    async def start(self) -> Report:
        if sys.platform != "linux":
            raise SandboxUnavailable(f"Landlock is Linux's, and this is {sys.platform}")
        await asyncio.to_thread(_sweep)
        self._report = Report(self.name, "L0", {})  # until the trial proves more
        self._own_users = os.geteuid() == 0
        try:
            trial = await self._try()
            if trial.problem and self._own_users:
                self._own_users = False  # perhaps only root can read the interpreter
                trial = await self._try()
        except SandboxLost as error:
            raise SandboxUnavailable(f"Landlock cannot work here: {error}; {_HINT}") from error
        if trial.problem:
            raise SandboxUnavailable(f"Landlock cannot work here: {trial.problem}; {_HINT}")
        if trial.fallen:
            raise SandboxUnavailable(
                f"Landlock does not hold here: {', '.join(trial.fallen)} could be got around; {_HINT}"
            )
        self._report = self._as_found()
        return self._report

    async def open(self, limits: Limits | None = None, *, profile: Profile = "plain") -> RoomSandbox:
        self._view.check(profile)
        limits = limits or Limits()
        if limits.network == "loopback":
            raise SandboxUnavailable("without namespaces no sandbox has its own network: use 'none' or 'host'")
        return self._make(limits, profile, self._new_user())

    def _new_user(self) -> int:
        if not self._own_users:
            return -1
        return _FIRST_UID + os.getpid() % _SERVERS * _UIDS_PER_SERVER + next(self._numbers) % _UIDS_PER_SERVER

    def _make(self, limits: Limits, profile: Profile, owner: int) -> RoomSandbox:
        return self._sandbox_in(LandlockRoom(origin.make_directory(self.name), self._view, owner), limits, profile)

    async def _try(self) -> Trial:
        owner = self._new_user()
        async with self._make(Limits(), "plain", owner) as sandbox:
            return await try_out(sandbox, uid=os.geteuid() if owner < 0 else owner)

    def _as_found(self) -> Report:
        better = "let the server make namespaces, as for the native backend"
        missing = [
            Missing("namespaces", "programs can see that other processes exist", better),
            Missing(
                "cgroup: memory", "memory is limited for each process, and for all together only now and then", better
            ),
            Missing("disk", "only the size of each file is limited", better),
            Missing("shared memory", "all users share /dev/shm, so locks of multiprocessing are refused", better),
        ]
        if not self._own_users:
            reason = (
                "programs are the server's own user, so that their number is not limited, and modes and times of files "
                "cannot be changed"
            )
            fix = f"run the server as root, and let every user read {self._view.python.prefix}"
            missing.append(Missing("a user of its own", reason, fix))
        layers = {
            "files": f"Landlock{self._view.words}",
            "network": "seccomp, no sockets",
            "processes": "Landlock, no signals to others and no look into them",
            "user": "one of its own, no capabilities" if self._own_users else "no capabilities",
            "system calls": "seccomp allowlist, no_new_privs",
            "memory": "data of each process, watched",
            "number of processes": "RLIMIT_NPROC" if self._own_users else "none",
            "processor time": "none",
            "disk": "none",
        }
        return Report(self.name, "L2", layers, missing)


class LandlockRoom(SubprocessRoom):
    """A directory as in the subprocess backend, and a warden for each program in it."""

    def __init__(self, directory: Path, view: View, owner: int) -> None:
        super().__init__(directory, view, owner)
        self._guarded: dict[HelperProcess, int] = {}
        """Programs, each with a descriptor on which its warden reports that all walls stand, or why they do not."""
        self._problem = ""
        self._shows = [*host.PROGRAMS, *host.etc(), *(f"/etc/{name}" for name in _NAMES), *view.python.prefixes]
        self._hidden = view.covered

    async def start(
        self, argv: Sequence[str], *, env: Mapping[str, str], limits: Limits, lasting: bool = False
    ) -> HelperProcess:
        name, mark = self._new_name(), "" if lasting else new_mark()
        told, tells = os.pipe()
        orders = {
            "server": os.getpid(),
            "owner": self._owner,
            "shows": self._shows,
            "hidden": self._hidden,
            "holds": [str(self._work), str(self._temporary)],
            "network": limits.network == "host",
            "walled": tells,
            "env": self._marked(env, name),
            "limits": resources_of(limits, lasting=lasting, each_process=True, processes=self._owner >= 0),
            "mark": mark,
            "adopt": True,
        }
        try:
            program = start(
                [*command("process_based.warden", repr(orders)), *argv],
                env=self._environment,
                output_bytes=limits.output_bytes,
                name=name,
                mark=mark,
                cwd=str(self._work),
                owner=self._owner,
                pass_fds=[tells],
            )
        except BaseException:
            os.close(told)
            raise
        finally:
            os.close(tells)
        self._look()
        os.set_blocking(told, False)
        self._guarded[program] = told
        return program

    async def lost(self) -> str:
        self._look()
        return self._problem

    def _look(self) -> None:
        """Read the wardens' reports. A failure of a warden is not a failure of its program."""
        for program, told in [*self._guarded.items()]:
            with contextlib.suppress(BlockingIOError):  # it is still working
                said = os.read(told, 4096)
                if said not in (b"", WALLED):
                    self._problem = f"walls could not be made: {said.decode(errors='replace')}"
            if program.ended.done():
                if program.ended.result().code < 0 and not program.killed:  # a warden exits by itself
                    self._problem = "a warden was killed"
                os.close(told)
                del self._guarded[program]

    async def interrupt(self, program: HelperProcess) -> None:
        if not program.ended.done():
            kill(program.pid, signal.SIGINT)  # its warden passes the signal on

    async def relieve(self, program: HelperProcess, since: float, first: int = 0) -> None:
        relieve(self._inside(program), since, first)

    async def kill(self, program: HelperProcess) -> None:
        if not program.ended.done():
            program.killed = True
            kill(program.pid, signal.SIGTERM)  # its warden ends everything and exits

    async def measure(self, program: HelperProcess) -> tuple[float, int]:
        uses = [used(pid) for pid in self._inside(program)]
        return sum(cpu for cpu, _ in uses), sum(memory for _, memory in uses)

    def _inside(self, program: HelperProcess) -> Sequence[int]:
        """The program and its descendants."""
        return tree(program.pid)[1:] if not program.ended.done() else []

    async def close(self) -> None:
        if self._owner >= 0:
            await _end_all_of(self._owner)
        await super().close()
        for told in self._guarded.values():
            os.close(told)
        self._guarded.clear()


async def _end_all_of(user: int) -> None:
    """End every process of a user."""
    for _ in range(_ROUNDS_MOST):
        theirs = [pid for pid in processes() if _user_of(pid) == user]
        if not theirs:
            return
        for pid in theirs:
            kill(pid, signal.SIGKILL)
        await asyncio.sleep(_ROUND_SECONDS)


def _user_of(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:  # gone
        return -1


def _sweep() -> None:
    """Remove what servers that were killed left behind."""
    for directory in origin.forsaken_directories(LandlockBackend.name):
        asyncio.run(end_marked(directory.name))
        origin.remove(directory)
