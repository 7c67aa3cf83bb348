"""The stage for hostile programs: a server process with secrets worth stealing, and a neighbour.

A test module makes a `Suite` and adds cases to it. A separate process plays them, once as root and once as an ordinary
user, so that damage there cannot hurt the tester. That process starts the sandbox's backend and is called the server
here.

No hostile program runs before a harmless one, in the same sandbox and by the same way in, has shown that the walls
stand: `Box` checks that.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import json
import os
import secrets
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import uvloop

from toolyard.sandboxes.base import Executed, Finished, Limits
from toolyard.sandboxes.native import seccomp
from toolyard.sandboxes.native.backend import NativeBackend
from toolyard.sandboxes.native.sandbox import NativeSandbox
from toolyard.sandboxes.view import View

Mode = Literal["root", "rootless"]

USUAL = Limits()
STRANGER = 0x6F00_0000 + os.getpid()
"""A unique user for the tests without root, so that nothing it leaves behind is overlooked."""
ROOT = Path(__file__).parents[2]
SECRET = "toolyard-planted-"
"""The beginning of a planted secret; 32 hexadecimal digits follow. Programs search for the form, and never hold one."""
HIDDEN = bytes(byte ^ 1 for byte in SECRET.encode())
"""The beginning in a form for programs that scan their own memory, where their own text must not match."""

CONCEALED = [Path(os.__file__).parent / name for name in ("wsgiref", "this.py")]
"""A folder and a file of the standard library, hidden like an environment's: nothing else needs them."""

_AT_ONCE = 4
_CASE_SECONDS = 45.0
_RUN_SECONDS = 150.0
_GONE_SECONDS = 5.0
_BEAT_SECONDS = 0.1
_SLOW_SECONDS = 5.0
"""The limit of the neighbour's slowest call. It takes a millisecond, but many bombs share few processors."""
_USUALLY_SECONDS = 0.5
"""The limit of the median of its calls."""

PRELUDE = (
    f"""
import ctypes, errno, json, os, resource, signal, socket, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
numbers = {seccomp.numbers(seccomp.MACHINE)!r}
"""
    + """
outcomes = {}
def call(name, *args):
    '''A system call by its name. Missing arguments are 0.'''
    args = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in (*args, 0, 0, 0, 0, 0, 0)[:6]]
    result = libc.syscall(ctypes.c_long(numbers[name]), *args)
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result
def attempt(what, action, *args, **options):
    '''Note how it went: the name of an error, or what came of it.'''
    try:
        outcomes[what] = f"did it: {action(*args, **options)!r}"[:200]
    except OSError as error:
        outcomes[what] = errno.errorcode.get(error.errno, type(error).__name__)
    except Exception as error:
        outcomes[what] = type(error).__name__
def tell():
    print(json.dumps(outcomes), flush=True)
"""
)
"""For programs that try many things: `attempt` each, and `tell()` at the end. `Box.outcomes` reads that."""

_CANARY = """
import json, os, resource
def status(field):
    with open("/proc/self/status") as file:
        return next(line.split(":")[1].strip() for line in file if line.startswith(field + ":"))
def readable(path):
    try:
        with open(path) as file:
            file.read()
    except OSError:
        return False
    return True
print(json.dumps({
    "pid": os.getpid(),
    "processes": len([name for name in os.listdir("/proc") if name.isdigit()]),
    "namespaces": {kind: os.stat(f"/proc/self/ns/{kind}").st_ino for kind in NAMESPACES},
    "user": [int(number) for number in open("/proc/self/uid_map").read().split()],
    "capabilities": [status(name) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")],
    "no_new_privileges": status("NoNewPrivs"),
    "seccomp": status("Seccomp"),
    "marker": readable(MARKER),
    "interfaces": [line.split(":")[0].strip() for line in open("/proc/net/dev").readlines()[2:]],
    "limits": {name: resource.getrlimit(getattr(resource, "RLIMIT_" + name))[1]
               for name in ("NPROC", "NOFILE", "FSIZE", "DATA")},
}))
"""
_NAMESPACES = ("user", "pid", "mnt", "net", "ipc", "uts", "cgroup")


class Unsafe(AssertionError):
    """A wall does not stand, so the hostile program did not run."""


# ---- Cases


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    play: Callable[[Stage, Box], Awaitable[None]]
    limits: Limits
    alone: bool
    """Nothing else runs at the same time except the neighbour."""


