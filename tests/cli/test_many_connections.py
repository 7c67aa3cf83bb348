"""Hundreds of connections that only take up room, against a server that may open 1,024 files."""

from __future__ import annotations

import json
import os
import re
import resource
import select
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.command import TOOLYARD, Command

pytestmark = [pytest.mark.alone, pytest.mark.thorough]

COUNT, FILES = 500, 1024
HEAD, BODY = 3, 3
"""Seconds that the server gives them."""
GONE_WITHIN = 30.0
"""Seconds from the last connection, with a margin for a busy machine."""
MOST_MORE = 200 * 2**20
"""Bytes of memory that all of them together may cost."""
HALF = 100_000
KINDS = {
    "silent": b"",
    "trickling": b"POST /mathenv/call HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A: ",
    "half a body": b"POST /mathenv/tasks HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9999999\r\n\r\n" + bytes(HALF),
}


@pytest.fixture(scope="module", autouse=True)
def enough_files() -> Iterator[None]:
    """Enough files for this process, which holds the other ends of all of them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4 * COUNT + 500
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"this process may have {hard} open files, and needs {wanted}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def serving(gateways: int, tmp_path: Path, *, files: int = FILES, more: str = "") -> Iterator[tuple[int, Command]]:
    """A server with a `ulimit -n` set by a shell."""
    (tmp_path / "many.py").write_text(
        "from toolyard import Environment, tool\n\n\n"
        "class Plain(Environment):\n"
        "    @classmethod\n    def list_splits(cls):\n        return ['train']\n\n"
        "    @classmethod\n    def list_tasks(cls, split):\n        return [{'id': 1}]\n\n"
        "    def get_prompt(self):\n        return 'say'\n\n"
        "    @tool\n    def say(self, text: str) -> str:\n        return text\n"
    )
    flags = f"--port 0 --gateways {gateways} --head-seconds {HEAD} --body-seconds {BODY} {more}"
    shell = f"ulimit -n {files} && exec {TOOLYARD} serve many.py {flags}"
    command = Command(["bash", "-c", shell], env={}, cwd=tmp_path)
    try:
        port = int(command.until(r"http://127\.0\.0\.1:(\d+)")[1])
        yield port, command
    finally:
        command.process.terminate()
        command.wait()


class Ordinary(threading.Thread):
    """Sends requests again and again, on its connection and on new ones, until told to stop."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._port = port
        self.stop = threading.Event()
        self.answers = 0
        self.longest = 0.0
        self.failed: list[str] = []

    def run(self) -> None:
        kept = socket.create_connection(("127.0.0.1", self._port), timeout=30)
        while not self.stop.wait(0.02):
            for connection in (kept, None):
                began = time.monotonic()
                try:
                    self.ask(connection)
                    self.answers += 1
                except OSError as error:
                    self.failed.append(f"{'kept' if connection else 'new'}: {error!r}")
                self.longest = max(self.longest, time.monotonic() - began)
            if len(self.failed) > 5:
                break
        kept.close()

    def ask(self, kept: socket.socket | None) -> None:
        if kept is None:
            url = f"http://127.0.0.1:{self._port}/list_environments"
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(url, timeout=30) as answer:
                json.load(answer)
            return
        kept.sendall(b"GET /list_environments HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        if not (said := kept.recv(65536)).startswith(b"HTTP/1.1 200 "):
            raise OSError(f"answered {said[:40]!r}")


def pids(command: Command) -> list[int]:
    """The server's processes."""
    first = command.process.pid
    children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
    return [first, *map(int, children)]


def memory(command: Command) -> int:
    texts = [Path(f"/proc/{pid}/status").read_text() for pid in pids(command)]
    return sum(1024 * int(found[1]) for text in texts if (found := re.search(r"VmRSS:\s+(\d+)", text)))


def opened(port: int, said: bytes) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=30)
    sock.setblocking(False)
    tell(sock, said)
    return sock


def tell(sock: socket.socket, said: bytes) -> None:
    try:
        sock.send(said)
    except (BlockingIOError, ConnectionError):
        return  # the server reads no more, or has closed it


def still_open(socks: list[socket.socket]) -> list[socket.socket]:
    """Those that the server has not closed."""
    poll = select.poll()
    by_number = {sock.fileno(): sock for sock in socks}
    for number in by_number:
        poll.register(number, select.POLLIN | select.POLLRDHUP)
    over = {number for number, events in poll.poll(0) if events & (select.POLLRDHUP | select.POLLHUP | select.POLLERR)}
    return [sock for number, sock in by_number.items() if number not in over]


