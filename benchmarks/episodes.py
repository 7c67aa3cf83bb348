"""What recording costs, and how fast a large store answers: `python -m benchmarks.episodes`.

Two Toolyard servers are up at once, one with `--record`, and take turns under the same load. A ratio is the median over
rounds of the ratio within one round. The main thread runs the event loop, so its CPU is the loop's; another thread
writes the file. Then one recording server runs under load for longer, and finally a store with a million steps answers
queries.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks import ors, verl
from benchmarks.cache import load_generator
from benchmarks.load import Load, Step, drive
from benchmarks.report import (
    EPISODES_PAGE,
    Row,
    aligned,
    check_platform,
    command_of,
    mib,
    micro,
    milli,
    per_second,
    plain,
    processor,
    progress,
    table,
)
from benchmarks.servers import Started, running, serving
from benchmarks.turns import in_turns
from toolyard.episodes.rows import EPISODE, STEP
from toolyard.episodes.schema import connect
from toolyard.episodes.store import Filter, Store

CALLS_OF_EPISODE = 8
STEPS_OF_EPISODE = 10
LOT = 32
_TICK = os.sysconf("SC_CLK_TCK")
_INSERTED_AT_ONCE = 2000
_WORDS = (
    "north",
    "south",
    "wall",
    "door",
    "key",
    "lamp",
    "river",
    "stone",
    "bread",
    "letter",
    "answer",
    "file",
    "error",
)


@dataclass(frozen=True)
class Work:
    what: str
    target: str
    steps: Sequence[Step]
    connections: int
    calls: int
    """In one pass."""
    most: str = ""
    """The target for its ratio."""


ECHO, TRIVIAL = "benchmarks/environment.py", "benchmarks/verl_environment.py:Trivial"
WORKS = [
    Work("a call over ORS", ECHO, ors.calls(ors.SMALL_CALL), ors.SESSIONS, 1, "1.6x"),
    Work("an episode of 8 calls over ORS", ECHO, ors.EPISODE, ors.SESSIONS, 1),
    Work(f"a call over verl, {LOT} in a request", TRIVIAL, verl.played("an action of an open one", LOT), 2, LOT),
    Work("a trajectory of 4 calls over verl", TRIVIAL, verl.played("four turns and a finish", LOT), 2, LOT),
    Work("python_code over verl, one call each", "--tools=python_code", verl.played("one turn", 1), 4, 1),
]
ALONE = Work("a call over ORS, one session", ECHO, ors.calls(ors.SMALL_CALL), 1, 1)


@dataclass(frozen=True)
class Turn:
    load: Load
    loop: float
    """CPU of the event loop's thread per pass."""


def turn_of(generator: Path, server: Started, work: Work, seconds: float) -> Turn:
    before = loop_seconds(server.pid)
    load = drive(generator, server, work.steps, connections=work.connections, seconds=seconds)
    return Turn(load, (loop_seconds(server.pid) - before) / load.passes)


def loop_seconds(pid: int) -> float:
    """CPU of the first thread of a process."""
    fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def in_turns_of(work: Work, folder: Path, count: int, seconds: float) -> Sequence[Mapping[str, Turn]]:
    progress(work.what)
    generator = load_generator()
    target = [work.target] if not work.target.startswith("--") else work.target.split("=")
    with ExitStack() as stack:
        servers = {
            "without": stack.enter_context(running(serving(*target))),
            "with": stack.enter_context(running(serving(*target, "--record", str(folder / f"{time.time_ns()}.db")))),
        }
        return in_turns(
            list(servers),
            lambda name, lasting: turn_of(generator, servers[name], work, lasting),
            count=count,
            seconds=seconds,
        )


def costs(work: Work, done: Sequence[Mapping[str, Turn]]) -> Iterator[Row]:
    """CPU of all threads, and the loop's extra work."""
    without, recorded = (median(turns[name].load.cpu for turns in done) / work.calls for name in ("without", "with"))
    ratio = median(turns["with"].load.cpu / turns["without"].load.cpu for turns in done)
    yield Row(f"CPU of {work.what}", micro(without), micro(recorded), f"{ratio:.2f}x", work.most)
    more = median(turns["with"].loop - turns["without"].loop for turns in done) / work.calls
    yield Row("of that, what the event loop does more", "", micro(more), "", "10 µs" if work.most else "")


def latencies(work: Work, done: Sequence[Mapping[str, Turn]]) -> Row:
    without, recorded = (median(turns[name].load.p99 for turns in done) for name in ("without", "with"))
    more = median(turns["with"].load.p99 - turns["without"].load.p99 for turns in done)
    return Row(f"p99 of {work.what}", milli(without), milli(recorded), f"{milli(more)} more", "2 ms")