class Suite:
    """The cases of one module, by name."""

    def __init__(self) -> None:
        self.cases: dict[str, Case] = {}

    def case(
        self, number: str, *, limits: Limits = USUAL, alone: bool = False
    ) -> Callable[[Callable[[Stage, Box], Awaitable[None]]], Callable[[Stage, Box], Awaitable[None]]]:
        """Adds `async def a_program_of_some_kind(stage, box)`, which asserts that the program achieved nothing."""

        def add(play: Callable[[Stage, Box], Awaitable[None]]) -> Callable[[Stage, Box], Awaitable[None]]:
            name = f"{number}-{getattr(play, '__name__', '')}"
            assert name not in self.cases
            self.cases[name] = Case(name, play, limits, alone)
            return play

        return add


def refused(outcomes: Mapping[str, str], *errors: str) -> None:
    """Every attempt failed, with one of these errors."""
    assert outcomes
    odd = {what: how for what, how in outcomes.items() if how not in errors}
    assert not odd, odd


# ---- The stage


class Box:
    """A sandbox that admits hostile programs only after a harmless one has succeeded."""

    def __init__(self, stage: Stage, sandbox: NativeSandbox, *, branch: bool = False) -> None:
        self._stage = stage
        self.sandbox = sandbox
        """For harmless programs: it checks nothing first."""
        self._branch = branch
        self._canaries: dict[str, Mapping[str, Any]] = {}
        self._branches: list[Box] = []

    async def python(self, code: str, *, seconds: float | None = None) -> Executed:
        """Run hostile code in the session's interpreter."""
        await self.show("exec")
        return await self.sandbox.exec(code, timeout=seconds)

    async def run(self, argv: Sequence[str], *, seconds: float | None = None, **more: Any) -> Finished:
        """Run a hostile program."""
        await self.show("run")
        return await self.sandbox.run(argv, timeout=seconds, **more)

    async def bash(self, script: str, *, seconds: float | None = None) -> Finished:
        return await self.run(["bash", "-c", script], seconds=seconds)

    async def shell(self, command: str, *, seconds: float | None = None) -> Finished:
        """Run a hostile command in the session's shell."""
        await self.show("shell")
        return await self.sandbox.shell(command, timeout=seconds)

    async def outcomes(self, attack: str, *, seconds: float | None = None) -> dict[str, Any]:
        """The outcome of every `attempt` in code that ends with `tell()`: in the interpreter, as a program, and in a
        lone interpreter. All should agree, so there is one answer for them.
        """
        told = await self._told(attack, seconds)
        alone = await self.alone(PRELUDE + attack, seconds=seconds)
        assert alone.error is None, alone.error.traceback
        return _alike({**told, "an interpreter that is alone": alone.stdout})

    async def outcomes_beside_agent(self, attack: str, *, seconds: float | None = None) -> dict[str, Any]:
        """The same for an attack on process 1: a lone interpreter would attack itself."""
        return _alike(await self._told(attack, seconds))

    async def _told(self, attack: str, seconds: float | None) -> dict[str, str]:
        code = PRELUDE + attack
        executed = await self.python(code, seconds=seconds)
        assert executed.error is None, executed.error.traceback
        assert executed.killed_by is None, executed
        ran = await self.run(["python3", "-c", code], seconds=seconds)
        assert ran.exit_code == 0, ran
        return {"the interpreter": executed.stdout, "a program": ran.stdout.decode()}

    async def alone(self, code: str, *, seconds: float | None = None) -> Executed:
        """Run hostile code in an interpreter alone in a sandbox, with the limits of this one."""
        interpreter = await self._stage.backend.open_interpreter(self.sandbox.limits)
        try:
            said = _came_back(came := await interpreter.exec(self._canary_code()), came.stdout)
            self._stage.check_walls(said, self.sandbox.limits, branch=False)
            return await interpreter.exec(code, timeout=seconds)
        finally:
            await interpreter.close()

    async def fork(self, count: int = 1) -> list[Box]:
        """Branches; closing this one closes them."""
        branches = [Box(self._stage, branch, branch=True) for branch in await self.sandbox.fork(count)]
        self._branches += branches
        return branches

    async def close(self) -> None:
        for branch in self._branches:
            await branch.close()
        await self.sandbox.close()

    async def show(self, way: str) -> Mapping[str, Any]:
        """Raise `Unsafe` unless all walls stand. Runs once for each way in."""
        if way not in self._canaries:
            said = await self._canary(way)
            self._stage.check_walls(said, self.sandbox.limits, branch=self._branch)
            self._canaries[way] = said
        return self._canaries[way]

    async def _canary(self, way: str) -> Mapping[str, Any]:
        code = self._canary_code()
        if way == "exec":
            came = await self.sandbox.exec(code)
            text = came.stdout
        elif way == "run":
            came = await self.sandbox.run(["python3", "-c", code])
            text = came.stdout.decode()
        else:
            await self.sandbox.write(".canary.py", code.encode())
            came = await self.sandbox.shell("python3 .canary.py; rm .canary.py")
            text = came.stdout.decode()
        return _came_back(came, text)

    def _canary_code(self) -> str:
        return f"NAMESPACES = {_NAMESPACES!r}\nMARKER = {str(self._stage.marker)!r}\n{_CANARY}"

    async def alive(self) -> bool:
        """Whether the sandbox still works."""
        return (await self.sandbox.exec("6 * 7")).value == "42"


