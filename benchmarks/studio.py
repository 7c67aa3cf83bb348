"""What Studio costs the calls of a server: `python -m benchmarks.studio`.

Servers of ours are up at once and take turns under the same load: one without Studio, one that nobody looks at, one
whose overview is open, and one with a page that watches a session. What is looked for is small, and neighbours only
ever add to the cost of a call: so a figure is the lowest of many short turns.
"""

from __future__ import annotations

import argparse
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import date

from benchmarks import ors
from benchmarks.cache import load_generator
from benchmarks.load import Load, Step, drive
from benchmarks.report import STUDIO_PAGE, aligned, check_platform, micro, processor, progress
from benchmarks.servers import Started, running, serving
from benchmarks.turns import in_turns

ENVIRONMENT = "benchmarks/environment.py"
TARGET = 1.05
"""How much dearer a call may be while Studio is open."""

WORKS: Mapping[str, tuple[Sequence[Step], int]] = {
    "32 sessions, a small result": (ors.calls(ors.SMALL_CALL), ors.SESSIONS),
    "32 sessions, a 64 KiB result": (ors.calls(ors.LARGE_CALL), ors.SESSIONS),
    "1 session, a small result": (ors.calls(ors.SMALL_CALL), 1),
    "32 sessions, episodes of 8 calls": (ors.EPISODE, ors.SESSIONS),
}

View = Callable[[Started, threading.Event], None]
"""Looks at a server as a page does, until the event is set."""


def nobody(server: Started, over: threading.Event) -> None:
    return


def overview(server: Started, over: threading.Event) -> None:
    follow(server, "/studio/api/v1/pulse", over)


def watched(server: Started, over: threading.Event) -> None:
    """Watch the newest session, and another one when that is over."""
    while not over.is_set():
        rows = json.loads(get(server, "/studio/api/v1/sessions"))["sessions"]
        if rows:
            follow(server, f"{rows[0]['api']}/events", over)
        else:
            over.wait(0.02)


VIEWS: Mapping[str, tuple[Sequence[str], View]] = {
    "without": (["--no-studio"], nobody),
    "closed": ([], nobody),
    "overview": ([], overview),
    "watched": ([], watched),
}
"""The flags of each server, and who looks at it."""


def get(server: Started, path: str) -> str:
    with connected(server, path) as stream:
        return b"".join(iter(lambda: stream.recv(2**16), b"")).partition(b"\r\n\r\n")[2].decode()


def follow(server: Started, path: str, over: threading.Event) -> None:
    """Read a stream of events. What its messages take here is no cost of the server's."""
    with connected(server, path) as stream:
        stream.settimeout(0.05)
        while not over.is_set():
            try:
                if not stream.recv(2**18):
                    return
            except TimeoutError:
                continue


@contextmanager
def connected(server: Started, path: str) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port)) as stream:
        host = f"Host: 127.0.0.1:{server.port}"
        stream.sendall(f"GET {path} HTTP/1.1\r\n{host}\r\nConnection: close\r\n\r\n".encode())
        yield stream


def measure(what: str, count: int, seconds: float) -> tuple[str, ...]:
    progress(what)
    steps, connections = WORKS[what]
    generator = load_generator()
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(running(serving(ENVIRONMENT, *flags))) for name, (flags, _) in VIEWS.items()
        }

        def turn(name: str, lasting: float) -> Load:
            over = threading.Event()
            viewer = threading.Thread(target=VIEWS[name][1], args=(servers[name], over))
            viewer.start()
            try:
                return drive(generator, servers[name], steps, connections=connections, seconds=lasting)
            finally:
                over.set()
                viewer.join()

        done = in_turns(list(servers), turn, count=count, seconds=seconds)
    lowest = {name: min(turns[name].cpu for turns in done) for name in VIEWS}
    shown = [micro(lowest["without"]), *(f"{lowest[name] / lowest['without']:.2f}x" for name in list(VIEWS)[1:])]
    return (what, *shown, f"{TARGET:.2f}x")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.studio", description=__doc__)
    parser.add_argument("--rounds", type=int, default=25, metavar="N", help="how often each server has its turn (25)")
    parser.add_argument("--seconds", type=float, default=0.7, metavar="S", help="length of each turn (0.7)")
    parser.add_argument("--write-page", action="store_true", help="replace the table in docs/studio.md by this one")
    args = parser.parse_args()
    check_platform()
    head = ("", "without Studio", "nobody looks", "the overview is open", "a session is watched", "target")
    text = aligned([head, *(measure(what, args.rounds, args.seconds) for what in WORKS)])
    print(text)
    if args.write_page:
        how = (
            f"Each figure is the lowest of {args.rounds} turns of {args.seconds:g} s, on {processor()}, {date.today()}."
        )
        STUDIO_PAGE.write(f"{text}\n\n{how}")


if __name__ == "__main__":
    main()
