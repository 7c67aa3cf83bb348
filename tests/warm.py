"""Starts commands of ours, each in a process that need not import Toolyard first.

Imports are most of what a short command costs. So one process imports all commands, once for each process of tests,
and forks for each command. What runs then is a process of its own, with its own arguments, directory, variables,
streams, session and exit code. Start a command with `subprocess` to limit it, or to see it import.
"""

from __future__ import annotations

import atexit
import gc
import io
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

from toolyard.cli import build_parser, command_names

_LONGEST_REQUEST = 1 << 20


class Process:
    """A command that runs, or has run: what `subprocess.Popen` is for others, in as far as tests need it."""

    def __init__(
        self, module: str, words: Sequence[str], streams: Sequence[int], *, cwd: Path | None, env: Mapping[str, str]
    ) -> None:
        """Start `python -m MODULE WORDS`, at the head of a session of its own. Its three streams are closed here."""
        assert not needs_a_new_python(env)
        request = {"module": module, "words": words, "cwd": str(cwd or Path.cwd()), "env": dict(env)}
        self.returncode: int | None = None
        self.stdout: IO[str] | None = None
        self._line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._line.connect(_address())
            socket.send_fds(self._line, [json.dumps(request).encode()], streams)
        finally:
            for stream in {*streams}:
                os.close(stream)
        self.pid = int(self._line.recv(64))

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code."""
        if self.returncode is None:
            self._line.settimeout(timeout)
            try:
                self.returncode = int(self._line.recv(64))
            except (TimeoutError, BlockingIOError):  # the second if the time is 0
                raise subprocess.TimeoutExpired("toolyard", timeout or 0) from None
            self._line.close()
        return self.returncode

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def needs_a_new_python(env: Mapping[str, str]) -> bool:
    """Whether these are variables of Python's own that a process cannot have after a fork."""
    of_python = {name: value for name, value in env.items() if name.startswith("PYTHON")}
    of_python.pop("PYTHONUNBUFFERED", None)
    return not of_python.items() <= os.environ.items()


def toolyard(
    *words: str,
    stdin: bytes | str = b"",
    cwd: Path | None = None,
    env: Mapping[str, str] = os.environ,
    text: bool = True,
    timeout: float = 60,
) -> subprocess.CompletedProcess[Any]:
    """Run `toolyard` with these words, as `subprocess.run` would, and capture what it says."""
    given = stdin.encode() if isinstance(stdin, str) else stdin
    (source, feed), (hear_out, out), (hear_err, err) = os.pipe(), os.pipe(), os.pipe()
    with ThreadPoolExecutor(3) as threads:
        process = Process("toolyard", words, [source, out, err], cwd=cwd, env=env)
        fed = threads.submit(_feed, feed, given)
        said = [threads.submit(_hear, stream) for stream in (hear_out, hear_err)]
        try:
            code = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        fed.result(timeout)
        told: list[Any] = [one.result(timeout) for one in said]
    if text:
        told = [one.decode().replace("\r\n", "\n") for one in told]
    return subprocess.CompletedProcess(["toolyard", *words], code, *told)


def _feed(stream: int, given: bytes) -> None:
    with open(stream, "wb") as pipe, suppress(BrokenPipeError):  # if it does not want all of it
        pipe.write(given)
        pipe.flush()


def _hear(stream: int) -> bytes:
    with open(stream, "rb") as pipe:
        return pipe.read()


@cache
def _address() -> str:
    """Where the process that forks listens. It ends with this one, but is no child of it: some tests count those."""
    folder = tempfile.TemporaryDirectory(prefix="toolyard-warm-")
    address = f"{folder.name}/line"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen(64)
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.warm", str(listener.fileno())],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            pass_fds=[listener.fileno()],
        )
    process.wait()
    assert process.stdin is not None
    for last_first in (folder.cleanup, process.stdin.close):
        atexit.register(last_first)
    return address


# The process that forks.


def _request(listener: socket.socket) -> dict[str, Any]:
    """What is to be run, in the process that was forked to run it. The process that forks stays in here."""
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if listener not in ready:  # the process of tests has ended
            os._exit(0)
        line, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            return _forked(line)
        line.close()


def _forked(line: socket.socket) -> dict[str, Any]:
    """Fork once more. The process in between says what became of the other one."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    message, streams, _, _ = socket.recv_fds(line, _LONGEST_REQUEST, 3)
    process = os.fork()
    if process == 0:
        line.close()
        os.setsid()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        request: dict[str, Any] = json.loads(message)
        return request
    for stream in streams:
        os.close(stream)
    line.send(str(process).encode())
    _, status = os.waitpid(process, 0)
    line.send(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _become(request: Mapping[str, Any]) -> None:
    """Make this process one that somebody started with `python -m MODULE WORDS`."""
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.path[0] = request["cwd"]
    sys.argv = [request["module"], *request["words"]]
    if os.environ.get("PYTHONUNBUFFERED"):
        for stream in (sys.stdout, sys.stderr):
            assert isinstance(stream, io.TextIOWrapper)
            stream.reconfigure(write_through=True)


if __name__ == "__main__":
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    build_parser(command_names())
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        request = _request(listener)
    _become(request)
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