def _came_back(came: object, text: str) -> Mapping[str, Any]:
    try:
        return json.loads(text)
    except ValueError:
        raise Unsafe(f"the canary did not come back: {came}") from None


def _alike(told: Mapping[str, str]) -> dict[str, Any]:
    """The outcome of each attempt: a single value if all ways agree."""
    found = {who: json.loads(text.splitlines()[-1]) for who, text in told.items()}
    first, *others = found.values()
    assert all(other.keys() == first.keys() for other in others), found
    return {
        what: how
        if all(other[what] == how for other in others)
        else ", ".join(f"{outcomes[what]} by {who}" for who, outcomes in found.items())
        for what, how in first.items()
    }


class Stage:
    """A server with a neighbour's session, and with targets for hostile programs."""

    def __init__(self, backend: NativeBackend, folder: Path) -> None:
        self.backend = backend
        self.folder = folder
        """A folder of the host, open to all. Its content must not change."""
        self.marker = folder / "marker"
        self.tag = f"hostile-{secrets.token_hex(8)}"
        """Marks names of files and the like, which must not be found outside afterwards."""
        self.hits: list[str] = []
        """Connections to the host's listeners."""
        self.port = 0
        self.abstract = f"toolyard-{secrets.token_hex(8)}"
        self.server = os.getpid()
        self.latencies: list[float] = []
        self._namespaces = {kind: os.stat(f"/proc/self/ns/{kind}").st_ino for kind in _NAMESPACES}
        self._groups: list[str] = []
        self._kept = secrets.token_hex(8)
        self._neighbour: NativeSandbox | None = None
        self._listeners: list[asyncio.Server | asyncio.DatagramTransport] = []
        self._trouble: list[str] = []
        self._open: dict[Box, Traces] = {}

    @property
    def enforced(self) -> bool:
        """Limits hold for the sandbox as a whole: level L3. Otherwise they hold for each process only."""
        return self.backend.report().level == "L3"

    @property
    def landlock(self) -> bool:
        return "Landlock" in self.backend.report().layers["files"]

    @property
    def as_root(self) -> bool:
        return os.geteuid() == 0

    @contextlib.asynccontextmanager
    async def open(self, limits: Limits = USUAL) -> AsyncIterator[Box]:
        """A sandbox of which nothing may be left afterwards."""
        box = Box(self, await self.backend.open(limits))
        try:
            traces = self._traces(await box.show("exec"))
            if self.enforced and not _are_limited(traces.groups, limits):
                raise Unsafe(f"not run, for lack of limits in {traces.groups}")
        except BaseException:
            await box.close()
            raise
        self._open[box] = traces
        try:
            yield box
        finally:
            members = self._open.pop(box).members()
            await box.close()
        await traces.check_gone(members)

    def members(self, box: Box) -> set[tuple[int, str]]:
        """The processes of an open sandbox: their pids on the host, and their start times."""
        return self._open[box].members()

    @contextlib.asynccontextmanager
    async def counted(self, box: Box) -> AsyncIterator[list[int]]:
        """How many processes the sandbox has on the host, sampled during the block; its own agent is one."""
        await box.show("exec")
        seen: list[int] = []

        async def count() -> None:
            while True:
                seen.append(len(self.members(box)))
                await asyncio.sleep(0.05)

        counting = asyncio.ensure_future(count())
        try:
            yield seen
        finally:
            counting.cancel()

    async def check(self) -> None:
        """Neither the server nor the neighbour has noticed anything."""
        assert not self._trouble, self._trouble
        assert not self.hits, f"somebody came to the host's {self.hits}"
        assert self.marker.read_text() == self._marked, "the host's file was changed"
        await self._beat()

    def check_walls(self, said: Mapping[str, Any], limits: Limits, *, branch: bool) -> None:
        """The harmless program found what it must find where hostile ones may run."""
        inside, outside, count = said["user"]
        stranger = outside == 1000 if branch else outside >= 0x7000_0000 if self.as_root else outside == 0
        walls = {
            "few processes are visible": said["processes"] <= 8 and said["pid"] < 100,
            "namespaces of its own": all(said["namespaces"][kind] != self._namespaces[kind] for kind in _NAMESPACES),
            "not the host's user": inside == 1000 and count == 1 and stranger,
            "no capabilities": set(said["capabilities"]) == {"0000000000000000"},
            "no new privileges": said["no_new_privileges"] == "1",
            "a filter of system calls": said["seccomp"] == "2",
            "the host's file is not readable": said["marker"] is False,
            "no network": said["interfaces"] == ["lo"],
            "number of processes": 0 < said["limits"]["NPROC"] <= limits.processes,
            "open files": 0 < said["limits"]["NOFILE"] <= limits.open_files,
            "size of files": 0 < said["limits"]["FSIZE"] <= limits.file_bytes,
            "memory": self.enforced or 0 < said["limits"]["DATA"] <= limits.memory_bytes,
        }
        if fallen := [wall for wall, stands in walls.items() if not stands]:
            raise Unsafe(f"not run, for lack of: {', '.join(fallen)}; {said}")

    # Planted secrets, and the neighbour.

    async def set_up(self) -> None:
        self._marked = f"{SECRET}{secrets.token_hex(16)}"
        self.marker.write_text(self._marked)
        self.marker.chmod(0o644)
        broker = _children(os.getpid())
        self._groups = [path for pid in broker for path in _groups_of(pid)]
        tcp = await asyncio.start_server(functools.partial(self._hit, "TCP port"), "127.0.0.1", 0)
        self.port = tcp.sockets[0].getsockname()[1]
        loop = asyncio.get_running_loop()
        udp, _ = await loop.create_datagram_endpoint(lambda: _Datagrams(self.hits), ("127.0.0.1", self.port))
        name, file = "\0" + self.abstract, str(self.folder / "socket")
        abstract = await asyncio.start_unix_server(functools.partial(self._hit, "abstract socket"), name)
        by_file = await asyncio.start_unix_server(functools.partial(self._hit, "socket file"), file)
        os.chmod(file, 0o777)
        self._listeners = [tcp, udp, abstract, by_file]
        self._neighbour = await self.backend.open()
        told = await self._neighbour.exec(f"kept = {self._kept!r}; secret = '{SECRET}{secrets.token_hex(16)}'")
        assert told.error is None

    async def _hit(self, what: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.hits.append(what)
        writer.close()

    async def keep_calling(self) -> None:
        """Use the neighbour's session all the time."""
        while True:
            try:
                await self._beat()
            except Exception as error:  # any exception: the neighbour has noticed
                self._trouble.append(f"the neighbour's session: {type(error).__name__}: {error}")
                return
            await asyncio.sleep(_BEAT_SECONDS)

    async def _beat(self) -> None:
        assert self._neighbour is not None
        began = time.monotonic()
        async with asyncio.timeout(_SLOW_SECONDS):
            answer = await self._neighbour.exec("kept")
        self.latencies.append(time.monotonic() - began)
        assert answer.value == repr(self._kept), answer

    async def end(self) -> None:
        """The server still works, and served the neighbour well. The caller closes the backend."""
        await self.check()
        async with self.open() as box:
            assert await box.alive()
        usually, worst = statistics.median(self.latencies), max(self.latencies)
        assert usually < _USUALLY_SECONDS, f"the neighbour's calls took {usually:.2f} s, and once {worst:.2f} s"
        found = [name for folder in _HOST_FOLDERS for name in _names(folder) if self.tag in name]
        assert not found, f"left on the host: {found}"
        assert sorted(os.listdir(self.folder)) == ["marker", "socket"]

    def tear_down(self) -> None:
        for listener in self._listeners:
            listener.close()

    def _traces(self, said: Mapping[str, Any]) -> Traces:
        namespace = said["namespaces"]["pid"]
        members = _in_namespace(namespace)
        assert members, "the sandbox's processes are not to be found on the host"
        names = {line.rpartition("/")[2].strip() for pid in members for line in _lines(f"/proc/{pid}/cgroup")}
        groups = [f"{group}/{name}" for group in self._groups for name in names if name]
        [interpreter] = [pid for pid in members if _number_inside(pid) == said["pid"]]
        return Traces(
            said["user"][1] if self.as_root else -1,
            int(_stat(interpreter)[1]),
            namespace,
            tuple(group for group in groups if os.path.isdir(group)),
        )


@dataclass(frozen=True, slots=True)
class Traces:
    """The traces by which to find a sandbox on the host."""

    user: int
    """Its unique user; -1 for the server's own."""
    agent: int
    """Its process 1, by its pid on the host."""
    namespace: int
    groups: Sequence[str]

    def members(self) -> set[tuple[int, str]]:
        """Its processes, each with its start time."""
        parents = _parents()
        return {(pid, start) for pid in parents if _is_below(pid, {self.agent}, parents) and (start := _start(pid))}

    async def check_gone(self, members: set[tuple[int, str]]) -> None:
        deadline = time.monotonic() + _GONE_SECONDS
        while left := self._left(members):
            assert time.monotonic() < deadline, f"left behind: {left}"
            await asyncio.sleep(0.02)

    def _left(self, members: set[tuple[int, str]]) -> list[str]:
        return [
            *(f"process {pid}" for pid, start in members if _start(pid) == start),
            *(f"process {pid} in its namespace" for pid in _in_namespace(self.namespace)),
            *(f"process {pid} of its user" for pid in _processes() if self.user > 0 and _user(pid) == self.user),
            *(f"group {group}" for group in self.groups if not is_at_rest(group) and not self._has_passed_on(group)),
        ]

    def _has_passed_on(self, group: str) -> bool:
        """Whether the group now serves another sandbox: all processes in it are in other namespaces."""
        inside = [int(pid) for pid in _lines(f"{group}/cgroup.procs")]
        return bool(inside) and set(inside).isdisjoint(_in_namespace(self.namespace))


def is_at_rest(group: str) -> bool:
    """Whether it is removed, or kept as a spare: empty, and without memory except for the kernel's records."""
    held = max(_number(f"{group}/{name}") for name in ("memory.usage_in_bytes", "memory.current"))
    return not _lines(f"{group}/cgroup.procs") and _number(f"{group}/pids.current") <= 0 and held <= 2 * 2**20


def _are_limited(groups: Sequence[str], limits: Limits) -> bool:
    processes = [_number(f"{group}/pids.max") for group in groups]
    memory = [_number(f"{group}/{name}") for group in groups for name in ("memory.max", "memory.limit_in_bytes")]
    return limits.processes in processes and limits.memory_bytes in memory


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, hits: list[str]) -> None:
        self._hits = hits

    def datagram_received(self, data: bytes, sender: Any) -> None:
        self._hits.append("UDP port")