# For longer.

PER_SECOND = 6_000
"""Calls."""
_SLICE_SECONDS = 0.25
"""The load comes in slices of this length, so that its pace is steady."""


@dataclass(frozen=True)
class Lasting:
    """What a server recorded at a steady pace. At its maximum pace, it would have no time left to write."""

    calls_per_second: float
    seconds: float
    left_out: int
    waiting: int
    """Events not yet written at the end."""
    episodes: int
    complete: int
    bytes_of_episode: float


def lasting(folder: Path, seconds: float) -> Lasting:
    progress(f"episodes for {seconds:g} seconds")
    path = folder / "lasting.db"
    began, passes = time.monotonic(), round(PER_SECOND / CALLS_OF_EPISODE * _SLICE_SECONDS)
    slices = round(seconds / _SLICE_SECONDS)
    with running(serving(ECHO, "--record", str(path))) as server:
        for number in range(slices):
            time.sleep(max(began + number * _SLICE_SECONDS - time.monotonic(), 0))
            drive(load_generator(), server, ors.EPISODE, connections=ors.SESSIONS, passes=passes)
        took = time.monotonic() - began
        metrics = server.ask("GET", "/metrics")
    with Store([path]) as store:
        kept = [one.complete for one in store.episodes()]
    return Lasting(
        calls_per_second=slices * passes * CALLS_OF_EPISODE / took,
        seconds=took,
        left_out=figure(metrics, "toolyard_episodes_left_out_total"),
        waiting=figure(metrics, "toolyard_record_queue"),
        episodes=slices * passes,
        complete=sum(kept),
        bytes_of_episode=path.stat().st_size / len(kept),
    )


def figure(metrics: str, name: str) -> int:
    found = re.search(rf"^{name} (\d+)", metrics, re.MULTILINE)
    if found is None:
        raise SystemExit(f"/metrics does not have {name}")
    return int(found[1])


# A large store.


def fill(path: Path, steps: int) -> None:
    """Written in bulk, as a server would have. 10 runs attempt every task."""
    connection = connect(path, create=True)
    connection.execute("PRAGMA synchronous = OFF")
    episodes = steps // STEPS_OF_EPISODE
    for first in range(0, episodes, _INSERTED_AT_ONCE):
        numbers = range(first + 1, min(first + _INSERTED_AT_ONCE, episodes) + 1)
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(EPISODE, map(episode_row, numbers))
        connection.executemany(STEP, (step_row(number, step) for number in numbers for step in range(STEPS_OF_EPISODE)))
        connection.execute(
            "UPDATE episodes SET closed = opened + 1, why = 'deleted', steps = ?, total = number % 5 / 4.0, "
            "finished = 1, outcome = 'finished', complete = 1 WHERE number BETWEEN ? AND ?",
            (STEPS_OF_EPISODE, numbers[0], numbers[-1]),
        )
        connection.execute("COMMIT")
    connection.close()


