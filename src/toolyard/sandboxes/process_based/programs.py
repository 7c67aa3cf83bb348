"""Programs as ordinary processes of this host: how they start, what they use, how they end."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import resource
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from toolyard.sandboxes.pipes import Capture, nobody
from toolyard.sandboxes.process_based.launcher import tree, used


@dataclass(frozen=True, slots=True)
class Ending:
    code: int
    cpu_seconds: float = 0.0
    memory_bytes: int = 0
    out_of_memory: bool = False
    """The kernel killed a process of it at the sandbox's own memory limit."""
    host_out_of_memory: bool = False
    """The kernel killed a process of it for want of the host's memory."""
    unstarted: int = 0
    """The error number if it could not begin."""
    wall_seconds: float = 0.0
    """By the clock beside it; 0 if there was none."""


class HelperProcess:
    """A process of ours, by its pipes. Its user closes it."""

    def __init__(
        self, process: subprocess.Popen[bytes], files: Sequence[int], *, name: str, output_bytes: int, mark: str
    ) -> None:
        self.name = name
        self.mark = mark
        self.killed = False
        """Whether we killed it, whatever a process in between reports."""
        self.unwanted = False
        """Whether it was still running when we began to end it."""
        self.pid = process.pid
        self.stdin, stdout, stderr = files
        self.on_full: Callable[[], None] = nobody
        self.stdout = Capture(stdout, output_bytes, self._full)
        self.stderr = Capture(stderr, output_bytes, self._full)
        for stream in (self.stdout, self.stderr):
            stream.begin(output_bytes, mark.encode(), forget=False)  # keep output that came before
        self.used = False
        """Whether a lasting program has had a request."""
        self._process = process
        self._peak_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[Ending] = self._loop.create_future()
        self._wait()

    async def end(self) -> Ending:
        """Wait for its end. Cancelling one caller does not affect the others."""
        await asyncio.wait((self.ended,))
        return self.ended.result()

    @property
    def told(self) -> bool:
        """Whether a launcher with a mark has reported its program's end."""
        return bool(self.mark) and self.stdout.answer.done()

    async def ending(self) -> Ending:
        """How it ended: the launcher's report if there is one."""
        ending = await self.end()
        self.stdout.take()
        if self.told:
            with contextlib.suppress(ValueError, KeyError, TypeError, OverflowError, RecursionError):
                said = json.loads(self.stdout.answer.result())
                return Ending(
                    int(said["code"]),
                    float(said["cpu"]),
                    int(said["peak"]),
                    out_of_memory=said["out_of_memory"] == "own",
                    host_out_of_memory=said["out_of_memory"] == "host",
                    unstarted=int(said["unstarted"]),
                    wall_seconds=float(said["wall"]),
                )
        return replace(ending, code=-signal.SIGKILL) if self.killed else ending

    def last_words(self) -> str:
        """The last line of its standard error."""
        lines = self.stderr.take().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it gives no reason")

    def rest(self) -> None:
        """Between commands: stop reading when the buffer is full, instead of dropping output."""
        self.stdout.idle = self.stderr.idle = True

    def close(self) -> None:
        if self.stdin >= 0:
            os.close(self.stdin)
            self.stdin = -1
        self.stdout.leave()
        self.stderr.leave()
        self.on_full = nobody  # the callback may hold a reference to us

    def kill_group(self) -> None:
        """Kill the process and its descendants that stayed in its group. The pid is safe to use until `ended`."""
        if not self.ended.done():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def _full(self) -> None:
        self.on_full()

    def _wait(self) -> None:
        if not hasattr(os, "pidfd_open"):
            threading.Thread(target=self._wait_in_thread, daemon=True).start()
            return
        pidfd = os.pidfd_open(self.pid)

        def ended() -> None:
            self._loop.remove_reader(pidfd)
            os.close(pidfd)
            self._reap()

        self._loop.add_reader(pidfd, ended)

    def _wait_in_thread(self) -> None:
        """For systems without pidfds."""
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        self._loop.call_soon_threadsafe(self._reap)

    def _reap(self) -> None:
        self.kill_group()  # before wait4 frees the pid for reuse
        _, status, usage = os.wait4(self.pid, 0)
        code = self._process.returncode = os.waitstatus_to_exitcode(status)
        # On Linux, a new process counts its parent's memory as its own peak. A lower peak of its own is unknown.
        peak = usage.ru_maxrss * 1024 if usage.ru_maxrss > self._peak_before else 0
        self.ended.set_result(Ending(code, usage.ru_utime + usage.ru_stime, peak))


def start(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    output_bytes: int,
    name: str = "",
    mark: str = "",
    cwd: str | None = None,
    owner: int = -1,
    pass_fds: Sequence[int] = (),
) -> HelperProcess:
    """Start a program in its own session. Raises OSError or ValueError if that fails.

    `mark` is the mark of the launcher's report. `owner` is the user who must be able to open the pipes by name, such as
    /dev/stdout.
    """
    theirs, ours = _pipes()
    try:
        for fd in theirs:
            if owner >= 0:
                os.fchown(fd, owner, owner)
        process = subprocess.Popen(
            list(argv),
            stdin=theirs[0],
            stdout=theirs[1],
            stderr=theirs[2],
            cwd=cwd,
            env=dict(env),
            pass_fds=pass_fds,
            start_new_session=True,
        )
    except BaseException:
        for fd in ours:
            os.close(fd)
        raise
    finally:
        for fd in theirs:
            os.close(fd)
    return HelperProcess(process, ours, name=name, output_bytes=output_bytes, mark=mark)


def _pipes() -> tuple[Sequence[int], Sequence[int]]:
    """Standard input, output and error: the program's ends, and ours."""
    pipes: list[tuple[int, int]] = []
    try:
        for _ in range(3):
            pipes.append(os.pipe())
    except OSError:
        for fd in itertools.chain.from_iterable(pipes):
            os.close(fd)
        raise
    (stdin, feeds), (output, stdout), (errors, stderr) = pipes
    return (stdin, stdout, stderr), (feeds, output, errors)


def usage_below(pid: int) -> tuple[float, int]:
    """Seconds of processor time and bytes of memory of a process and all of its descendants."""
    uses = [used(one) for one in tree(pid)]
    return sum(cpu for cpu, _ in uses), sum(memory for _, memory in uses)