@pytest.mark.parametrize("gateways", [1, 2])
def test_an_ordinary_client_is_served_while_1500_connections_take_up_room_and_they_go(gateways: int, tmp_path: Path):
    with serving(gateways, tmp_path) as (port, command):
        ordinary = Ordinary(port)
        ordinary.start()
        before, most = memory(command), 0
        socks: list[socket.socket] = []
        try:
            for number in range(3 * COUNT):
                socks.append(opened(port, list(KINDS.values())[number % 3]))
                if number % 50 == 0:
                    most = max(most, memory(command))
            trickling = socks[1::3]
            ends = time.monotonic() + GONE_WITHIN
            while left := still_open(socks):
                assert time.monotonic() < ends, f"{len(left)} are still open"
                for sock in trickling:
                    tell(sock, b"x")
                most = max(most, memory(command))
                time.sleep(0.3)
            answered = ordinary.answers
            while ordinary.answers < answered + 4 and ordinary.is_alive():
                time.sleep(0.02)
        finally:
            ordinary.stop.set()
            ordinary.join()
            for sock in socks:
                sock.close()
        assert not ordinary.failed
        assert ordinary.answers > 10
        assert ordinary.longest < 10
        assert most - before < MOST_MORE
        assert "Too many open files" not in command.output
        assert len(command.output.splitlines()) < 40, command.output


@pytest.mark.parametrize(("more", "most"), [("", 160), ("--api-key secret", 40)])
def test_bodies_that_are_never_complete_share_their_memory_and_have_none_without_the_key(
    more: str, most: int, tmp_path: Path
):
    """`most` is in MiB. Each of them alone is allowed."""
    start = b"POST /plain/tasks HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 16000000\r\n\r\n"
    with serving(1, tmp_path, more=more) as (port, command):
        before = seen = memory(command)
        socks = [opened(port, start) for _ in range(20)]
        left = dict.fromkeys(socks, 15_900_000)
        ends = time.monotonic() + 3
        while time.monotonic() < ends and any(left.values()):
            for sock in [sock for sock, size in left.items() if size]:
                left[sock] -= sent(sock, left[sock])
            seen = max(seen, memory(command))
        for sock in socks:
            sock.close()
        assert seen - before < most * 2**20


def sent(sock: socket.socket, most: int) -> int:
    """Sends bytes and returns how many went out; all of them, if there is no limit."""
    try:
        return sock.send(bytes(min(most, 65536)))
    except BlockingIOError:
        return 0
    except ConnectionError:
        return most


def test_a_server_without_a_descriptor_for_one_more_neither_spins_nor_says_so_again_and_again(tmp_path: Path):
    files = 100
    with serving(1, tmp_path, files=files, more="--max-connections 1000") as (port, command):
        socks = [opened(port, KINDS["trickling"]) for _ in range(2 * files)]
        first, used = command.process.pid, []
        for _ in range(2):
            fields = Path(f"/proc/{first}/stat").read_text().rsplit(")", 1)[1].split()
            used.append(sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK"))
            time.sleep(1)
        lines = len(command.output.splitlines())
        assert used[1] - used[0] < 0.5
        assert lines < 40, command.output[-2000:]
        for sock in socks:
            sock.close()
        ends = time.monotonic() + GONE_WITHIN
        while not answers(port):
            assert time.monotonic() < ends


@pytest.mark.parametrize(("most", "is_said"), [(1600, True), (400, False)])
def test_more_connections_than_open_files_are_said_at_the_start(tmp_path: Path, most: int, is_said: bool):
    with serving(2, tmp_path, files=500, more=f"--max-connections {most}") as (_, command):
        assert ("ulimit -n lets it have 500 open files" in command.output) == is_said, command.output


def test_half_a_body_is_refused_when_the_server_stops_and_does_not_hold_it_up(tmp_path: Path):
    half = KINDS["half a body"].replace(b"mathenv", b"plain")
    with serving(1, tmp_path, more="--body-seconds 60") as (port, command), opened(port, half) as sock:
        sock.settimeout(GONE_WITHIN)
        assert answers(port)  # so it has read some of the other one too
        command.process.terminate()
        assert sock.recv(65536).startswith(b"HTTP/1.1 503 Service Unavailable")
        command.wait()
        assert "Traceback" not in command.output


def answers(port: int) -> bool:
    try:
        Ordinary(port).ask(None)
    except OSError:  # it has not noticed yet that the others are gone
        return False
    return True
