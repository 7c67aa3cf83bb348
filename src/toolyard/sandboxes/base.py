"""The contract of every sandbox backend: a private workspace in which untrusted programs run.

A program that fails, or that is ended by a limit, is a result and never an exception. Exceptions say that the sandbox
itself could not do its work: `SandboxUnavailable` before it is there, `SandboxLost` after.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal, Protocol, Self, TypeAlias, runtime_checkable

from toolyard.sandboxes.verdicts import TestReport

Level: TypeAlias = Literal["L0", "L1", "L2", "L3-nolimit", "L3", "L4"]
"""How well a sandbox isolates, from nothing to a kernel of its own. docs/isolation.md says what each one means."""

LEVELS: Sequence[Level] = ("L0", "L1", "L2", "L3-nolimit", "L3", "L4")

Network: TypeAlias = Literal["none", "loopback", "host"]

Profile: TypeAlias = Literal["plain", "numeric", "symbolic", "analytic", "scientific", "ipython", "notebook"]
"""What a session's Python interpreter has loaded when it starts."""

Limit: TypeAlias = Literal["wall", "cpu", "memory", "output", "file_size"]
"""The limits that end a program. The others are refusals that it sees as errors of its own: no more processes, files
or space."""

WORKSPACE = "/home/work"
"""Where programs find their workspace, whichever backend runs them, if that has a file system of its own."""

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
"""What programs find in their environment, beside PATH: nothing of the server's."""

RESERVED_BYTES = 4 * 2**30
"""Address space that a process may have beside its memory, where no cgroup limits that: Java, Go and Node reserve
gigabytes of it that they never use. What a process can write to is limited to its memory all the same."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one sandbox, or one program in it, may use."""

    wall_seconds: float = 10.0
    """For one program, one piece of code or one shell command."""
    cpu_seconds: float | None = None
    """The same, in time on a processor. None: as long as the wall time lasts."""
    memory_bytes: int = 512 * 2**20
    """For everything in the sandbox together; where that cannot be enforced, for each process."""
    processes: int = 64
    """At once, threads included, in the sandbox and its branches."""
    cpus: float = 1.0
    """How many processors' worth of time the sandbox gets when others want it too."""
    open_files: int = 256
    """Of one process."""
    file_bytes: int = 64 * 2**20
    """Of one file."""
    disk_bytes: int = 256 * 2**20
    """Of the workspace, and as much again of `/tmp`."""
    disk_files: int = 8192
    """In the workspace, and as many again in `/tmp`."""
    output_bytes: int = 64 * 1024
    """For each of standard output and standard error of one program."""
    network: Network = "none"
    """`none`, `loopback` for an address 127.0.0.1 of its own, or `host` for all that the host reaches."""

    def within(self, sandbox: Limits) -> Limits:
        """As those of one program, which cannot be wider than its sandbox's."""
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
    """What a program took, as far as the backend can tell."""

    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    memory_bytes: int = 0
    """The most that one of its processes held at once."""


@dataclass(frozen=True, slots=True)
class Finished:
    """How a program or a shell command ended."""

    exit_code: int
    """As a shell has it: its own, or 128 and the number of the signal that ended it, so 137 for one that needed too
    much memory. 124 if its time was over. `killed_by` and `signal` tell these from codes that a program gave itself."""
    stdout: bytes
    stderr: bytes
    killed_by: Limit | None
    """The limit that it exceeded, if that is why it ended."""
    usage: Usage
    isolation: Level
    state_lost: bool = False
    """Of a shell command: the shell ended with it, and the next command gets a fresh one in the same workspace."""
    signal: int | None = None
    """The number of the signal that ended it, if one did. A shell keeps to itself which one ended a program of its."""

    @property
    def timed_out(self) -> bool:
        """The wall time was over, and so it was ended."""
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
        """Of a program that could not even begin, because of how it was asked for or because the sandbox is full."""
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
    """The interpreter ended; the next code gets a fresh one in the same workspace."""

    @property
    def timed_out(self) -> bool:
        """The wall time was over, and so it was ended."""
        return self.killed_by == "wall"


@dataclass(frozen=True, slots=True)
class Entry:
    """One name in a directory of the workspace."""

    name: str
    kind: Literal["file", "directory", "link", "other"]
    size: int