_HOST_FOLDERS = ("/", "/dev", "/dev/shm", "/etc", "/home", "/opt", "/root", "/run", "/srv", "/tmp", "/usr", "/usr/bin",
                 "/usr/lib", "/usr/local/bin", "/var", "/var/tmp", sys.prefix, sys.base_prefix)  # fmt: skip


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # missing, or not readable
        return []


def _processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _start(pid: int) -> str:
    """Its start time; empty if it has ended."""
    fields = _stat(pid)
    return fields[19] if fields and fields[0] not in "ZX" else ""


def _children(parent: int) -> list[int]:
    return [pid for pid in _processes() if _stat(pid)[1:2] == [str(parent)]]


def _parents() -> dict[int, int]:
    return {pid: int(fields[1]) for pid in _processes() if (fields := _stat(pid))}


def _is_below(pid: int, roots: set[int], parents: Mapping[int, int]) -> bool:
    while pid in parents and pid not in roots:
        pid = parents[pid]
    return pid in roots


def _user(pid: int) -> int:
    """The user of a process. The owner of its directory in /proc may differ."""
    return next((int(line.split()[1]) for line in _lines(f"/proc/{pid}/status") if line.startswith("Uid:")), -1)


def _in_namespace(inode: int) -> list[int]:
    found = []
    for pid in _processes():
        with contextlib.suppress(OSError):  # it has ended, or is not readable
            if os.stat(f"/proc/{pid}/ns/pid").st_ino == inode:
                found.append(pid)
    return found


