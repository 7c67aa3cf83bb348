"""The contract of every sandbox backend: a private workspace in which untrusted programs run.

A program that fails, or that a limit ends, is a result and never an exception. Exceptions say that the sandbox itself
failed: `SandboxUnavailable` while it opens, `SandboxLost` after.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal, Protocol, Self, TypeAlias, runtime_checkable

from toolyard.core.workspace import Files
from toolyard.sandboxes.verdicts import TestReport

Level: TypeAlias = Literal["L0", "L1", "L2", "L3-nolimit", "L3", "L4"]
"""How well a sandbox isolates, from nothing to a kernel of its own. docs/isolation.md defines each level."""

LEVELS: Sequence[Level] = ("L0", "L1", "L2", "L3-nolimit", "L3", "L4")

Network: TypeAlias = Literal["none", "loopback", "host"]

Profile: TypeAlias = Literal["plain", "numeric", "symbolic", "analytic", "scientific", "ipython", "notebook"]
"""The modules that a session's Python interpreter has loaded when it starts."""

Limit: TypeAlias = Literal["wall", "cpu", "memory", "output", "file_size"]
"""The limits that end a program. The others (processes, files, space) make a system call of the program fail."""

WORKSPACE = "/home/work"
"""The workspace's path inside a sandbox, for backends that give it a file system of its own."""

ENVIRONMENT: Mapping[str, str] = {
    "HOME": WORKSPACE,
    "LANG": "C.UTF-8",
    "USER": "agent",
    "TERM": "dumb",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",  # pandas imports pyarrow, whose thread no copy would have
}
"""The environment of every program, beside PATH. It holds nothing of the server's."""

RESERVED_BYTES = 4 * 2**30
"""Address space that a process may have beside its memory, where no cgroup limits memory: Java, Go and Node reserve
gigabytes that they never use. RLIMIT_DATA still limits what a process can write to."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one sandbox, or one program in it, may use."""

    wall_seconds: float = 10.0
    """For one program, one piece of code or one shell command."""
    cpu_seconds: float | None = None
    """Processor time of one program, piece of code or command. None: no limit beside the wall time."""
    memory_bytes: int = 512 * 2**20
    """For all processes of the sandbox together; where the backend cannot enforce that, for each process."""
    processes: int = 64
    """At the same time, threads included, in the sandbox and its branches."""
    cpus: float = 1.0
    """How many processors' worth of time the sandbox gets when others compete for it."""
    open_files: int = 256
    """For each process."""
    file_bytes: int = 64 * 2**20
    """For each file."""
    disk_bytes: int = 256 * 2**20
    """For the workspace, and as much again for `/tmp`."""
    disk_files: int = 8192
    """In the workspace, and as many again in `/tmp`."""
    output_bytes: int = 64 * 1024
    """For each of standard output and standard error of one program."""
    network: Network = "none"
    """`none`, `loopback` for its own 127.0.0.1, or `host` for everything that the host reaches."""

    def within(self, sandbox: Limits) -> Limits:
        """These limits for one program, none of them wider than its sandbox's."""
        return dataclasses.replace(
            self,
            memory_bytes=min(self.memory_bytes, sandbox.memory_bytes),
            processes=min(self.processes, sandbox.processes),
            open_files=min(self.open_files, sandbox.open_files),
            file_bytes=min(self.file_bytes, sandbox.file_bytes),
        )


TIMED_OUT = 124
"""Exit code of a program that took too long, as of `timeout` in a shell."""
KILLED = 137
"""Exit code of a program that was killed, as in a shell."""


def exit_code_of(status: int, killed_by: Limit | None) -> int:
    """The exit code as a shell has it. `status` is as in `subprocess`: minus the number of a signal."""
    if killed_by in ("wall", "cpu"):
        return TIMED_OUT
    if killed_by == "memory" or (killed_by is not None and not status):
        return KILLED
    return status if status >= 0 else 128 - status


@dataclass(frozen=True, slots=True)
class Usage:
    """What a program used, as far as the backend can measure it."""

    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    memory_bytes: int = 0
    """The most memory that one of its processes held at once."""