def episode_row(number: int) -> Sequence[object]:
    task, run = number % 1000, number // 1000 % 10
    return (
        *(f"{number:021x}", f"s-{number}", None, None, "maze", "train", task, json.dumps({"seed": task})),
        *("ors", f"run-{run}", json.dumps({"step": str(number // 1000)}), 1.7e9 + number, 0, "0.1.0", ""),
    )


def step_row(episode: int, number: int) -> Sequence[object]:
    words = " ".join(_WORDS[(episode * 7 + number * 3 + i * i) % len(_WORDS)] for i in range(20))
    rare = f" marker{episode}" if number == 0 else ""
    blocks = json.dumps([{"type": "text", "text": words + rare}])
    arguments = json.dumps({"direction": "north", "note": words[:20]})
    last = number == STEPS_OF_EPISODE - 1
    return (
        *(episode, number + 1, "move", arguments, None, None, "ok", blocks, episode % 5 / 4 if last else None),
        *(None, last, None, 0.0001, 0.0005, 1.7e9 + episode + number / 10, 0),
    )


def questions(path: Path, steps: int) -> Sequence[Sequence[str]]:
    """Milliseconds for each common query; each opens the store anew."""
    middle = steps // STEPS_OF_EPISODE // 2
    asked: Mapping[str, Callable[[Store], object]] = {
        "list the 20 newest": lambda store: list(store.episodes(limit=20, newest=True)),
        "list the 20 newest of a run": lambda store: list(store.episodes(Filter(run="run-3"), limit=20, newest=True)),
        "list the 20 newest below a return": lambda store: list(
            store.episodes(Filter(reward="<0.25"), limit=20, newest=True)
        ),
        "list 20 of an outcome that is nowhere": lambda store: list(
            store.episodes(Filter(outcome="lost"), limit=20, newest=True)
        ),
        "all episodes of a task": lambda store: list(
            store.episodes(Filter(environment="maze", split="train", index=7))
        ),
        "all with a label": lambda store: list(store.episodes(Filter(labels={"step": "42"}))),
        "open one by its id": lambda store: store.steps(store.find(f"{middle:021x}")),
        "the first search, which makes the index": lambda store: list(store.search(f"marker{middle}", limit=20)),
        "search for what one step says": lambda store: list(store.search(f"marker{middle}", limit=20)),
        "search for what most steps say": lambda store: list(store.search("north river", limit=20)),
        "read all episodes": lambda store: sum(1 for _ in store.episodes()),
    }
    return [(what, milli(seconds_of(path, ask))) for what, ask in asked.items()]


def seconds_of(path: Path, ask: Callable[[Store], object]) -> float:
    began = time.perf_counter()
    with Store([path]) as store:
        ask(store)
    return time.perf_counter() - began


def large_store(folder: Path, steps: int) -> str:
    progress(f"a store of {steps:,} steps")
    path = folder / "large.db"
    fill(path, steps)
    size = path.stat().st_size
    lines = questions(path, steps)
    sizes = f"{mib(size)}, {mib(path.stat().st_size)}"
    more = ("its file, before and after the index is made", sizes)
    return aligned([(f"a store of {steps:,} steps in {steps // STEPS_OF_EPISODE:,} episodes", "takes"), *lines, more])


# All of it.


def for_longer(kept: Lasting) -> Sequence[Sequence[str]]:
    return [
        (f"episodes of 8 calls over ORS, for {plain(kept.seconds)}", "", "target"),
        ("calls per second", per_second(1 / kept.calls_per_second), "5,000"),
        ("episodes, of which complete in the store", f"{kept.episodes:,}, {kept.complete:,}", "all"),
        ("episodes left out", f"{kept.left_out:,}", "0"),
        ("events that waited at the end", f"{kept.waiting:,}", ""),
        ("bytes of the file for each episode", f"{kept.bytes_of_episode:,.0f}", ""),
    ]


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.episodes", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="how often each server has its turn (5)")
    parser.add_argument("--seconds", type=float, default=1.5, metavar="S", help="length of each turn (1.5)")
    parser.add_argument("--lasting", type=float, default=60, metavar="S", help="length of the long load (60)")
    parser.add_argument("--steps", type=int, default=1_000_000, metavar="N", help="of the large store (1,000,000)")
    parser.add_argument("--only", choices=("costs", "lasting", "store"), help="only this part")
    parser.add_argument("--write-page", action="store_true", help="replace the tables in docs/episodes.md by these")
    return parser


def measured(args: argparse.Namespace, folder: Path) -> Iterator[str]:
    if args.only in (None, "costs"):
        done = [(work, in_turns_of(work, folder, args.rounds, args.seconds)) for work in WORKS]
        alone = in_turns_of(ALONE, folder, args.rounds, args.seconds)
        rows = [row for work, turns in done for row in costs(work, turns)]
        slow = [latencies(ALONE, alone), latencies(*done[0])]
        yield table(("without", "recorded"), [*rows, *slow])
    if args.only in (None, "lasting"):
        yield aligned(for_longer(lasting(folder, args.lasting)))
    if args.only in (None, "store"):
        yield large_store(folder, args.steps)


def main() -> None:
    parser = arguments()
    args = parser.parse_args()
    check_platform()
    if args.write_page:
        EPISODES_PAGE.around()
    with tempfile.TemporaryDirectory(prefix="episodes-") as folder:
        tables = list(measured(args, Path(folder)))
    text = "\n\n".join(
        (
            *tables,
            f"Printed by `{command_of(parser, args, usual='make bench-episodes')}` with Python "
            f"{platform.python_version()} on {os.cpu_count()} cores of {processor()}. Medians of {args.rounds} rounds; "
            f"a ratio is the median of the ratios within a round. CPU is that of the server's process; the event loop "
            f"has its first thread. The load is as much as the server takes.",
        )
    )
    print(text)
    if args.write_page:
        EPISODES_PAGE.write(text)


if __name__ == "__main__":
    main()