def _groups_of(broker: int) -> list[str]:
    """The cgroups that a broker has made for its sandboxes."""
    found = []
    for folder, names, _ in os.walk("/sys/fs/cgroup"):
        for name in list(names):
            if name.startswith("toolyard-") and f"-{broker}-" in name:
                found.append(f"{folder}/{name}")
                names.remove(name)
    return found


def _number_inside(pid: int) -> int:
    """The pid of a process in its own namespace."""
    return next((int(line.split()[-1]) for line in _lines(f"/proc/{pid}/status") if line.startswith("NSpid:")), 0)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return []


def _number(path: str) -> int:
    try:
        return int(Path(path).read_text())
    except (OSError, ValueError):
        return -1


# ---- The server's process


@contextlib.contextmanager
def _planted() -> Iterator[Path]:
    """What the server holds and must keep: files that its children would inherit, and secrets in its memory."""
    folder = Path(tempfile.mkdtemp(prefix="toolyard-hostile-"))
    folder.chmod(0o755)
    held = [f"{SECRET}{secrets.token_hex(16)}" for _ in range(64)]
    private = os.memfd_create("private")
    os.write(private, held[0].encode())
    listener = socket.create_server(("127.0.0.1", 0))
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    for fd in (private, listener.fileno(), directory):
        os.set_inheritable(fd, True)
    assert any(SECRET in value for value in os.environ.values()), "no secret in the server's environment"
    try:
        yield folder
    finally:
        listener.close()
        os.close(private)
        os.close(directory)
        shutil.rmtree(folder)