@dataclass(frozen=True, slots=True)
class Finished:
    """How a program or a shell command ended."""

    exit_code: int
    """As in a shell: the program's own, or 128 plus the number of the signal that ended it, so 137 for a program that
    needed too much memory; 124 for one that took too long. `killed_by` and `signal` tell these from a program's own."""
    stdout: bytes
    stderr: bytes
    killed_by: Limit | None
    """The limit that the program exceeded, if that ended it."""
    usage: Usage
    isolation: Level
    state_lost: bool = False
    """The shell ended with this command; the next command gets a fresh shell in the same workspace."""
    signal: int | None = None
    """The number of the signal that ended the program, if one did. A shell does not report it for its programs."""

    @property
    def timed_out(self) -> bool:
        """Whether the wall time ran out and ended the program."""
        return self.killed_by == "wall"

    @classmethod
    def ended(
        cls,
        status: int,
        stdout: bytes,
        stderr: bytes,
        killed_by: Limit | None,
        *,
        usage: Usage,
        isolation: Level,
        state_lost: bool = False,
    ) -> Self:
        """`status` is as in `subprocess`: minus the number of the signal that ended it, if one did."""
        code = exit_code_of(status, killed_by)
        return cls(code, stdout, stderr, killed_by, usage, isolation, state_lost, -status if status < 0 else None)

    @classmethod
    def unstarted(cls, problem: object, isolation: Level) -> Self:
        """The result of a program that could not start: the request was invalid, or the sandbox is full."""
        text = f"toolyard: the program could not be started: {problem}\n"
        return cls(126, b"", text.encode(errors="replace"), None, Usage(), isolation)


@dataclass(frozen=True, slots=True)
class PythonError:
    """An exception that untrusted code did not catch."""

    name: str
    message: str
    traceback: str


@dataclass(frozen=True, slots=True)
class Executed:
    """What a piece of Python did in the session's interpreter."""

    stdout: str
    stderr: str
    value: str | None
    """repr() of the last line, if that is an expression whose value is not None."""
    error: PythonError | None
    killed_by: Limit | None
    usage: Usage
    isolation: Level
    state_lost: bool = False
    """The interpreter ended; the next code gets a fresh interpreter in the same workspace."""

    @property
    def timed_out(self) -> bool:
        """Whether the wall time ran out and ended the code."""
        return self.killed_by == "wall"


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in a directory of the workspace."""

    name: str
    kind: Literal["file", "directory", "link", "other"]
    size: int


@dataclass(frozen=True, slots=True)
class Missing:
    """A layer of isolation that this host does not provide, and how to get it."""

    feature: str
    reason: str
    fix: str


@dataclass(frozen=True, slots=True)
class Report:
    """The isolation really in force, measured by programs that try to break out."""

    backend: str
    level: Level
    layers: Mapping[str, str]
    """Maps each layer (files, network, processes, memory, system calls …) to what enforces it, or to 'none'."""
    missing: Sequence[Missing] = field(default_factory=tuple)

    def within(self, limits: Limits) -> Report:
        """This report for a sandbox with these limits: on the host's network, nothing separates it from the network."""
        if limits.network != "host":
            return self
        return dataclasses.replace(self, layers={**self.layers, "network": HOST_NETWORK})


HOST_NETWORK = "none, all that this host reaches"