@dataclass(frozen=True, slots=True)
class Missing:
    """A layer of isolation that this host does not give, and what would change that."""

    feature: str
    reason: str
    fix: str


@dataclass(frozen=True, slots=True)
class Report:
    """The isolation really in force, found by running programs that try to get around it."""

    backend: str
    level: Level
    layers: Mapping[str, str]
    """By name of a layer (files, network, processes, memory, system calls …): what enforces it, or 'none'."""
    missing: Sequence[Missing] = field(default_factory=tuple)

    def within(self, limits: Limits) -> Report:
        """What holds for a sandbox with these limits: one that has the host's network has no wall there."""
        if limits.network != "host":
            return self
        return dataclasses.replace(self, layers={**self.layers, "network": HOST_NETWORK})


HOST_NETWORK = "none, all that this host reaches"


class Process(Protocol):
    """A program that goes on beside everything else in its sandbox, until it ends, is killed, or the sandbox is closed.

    When it ends, everything that it started ends with it. What it writes is kept until it is read: as many bytes of
    each of standard output and error as `Limits.output_bytes` says. Then it is held back: it waits in its next write,
    nothing is lost, and nothing grows. So one that has a lot to say does not end before that is read.

    If the host runs out of memory or processes and ends it, whoever writes, waits, or has read all that it wrote gets
    `SandboxLost`: it did not end by itself.
    """

    @property
    def exit_code(self) -> int | None:
        """None as long as it runs, then as that of `Finished`; 137 also if the sandbox went."""

    @property
    def killed_by(self) -> Limit | None:
        """The limit that it exceeded, if that is why it ended. Not `wall`, nor `output`, for it has none of those."""

    async def write(self, data: bytes) -> None:
        """Write to its standard input, at most a mebibyte at once.

        Raises `ProcessError` if it has ended, has not taken all of it in ten seconds, or has closed its input, where
        that can be seen. What several write at the same time comes one after the other.
        """

    async def close_input(self) -> None:
        """It finds the end of its standard input when it has read what was written."""

    async def read(self, seconds: float) -> tuple[bytes, bytes]:
        """What has come on standard output and error since it was last read. If there is nothing, wait for something
        to come, but not longer than this, and not at all when the program has ended.

        Several may read at once: each byte is given to one of them. Who gives up waiting has taken nothing.
        """

    async def wait(self, seconds: float) -> bool:
        """Whether it has ended, or does so in this time."""

    async def kill(self) -> None:
        """End it with everything that it started. What it has written can still be read; nothing more comes."""


class Interpreter(Protocol):
    """What runs Python in a sandbox."""

    async def exec(self, code: str, *, timeout: float | None = None) -> Executed: ...

    async def close(self) -> None: ...