async def _play(suite: Suite, names: Sequence[str], report: Callable[..., None]) -> None:
    with _planted() as folder:
        (await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)).close()  # uvloop keeps state of the first one
        before = _descriptors()
        backend = NativeBackend(view=View.of(hidden=CONCEALED))
        report(level=(await backend.start()).level)
        brokers = _children(os.getpid())
        stage = Stage(backend, folder)
        try:
            await stage.set_up()
            calling = asyncio.ensure_future(stage.keep_calling())
            try:
                await _play_all(stage, [suite.cases[name] for name in names], report)
                await stage.end()
                report(calls=[len(stage.latencies), statistics.median(stage.latencies), max(stage.latencies)])
            finally:
                calling.cancel()
        finally:
            await backend.close()
            stage.tear_down()
        await _check_clean(brokers, before)


async def _play_all(stage: Stage, cases: Sequence[Case], report: Callable[..., None]) -> None:
    places = asyncio.Semaphore(_AT_ONCE)

    async def play(case: Case) -> None:
        async with places:
            await _play_one(stage, case, report)

    await asyncio.gather(*(play(case) for case in cases if not case.alone))
    for case in cases:
        if case.alone:
            await _play_one(stage, case, report)


async def _play_one(stage: Stage, case: Case, report: Callable[..., None]) -> None:
    report(begun=case.name)
    began, problem = time.monotonic(), ""
    try:
        async with asyncio.timeout(_CASE_SECONDS):
            async with stage.open(case.limits) as box:
                await case.play(stage, box)
            await stage.check()
    except Exception:  # an exception of the case; its test reports it
        problem = traceback.format_exc()
    report(case=case.name, problem=problem, seconds=time.monotonic() - began)


async def _check_clean(brokers: Sequence[int], before: Sequence[str]) -> None:
    """The backend is closed, and nothing of it is left."""
    assert brokers
    assert not [pid for pid in brokers if _start(pid)], "the broker lives"
    assert not _children(os.getpid()), "a child of the server lives"
    if os.getuid() > 0x6F00_0000:  # a unique user: see STRANGER
        left = [pid for pid in _processes() if _user(pid) == os.getuid() and pid != os.getpid() and _start(pid)]
        assert not left, f"left behind: {[_lines(f'/proc/{pid}/status') for pid in left]}"
    assert not [path for pid in brokers for path in _groups_of(pid)], "a cgroup is left"
    assert not any("/home/work" in mount for mount in _lines("/proc/self/mountinfo")), "a mount is left"
    deadline = time.monotonic() + _GONE_SECONDS
    while (after := _descriptors()) != before:
        assert time.monotonic() < deadline, f"file descriptors before: {before}, after: {after}"
        await asyncio.sleep(0.02)