class Process(Protocol):
    """A program that runs in the background of its sandbox until it ends, is killed, or the sandbox is closed.

    When it ends, the backend ends everything that it started. The backend keeps its unread output: up to
    `Limits.output_bytes` of standard output and as much of standard error. Beyond that, the program blocks in its next
    write until the caller reads; no output is lost. So a program with more output ends only after it has been read.

    If the host runs out of memory or processes and ends the program, `write`, `wait`, and `read` after the last output
    raise `SandboxLost`: the program did not end by itself.
    """

    @property
    def exit_code(self) -> int | None:
        """None while the program runs, then as in `Finished`; 137 also if the sandbox was lost."""

    @property
    def killed_by(self) -> Limit | None:
        """The limit that the program exceeded, if that ended it. Never `wall` nor `output`: neither applies here."""

    async def write(self, data: bytes) -> None:
        """Write to the program's standard input, at most a mebibyte at once.

        Raises `ProcessError` if the program has ended, has not read all of it within ten seconds, or has closed its
        input, where the backend can see that. Concurrent writes do not mix: one follows the other.
        """

    async def close_input(self) -> None:
        """Close standard input: the program reads the end of it after the last bytes written."""

    async def read(self, seconds: float) -> tuple[bytes, bytes]:
        """New standard output and error since the last read. If there is none, wait up to `seconds` for some; a program
        that has ended returns at once.

        Concurrent reads each get different bytes. A cancelled read takes none.
        """

    async def wait(self, seconds: float) -> bool:
        """Whether the program has ended, or ends within this time."""

    async def kill(self) -> None:
        """End the program and everything that it started. Output written before can still be read."""


class Interpreter(Protocol):
    """Runs Python in a sandbox."""

    async def exec(self, code: str, *, timeout: float | None = None) -> Executed: ...

    async def close(self) -> None: ...