class Grader(Protocol):
    """A sandbox that the agent was never in, with a copy of its files and with hidden ones on top."""

    sandbox: Sandbox
    """For whatever else is to be done in it."""
    left_out: Sequence[str]
    """What of the workspace was not copied: links, pipes, and what cannot be read."""

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Finished:
        """As that of a sandbox. What the program prints, compared by the caller, is the grade that cannot be forged."""

    async def run_tests(
        self,
        paths: Sequence[str] | None = None,
        *,
        expected: Sequence[str] | None = None,
        timeout: float = 60.0,
        twins: int = 3,
        path: Sequence[str] = (".",),
        plugins: Sequence[str] = (),
    ) -> TestReport:
        """Run the hidden tests below these paths, or all of them, with pytest, on the files that are there now.

        Each file runs in a sandbox of its own, and so does each of its `twins`, in which tests of the same names
        expect something else: code that passes both has cheated, and the report is void. `expected` are the tests that
        count, by id; without it they are found by reading the files. `timeout` is for one file. `path` is where the
        code under test is imported from, `plugins` are those that pytest loads beside its own.

        Raises `ToolyardError`, and never gives a score, if the sandbox, pytest or a hidden file is not as it must be.
        """

    async def close(self) -> None:
        """End everything in its sandboxes."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


class Sandbox(Protocol):
    """A workspace, and the programs in it. Leave it, or close it, and nothing of it is left."""

    limits: Limits
    another: Callable[[Limits], Awaitable[Sandbox]]
    """How to get a fresh one of the same profile, from where this one came from."""

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        limits: Limits | None = None,
    ) -> Finished:
        """Run a program to its end, in the workspace, and end everything that it started.

        `limits` are those of this program, and `timeout` takes the place of their wall time. Memory, processes and
        files stay within what the sandbox has. `env` is added to a small environment that holds nothing of the
        server's. A program that is not there has exit code 127.
        """

    async def exec(self, code: str, *, timeout: float | None = None) -> Executed:
        """Run Python in the interpreter of this session, which keeps its variables from one call to the next."""

    async def shell(self, command: str, *, timeout: float | None = None) -> Finished:
        """Run a command in the shell of this session, which keeps its directory and variables.

        One that is ended, by a limit or because nobody waits for it any more, is ended whole: nothing that it has
        started goes on, the rest of it does not run, and its exit code is not 0. If that costs the shell, the result
        has `state_lost`.
        """

    async def start(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, limits: Limits | None = None
    ) -> Process:
        """Start a program in the workspace that goes on by itself, beside whatever else is run.

        It may take as long as it likes: who wants it to end kills it. Its other limits, its environment and its exit
        code are as those of `run`, and one that could not be started has ended already.
        """

    async def stop_programs(self) -> None:
        """End every program, the interpreter and the shell too, with everything that they started. Files are kept, and
        whoever wants to run something again gets it afresh."""

    async def read(self, path: str) -> bytes:
        """A file of the workspace. Paths are relative to it, or begin with its own path."""

    async def write(self, path: str, data: bytes, *, mode: int | None = None) -> None:
        """Write a file of the workspace, whole, and the directories that it needs. Of several who write to it at once,
        one is the last, and all of what that one wrote is there.

        `mode` are its permissions, such as `0o755` for a program. Without it a new file has 0o644, and one that was
        there keeps what it has.
        """

    async def list(self, path: str = ".") -> Sequence[Entry]:
        """The names in a directory of the workspace, sorted."""

    async def fork(self, count: int = 1) -> Sequence[Sandbox]:
        """As many sandboxes that go on from here, each with its own copy of the variables and the workspace.

        Raises `CannotFork` when something in the session cannot be copied, such as a thread, or files for which the
        sandbox has no memory left; `NoRoom` when the server has no room. Whatever it raises, the sandbox is as it was,
        and there is no branch. Programs that go on are not copied and are no hindrance: the sandbox keeps them, and no
        branch has them.
        """

    async def grader(
        self,
        *,
        files: Sequence[str] | None = None,
        hidden: Mapping[str, str | bytes | Path] | Path | None = None,
        limits: Limits | None = None,
    ) -> Grader:
        """A fresh sandbox with a copy of the workspace, in which to grade it. Whoever opens it closes it.

        It ends every program in this sandbox first, so that nothing changes what is copied. `files` are paths, folders
        and patterns, if not all is wanted. `hidden` files are added last: text, bytes, or the host's path of a file or
        a folder. Links are not copied, nor are modes of files, empty folders, `.git` and `__pycache__`.

        Raises `WorkspaceError` if the workspace has more than can be copied.
        """

    def report(self) -> Report:
        """Say what isolates it."""
        ...

    async def close(self) -> None:
        """End every program and free everything. Closing twice is no error."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


class Backend(Protocol):
    """A way to make sandboxes on this host."""

    name: str

    async def start(self) -> Report:
        """Get ready and find out, by doing, how well it isolates. Raises `SandboxUnavailable` if it cannot work."""

    async def open(self, limits: Limits | None = None, *, profile: Profile = "plain") -> Sandbox: ...

    def report(self) -> Report: ...

    async def close(self) -> None:
        """Close every sandbox that is still open, and leave nothing behind."""


@runtime_checkable
class Interpreting(Protocol):
    """A backend that has something lighter than a sandbox for a single piece of code."""

    async def open_interpreter(self, limits: Limits | None = None, *, profile: Profile = "plain") -> Interpreter:
        """As isolated as a sandbox is. It is used once, and then closed."""


@runtime_checkable
class Counted(Protocol):
    """A backend that knows how many sandboxes it has."""

    def count(self) -> tuple[int, int]:
        """Those in use, and those made in advance for whoever asks next."""


def at_least(level: Level, minimum: Level) -> bool:
    return LEVELS.index(level) >= LEVELS.index(minimum)