def _descriptors() -> Sequence[str]:
    """The server's open files."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the descriptor that lists them
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return sorted(found)


def serve(module: str, names: Sequence[str]) -> None:
    """Play these cases of a module, and print the result of each as a line of JSON."""

    def report(**told: object) -> None:
        print(json.dumps(told), flush=True)

    suite: Suite = importlib.import_module(module).SUITE
    run = uvloop.run if os.geteuid() == 0 else asyncio.run  # the sandbox must work with both
    try:
        run(_play(suite, names, report))
    except BaseException:
        report(end=traceback.format_exc())
        raise
    report(end="")


# ---- The test's side


@dataclass(slots=True)
class Played:
    """The results of a module's cases."""

    mode: Mode
    level: str = ""
    begun: list[str] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    calls: Sequence[float] = ()
    """The neighbour's calls in that time: how many, the median seconds, and the slowest."""
    end: str = "the server did not get to the end"

    def check(self, name: str) -> None:
        if name not in self.problems:
            unfinished = [begun for begun in self.begun if begun not in self.problems]
            raise AssertionError(f"the server ended during {unfinished or 'the start'}: {self.end}")
        assert not self.problems[name], self.problems[name]

    def check_end(self) -> None:
        """The server reached the last case, and left nothing."""
        assert not self.end, self.end


def modes() -> Sequence[Mode]:
    """The users that this user can test as."""
    return ("root", "rootless") if os.geteuid() == 0 else ("rootless",)


def play(module: str, mode: Mode, names: Sequence[str]) -> Played:
    """Play cases of a module in a separate process."""
    stranger = mode == "rootless" and os.geteuid() == 0
    interpreter = rootless_python() if stranger else sys.executable
    code = f"from tests.sandboxes.hostile import serve; serve({module!r}, {list(names)!r})"
    process = subprocess.Popen(
        [interpreter, "-c", code],
        env=server_environment(),
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **(_AS_NOBODY if stranger else {}),
    )
    try:
        output, errors = process.communicate(timeout=_RUN_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        output, errors = process.communicate()
        errors += f"\nthe server took longer than {_RUN_SECONDS} s"
    played = Played(mode)
    for told in map(json.loads, output.splitlines()):
        if "begun" in told:
            played.begun.append(told["begun"])
        elif "case" in told:
            played.problems[told["case"]] = told["problem"]
            played.seconds[told["case"]] = told["seconds"]
        elif "calls" in told:
            played.calls = told["calls"]
        elif "end" in told:
            played.end = told["end"]
        else:
            played.level = told["level"]
    if process.returncode or errors:
        played.end += f"\nexit code {process.returncode}\n{errors[-4000:]}"
    return played


_AS_NOBODY: dict[str, Any] = {"user": STRANGER, "group": STRANGER, "extra_groups": []}


_PACKAGES = [path for path in sys.path if path.endswith("-packages")]


def server_environment() -> dict[str, str]:
    return {
        "PATH": os.defpath,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src"), *_PACKAGES]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "API_KEY": f"{SECRET}{secrets.token_hex(16)}",
    }


@functools.cache
def rootless_python() -> str:
    """An interpreter of this version that an ordinary user can start, with this checkout and its packages."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    folders = ("/usr/bin", "/usr/local/bin", "/opt/bin")
    wanted = os.environ.get("TOOLYARD_ROOTLESS_PYTHON")
    problems = {}
    for path in [wanted] if wanted else [sys.executable, *(f"{folder}/{version}" for folder in folders)]:
        try:
            tried = subprocess.run(
                [path, "-c", "import toolyard.sandboxes.native.backend, tests.sandboxes.hostile"],
                env=server_environment(),
                cwd="/",
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
                **_AS_NOBODY,
            )
        except OSError as error:
            problems[path] = str(error)
            continue
        if tried.returncode == 0:
            return path
        problems[path] = tried.stderr[-500:]
    raise AssertionError(
        f"The sandbox is also tested without root, and user {STRANGER} can start none of these: {problems}. "
        f"Install {version} for all users (on Debian: apt install {version}), or name one in TOOLYARD_ROOTLESS_PYTHON; "
        f"that user must be able to read {ROOT} and {', '.join(_PACKAGES)}."
    )