class Grader(Protocol):
    """A sandbox that the agent never ran in, with a copy of the agent's files and the hidden files on top."""

    sandbox: Sandbox
    """For any other work in it."""
    left_out: Sequence[str]
    """The paths of the workspace that were not copied: links, pipes, and unreadable files."""

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Finished:
        """Like `Sandbox.run`. Compare the output in your own code: the program cannot forge that grade."""

    async def run_tests(
        self,
        paths: Sequence[str] | None = None,
        *,
        expected: Sequence[str] | None = None,
        timeout: float = 60.0,
        twins: int = 4,
        path: Sequence[str] = (".",),
        plugins: Sequence[str] = (),
    ) -> TestReport:
        """Run the hidden tests below these paths (default: all) with pytest, on the files that are there now.

        Each file runs in its own sandbox, and so does each of its `twins`, whose tests of the same names expect
        something else: code that passes both cheats, and the report is void. `expected` lists the ids of the tests that
        count; without it, the grader finds them by reading the files. `timeout` is for one file. `path` is where the
        code under test is imported from. `plugins` names the plugins that pytest loads beside the grader's.

        Raises `ToolyardError`, and never gives a score, if the sandbox, pytest or a hidden file is broken.
        """

    async def close(self) -> None:
        """End everything in its sandboxes."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


class Sandbox(Protocol):
    """A workspace and the programs in it. Closing it, or leaving its `async with`, removes all of it."""

    limits: Limits
    another: Callable[[Limits], Awaitable[Sandbox]]
    """Opens a fresh sandbox of the same profile, from the backend that made this one."""

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        limits: Limits | None = None,
    ) -> Finished:
        """Run a program in the workspace until it ends, then end everything that it started.

        `limits` are this program's, and `timeout` replaces their wall time. Memory, processes and files stay within the
        sandbox's. `env` adds to a small environment that holds nothing of the server's. If there is no such program,
        the exit code is 127.
        """

    async def exec(self, code: str, *, timeout: float | None = None) -> Executed:
        """Run Python in this session's interpreter, which keeps its variables between calls."""

    async def shell(self, command: str, *, timeout: float | None = None) -> Finished:
        """Run a command in this session's shell, which keeps its directory and variables between calls.

        When a limit or a cancelled call ends a command, it ends whole: everything that it started ends, the rest of it
        does not run, and its exit code is not 0. If the shell is lost too, the result has `state_lost`.
        """

    async def start(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, limits: Limits | None = None
    ) -> Process:
        """Start a program in the workspace that runs in the background.

        It has no time limit: kill it to end it. Its other limits, its environment and its exit code are as for `run`.
        A program that cannot start is returned as one that has ended.
        """

    async def stop_programs(self) -> None:
        """End every program with everything that it started, the interpreter and the shell too. Files are kept. The
        next `exec` or `shell` starts a fresh interpreter or shell."""

    async def read(self, path: str) -> bytes:
        """Read a file of the workspace. A path is relative to the workspace, or begins with the workspace's path."""

    async def write(self, path: str, data: bytes, *, mode: int | None = None) -> None:
        """Write a whole file of the workspace, and make its directories. Of concurrent writes to one file, the last one
        wins and is complete.

        `mode` sets its permissions, such as `0o755` for a program. Default: 0o644 for a new file, unchanged for one
        that exists.
        """

    async def list(self, path: str = ".") -> Sequence[Entry]:
        """The names in a directory of the workspace, sorted."""

    async def put(self, source: Files, path: str = ".") -> Sequence[str]:
        """Copy a folder of the host into a folder of the workspace, or a file to a path there, or files by their path.

        Contents, permissions, empty folders and links that stay inside are copied. Returns the names that were
        left out: pipes, sockets, devices and links that lead out. Replaces existing files and keeps all others.
        """

    async def get(self, path: str, target: Path) -> Sequence[str]:
        """Copy a file or a folder of the workspace to a path of the host where nothing is yet, or an empty folder.

        Nothing that a program put there can reach beyond `target`. Returns the names that were left out: links that
        lead out of the folder, and names that the host's file system refuses. Pipes, sockets and devices are never
        copied. Raises `WorkspaceError`, and copies nothing, if there is more than the sandbox's limits `disk_bytes` and
        `disk_files` allow.
        """

    async def pack(self, path: str = ".") -> bytes:
        """Return a file or a folder as a tar archive that any tool can unpack without harm. Otherwise like `get`."""

    async def unpack(self, archive: bytes, path: str = ".") -> None:
        """Unpack a tar archive, compressed or not, into a folder of the workspace.

        Raises `WorkspaceError` at the first entry that is no file, folder or link, that leads out of that folder, or
        that exceeds the limits `disk_bytes` and `disk_files`. Earlier entries stay in the workspace.
        """

    async def fork(self, count: int = 1) -> Sequence[Sandbox]:
        """Open as many branches, each with its own copy of the session's variables and workspace.

        Raises `CannotFork` when something in the session cannot be copied, such as a thread, or files for which the
        sandbox has no memory left; `NoRoom` when the server has no room. After any exception, the sandbox is unchanged
        and there is no branch. Background programs do not prevent a fork: they stay with the sandbox, and no branch has
        them.
        """

    async def grader(
        self,
        *,
        files: Sequence[str] | None = None,
        hidden: Mapping[str, str | bytes | Path] | Path | None = None,
        limits: Limits | None = None,
    ) -> Grader:
        """A fresh sandbox with a copy of the workspace, to grade it in. The caller closes it.

        This first ends every program in this sandbox, so that nothing changes while it is copied. `files` are paths,
        folders and patterns; default: everything. `hidden` files are written last: text, bytes, or the host's path of a
        file or a folder. Not copied: links, file modes, empty folders, `.git` and `__pycache__`.

        Raises `WorkspaceError` if the workspace has more than can be copied.
        """

    def report(self) -> Report:
        """Say what isolates this sandbox."""
        ...

    async def close(self) -> None:
        """End every program and free everything. Closing twice is no error."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


class Backend(Protocol):
    """Makes sandboxes on this host, by one mechanism."""

    name: str

    async def start(self) -> Report:
        """Prepare, then measure how well it isolates. Raises `SandboxUnavailable` if it cannot work here."""

    async def open(self, limits: Limits | None = None, *, profile: Profile = "plain") -> Sandbox: ...

    def report(self) -> Report: ...

    async def close(self) -> None:
        """Close every open sandbox and leave nothing behind."""


@runtime_checkable
class Interpreting(Protocol):
    """A backend with something lighter than a sandbox for a single piece of code."""

    async def open_interpreter(self, limits: Limits | None = None, *, profile: Profile = "plain") -> Interpreter:
        """An interpreter as isolated as a sandbox. Use it once, then close it."""


@runtime_checkable
class Counted(Protocol):
    """A backend that counts its sandboxes."""

    def count(self) -> tuple[int, int]:
        """Sandboxes in use, and spare sandboxes made in advance."""


def at_least(level: Level, minimum: Level) -> bool:
    return LEVELS.index(level) >= LEVELS.index(minimum)
