"""`toolyard serve` as a process of its own, for as long as a recipe runs."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
_START_SECONDS = 120
_STOP_SECONDS = 60


@contextmanager
def served(
    target: str, *options: str, url: str = "", log: Path | None = None, cores: Sequence[int] = ()
) -> Iterator[str]:
    """Serve a file of this folder and give the URL. If there is a `url` already, use that server.

    The server and all its processes stay on `cores`, if any are named.
    """
    if url:
        find(url)
        yield url
        return
    port = free_port()
    command = [sys.executable, "-m", "toolyard", "serve", str(HERE / target), "--port", str(port), *options]
    output = (log or Path(os.devnull)).open("ab")
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, cores or before)
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    finally:
        os.sched_setaffinity(0, before)
        output.close()
    try:
        wait_for_health(process, f"http://127.0.0.1:{port}")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(_STOP_SECONDS)


def find(url: str) -> None:
    try:
        urllib.request.urlopen(f"{url.rstrip('/')}/health", timeout=_START_SECONDS).close()
    except (OSError, ValueError) as error:
        raise SystemExit(f"no server answers at {url}: {error}") from None


def wait_for_health(process: "subprocess.Popen[bytes]", url: str) -> None:
    ends = time.monotonic() + _START_SECONDS
    while time.monotonic() < ends:
        if process.poll() is not None:
            raise SystemExit(f"the server ended with {process.returncode}; run it by hand to see why: {process.args!r}")
        try:
            urllib.request.urlopen(f"{url}/health", timeout=_START_SECONDS).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise SystemExit(f"the server did not answer for {_START_SECONDS} seconds: {process.args!r}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
