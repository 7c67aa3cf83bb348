"""The two servers to compare: how each starts, and what the system reports of its processes."""

from __future__ import annotations

import http.client
import importlib
import json
import os
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cache import cache

venvs: Any = importlib.import_module("tests.peers.venvs")  # Any: mypy does not check tests

ENVIRONMENT = Path(__file__).with_name("environment.py")
BENEATH = ("uvicorn", "uvloop", "httptools", "pydantic")
"""Packages that affect the figures of both."""

# As its own Server.run() does, but with another address, and explicitly with uvicorn's faster loop and parser.
SERVE_REFERENCE = """
import sys, uvicorn
from environment import Echo
from ors import Server
port = int(sys.argv[1])
uvicorn.run(Server([Echo]).app, port=port, loop="uvloop", http="httptools", access_log=False, timeout_keep_alive=60)
"""

_START_SECONDS = 60
_STOP_SECONDS = 30


@dataclass(frozen=True)
class Contender:
    """A server that can be started any number of times."""

    name: str
    """Of its distribution."""
    package: str
    python: Path
    command: Sequence[str]
    """Takes the port as its last argument."""
    folder: Path


@dataclass(frozen=True)
class Started:
    """A running server, known by its process, since CPU and memory are the process's."""

    pid: int
    port: int
    seconds_to_answer: float

    def ask(self, method: str, path: str, body: str = "", headers: Mapping[str, str] = {}) -> str:
        """One request outside the load, to check that the answer is right."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_START_SECONDS)
        connection.request(method, path, body, {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        if answer.status != 200:
            raise SystemExit(f"{method} {path} was answered {answer.status}: {text}")
        return text

    def memory(self) -> int:
        """Resident bytes of the process and its descendants."""
        return sum(_resident(pid) for pid in tree(self.pid))


def toolyard() -> Contender:
    command = [str(Path(sysconfig.get_path("scripts")) / "toolyard"), "serve", str(ENVIRONMENT), "--port"]
    return Contender("toolyard", "toolyard", Path(sys.executable), command, ENVIRONMENT.parent)


def serving(*what: str) -> Contender:
    """Toolyard with these arguments of `toolyard serve`, in the folder of the checkout."""
    command = [str(Path(sysconfig.get_path("scripts")) / "toolyard"), "serve", *what, "--port"]
    return Contender("toolyard", "toolyard", Path(sys.executable), command, Path(__file__).parents[1])


def reference() -> Contender:
    """The reference in its own virtual environment, which this makes the first time."""
    python = venvs.interpreter(venvs.Peer("ors-bench", [*venvs.ORS.requirements, "uvloop", "httptools"]))
    folder = cache() / "ors-sdk"
    folder.mkdir(exist_ok=True)
    ours, theirs = "from toolyard import ", "from ors import "
    source = ENVIRONMENT.read_text()
    assert source.count(ours) == 1
    (folder / ENVIRONMENT.name).write_text(source.replace(ours, theirs))
    return Contender("ors-sdk", "ors", python, [str(python), "-c", SERVE_REFERENCE], folder)


@contextmanager
def running(contender: Contender) -> Iterator[Started]:
    """Start a server and wait for its first answer; stop it on the way out."""
    port = _free_port()
    began = time.perf_counter()
    process = subprocess.Popen(
        [*contender.command, str(port)],
        cwd=contender.folder,
        env=clean_environment(),
        stdout=subprocess.DEVNULL,  # the reference logs each request, which would fill the disk
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for_answer(process, port)
        yield Started(process.pid, port, time.perf_counter() - began)
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def import_seconds(contender: Contender) -> float:
    """How long a fresh interpreter takes to import the package."""
    program = "import time; began = time.perf_counter(); import {}; print(time.perf_counter() - began)"
    return float(_run(contender, program.format(contender.package)))


def versions(contender: Contender) -> Mapping[str, str]:
    """Of the server itself and of the packages beneath it."""
    names = [contender.name, *BENEATH]
    program = f"import importlib.metadata as m, json; print(json.dumps({{name: m.version(name) for name in {names}}}))"
    found: dict[str, str] = json.loads(_run(contender, program))
    return found


def _run(contender: Contender, program: str) -> bytes:
    command = [str(contender.python), "-c", program]
    environment = clean_environment()
    return subprocess.run(command, cwd=contender.folder, env=environment, stdout=subprocess.PIPE, check=True).stdout


def clean_environment() -> dict[str, str]:
    """Our environment without variables that would change a server's settings or stop Python from caching modules."""
    unwanted = ("TOOLYARD_", "ORS_", "LOG_LEVEL", "PYTHONDONTWRITEBYTECODE")
    return {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}


def _wait_for_answer(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_START_SECONDS)
        try:
            connection.request("GET", "/health")
            connection.getresponse().read()
            return
        except ConnectionError:
            time.sleep(0.002)
        finally:
            connection.close()
    raise SystemExit(f"A server did not start. Run it by hand to see why: {process.args!r}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def tree(pid: int) -> Iterator[int]:
    """A process and its descendants."""
    yield pid
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in children.read_text().split():
            yield from tree(int(child))


def _resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
