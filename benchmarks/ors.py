"""Toolyard against the reference ORS server: `python -m benchmarks.ors`.

Both servers are up at once and take turns under the same load; they alternate in going first. A ratio is the median
over rounds of the ratio within one round, so a neighbour that slows both down changes little.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal, TypeAlias

from benchmarks.cache import load_generator
from benchmarks.environment import Echo
from benchmarks.load import Load, Step, drive
from benchmarks.report import (
    ORS_PAGE,
    Row,
    check_platform,
    command_of,
    kib,
    mib,
    micro,
    milli,
    per_second,
    plain,
    processor,
    progress,
    table,
)
from benchmarks.servers import Contender, Started, import_seconds, reference, running, toolyard, versions

SESSIONS = 32
LARGE = 64 * 1024
TASK = {"id": 1, "question": "What is 2 + 2?"}

EVENTS = "text/event-stream"
CREATE = json.dumps({"task_spec": TASK})
SMALL_CALL = json.dumps({"name": "echo", "input": {"text": "hello world"}})
LARGE_CALL = json.dumps({"name": "fill", "input": {"size": LARGE}})


def calls(body: str) -> Sequence[Step]:
    """One session per connection, and calls in it one after the other."""
    return [
        Step("setup", "POST", "/create", CREATE, session="new"),
        Step("loop", "POST", "/echo/call", body, EVENTS),
        Step("teardown", "POST", "/delete"),
    ]


EPISODE = [
    Step("loop", "POST", "/create_session", "{}", EVENTS, session="take"),
    Step("loop", "POST", "/create", CREATE),
    Step("loop", "GET", "/echo/prompt"),
    Step("loop", "POST", "/echo/call", SMALL_CALL, EVENTS, repeat=8),
    Step("loop", "POST", "/delete"),
    Step("loop", "POST", "/delete_session"),
]
CREATED = [Step("loop", "POST", "/create", CREATE, session="new")]
CALLED = [*CREATED, Step("loop", "POST", "/echo/call", SMALL_CALL, EVENTS)]


@dataclass(frozen=True)
class Work:
    steps: Sequence[Step]
    connections: int


WORKS = {
    "small": Work(calls(SMALL_CALL), SESSIONS),
    "large": Work(calls(LARGE_CALL), SESSIONS),
    "alone": Work(calls(SMALL_CALL), 1),
    "episode": Work(EPISODE, SESSIONS),
}


@dataclass(frozen=True)
class Pair:
    """The same figure of both servers, measured one right after the other."""

    reference: float
    ours: float

    @property
    def ratio(self) -> float:
        return self.reference / self.ours


Round: TypeAlias = Mapping[str, tuple[Load, Load]]
"""By work: the reference's load and ours."""


@dataclass(frozen=True)
class Figures:
    """All measurements."""

    rounds: Sequence[Round]
    start_seconds: Sequence[Pair]
    import_seconds: Sequence[Pair]
    idle_bytes: Sequence[Pair]
    created_bytes: Pair
    """Memory per created session."""
    called_bytes: Pair
    """The same after one call in each."""
    author_bytes: float
    """Memory of the author's own object in a session, with its task."""

    def pairs(self, work: str, figure: Literal["cpu", "interval", "p50", "p99"]) -> Sequence[Pair]:
        loads = [done[work] for done in self.rounds]
        return [Pair(getattr(theirs, figure), getattr(ours, figure)) for theirs, ours in loads]


class Benchmark:
    def __init__(self, theirs: Contender, ours: Contender, generator: Path, seconds: float) -> None:
        self._contenders = (theirs, ours)
        self._generator = generator
        self._seconds = seconds

    def rounds(self, count: int) -> Sequence[Round]:
        theirs, ours = self._contenders
        with running(theirs) as reference_server, running(ours) as our_server:
            servers = (reference_server, our_server)
            for server in servers:
                check_answers(server)
            self._round(servers, seconds=min(self._seconds, 0.5), ours_first=False)  # warm-up; not counted
            done = []
            for number in range(count):
                progress(f"round {number + 1} of {count}")
                done.append(self._round(servers, seconds=self._seconds, ours_first=number % 2 == 1))
            return done

    def _round(self, servers: tuple[Started, Started], *, seconds: float, ours_first: bool) -> Round:
        loads: dict[str, tuple[Load, Load]] = {}
        for name, work in WORKS.items():
            in_turn = [
                drive(self._generator, server, work.steps, connections=work.connections, seconds=seconds)
                for server in (reversed(servers) if ours_first else servers)
            ]
            loads[name] = (in_turn[1], in_turn[0]) if ours_first else (in_turn[0], in_turn[1])
        return loads

    def starts(self, count: int) -> tuple[Sequence[Pair], Sequence[Pair]]:
        """Seconds to the first answer, and bytes in memory then. One start before those that count fills caches."""
        seconds, memory = [], []
        for number in range(count + 1):
            progress(f"start {number} of {count}")
            started = [self._start(contender) for contender in self._contenders]
            if number:
                seconds.append(Pair(started[0][0], started[1][0]))
                memory.append(Pair(started[0][1], started[1][1]))
        return seconds, memory

    def _start(self, contender: Contender) -> tuple[float, int]:
        with running(contender) as server:
            return server.seconds_to_answer, server.memory()

    def imports(self, count: int) -> Sequence[Pair]:
        theirs, ours = self._contenders
        return [Pair(import_seconds(theirs), import_seconds(ours)) for _ in range(count)]

    def memory_per_session(self, steps: Sequence[Step], sessions: int) -> Pair:
        theirs, ours = (self._growth(contender, steps, sessions) for contender in self._contenders)
        return Pair(theirs, ours)

    def _growth(self, contender: Contender, steps: Sequence[Step], sessions: int) -> float:
        """On a fresh server, after a few sessions that load what any number needs."""
        progress(f"memory of {sessions} sessions, {contender.name}")
        with running(contender) as server:
            drive(self._generator, server, steps, connections=SESSIONS, passes=sessions // 10)
            before = server.memory()
            drive(self._generator, server, steps, connections=SESSIONS, passes=sessions)
            return (server.memory() - before) / sessions


def check_answers(server: Started) -> None:
    """Check that the server does the work to be measured."""
    session = {"X-Session-ID": "11111111-2222-4333-8444-555555555555", "Accept": EVENTS}
    server.ask("POST", "/create", CREATE, session)
    for body, expected in ((SMALL_CALL, "hello world"), (LARGE_CALL, "x" * LARGE)):
        stream = server.ask("POST", "/echo/call", body, session).replace("\r\n", "\n")
        events = [dict(line.split(": ", 1) for line in event.splitlines()) for event in stream.strip().split("\n\n")]
        result = json.loads("".join(event["data"] for event in events if event["event"] in ("chunk", "end")))
        assert result["output"]["blocks"][0]["text"] == expected
    server.ask("POST", "/delete", "", session)


def author_bytes() -> float:
    """What a session would hold if it were nothing but the author's object."""
    count = 1000
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    kept = [Echo(task_spec=json.loads(CREATE)["task_spec"], secrets={}) for _ in range(count)]
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (after - before) / len(kept)


def rows(figures: Figures) -> Sequence[Row]:
    def row(what: str, pairs: Sequence[Pair], show: Callable[[float], str], word: str, target: str = "") -> Row:
        return Row(
            what,
            show(median(pair.reference for pair in pairs)),
            show(median(pair.ours for pair in pairs)),
            f"{median(pair.ratio for pair in pairs):.1f}x {word}",
            target,
        )

    pairs = figures.pairs
    beyond = figures.created_bytes.ours - figures.author_bytes
    return [
        row("CPU per call, small result", pairs("small", "cpu"), micro, "less", "20x less"),
        row("CPU per call, 64 KiB result", pairs("large", "cpu"), micro, "less", "12x less"),
        row("CPU per episode of 8 calls", pairs("episode", "cpu"), micro, "less", "18x less"),
        row(f"calls per second, {SESSIONS} sessions", pairs("small", "interval"), per_second, "more"),
        row(f"64 KiB calls per second, {SESSIONS} sessions", pairs("large", "interval"), per_second, "more"),
        row(f"episodes per second, {SESSIONS} at a time", pairs("episode", "interval"), per_second, "more"),
        row("latency of a call, one session, p50", pairs("alone", "p50"), milli, "shorter"),
        row("latency of a call, one session, p99", pairs("alone", "p99"), milli, "shorter"),
        row(f"latency of a call, {SESSIONS} sessions, p50", pairs("small", "p50"), milli, "shorter"),
        row(f"latency of a call, {SESSIONS} sessions, p99", pairs("small", "p99"), milli, "shorter"),
        row("memory per open session", [figures.created_bytes], kib, "less"),
        Row("memory per open session beyond the author's object", "", kib(beyond), "", "1.5 KiB"),
        row("memory per open session after a call", [figures.called_bytes], kib, "less"),
        row("memory of the idle server", figures.idle_bytes, mib, "less", "60 MiB"),
        row("start to first answer", figures.start_seconds, plain, "shorter", "1.5 s"),
        row("import of the package", figures.import_seconds, plain, "shorter", "0.3 s"),
    ]


def conditions(command: str, figures: Figures, contenders: Sequence[Contender]) -> str:
    """How the figures were measured, for readers who want to repeat or doubt them."""
    builds = ["; ".join(f"{name} {number}" for name, number in versions(one).items()) for one in contenders]
    calls, episodes = ([pair.ratio for pair in figures.pairs(work, "cpu")] for work in ("small", "episode"))
    busy = max(load.generator_busy for done in figures.rounds for pair in done.values() for load in pair)
    return (
        f"Printed by `{command}` with Python {platform.python_version()} on {os.cpu_count()} cores of {processor()}. "
        f"Medians of {len(figures.rounds)} rounds; a ratio is the median of the ratios within a round. CPU is user and "
        f"system time of the server's processes. The reference keeps every result for 60 seconds and gets dearer with "
        f"what it keeps; Toolyard keeps at most 64 MiB of them. So the ratios depend on how long it has run: for small "
        f"calls {calls[0]:.1f}x in the first round and {calls[-1]:.1f}x in the last, for episodes {episodes[0]:.1f}x "
        f"and {episodes[-1]:.1f}x. "
        f"The load generator used at most {busy:.0%} of a core. Versions: {' against '.join(builds)}."
    )


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ors", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="how often each server has its turn (5)")
    parser.add_argument("--seconds", type=float, default=2.0, metavar="S", help="length of each turn (2)")
    parser.add_argument("--sessions", type=int, default=5000, metavar="N", help="opened to measure memory (5000)")
    parser.add_argument("--quick", action="store_true", help="a glance: 2 rounds of half a second, 1000 sessions")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured")
    parser.add_argument("--write-page", action="store_true", help="replace the table in docs/ors.md by this one")
    return parser


def main() -> None:
    args = arguments().parse_args()
    check_platform()
    command = command_of(arguments(), args, usual="make bench")
    if args.quick:
        args.rounds, args.seconds, args.sessions = 2, 0.5, 1000
    if args.write_page:
        ORS_PAGE.around()  # fail now, not after some minutes
    theirs, ours = reference(), toolyard()
    benchmark = Benchmark(theirs, ours, load_generator(), args.seconds)
    start_seconds, idle_bytes = benchmark.starts(args.rounds)
    figures = Figures(
        rounds=benchmark.rounds(args.rounds),
        start_seconds=start_seconds,
        idle_bytes=idle_bytes,
        import_seconds=benchmark.imports(args.rounds),
        created_bytes=benchmark.memory_per_session(CREATED, args.sessions),
        called_bytes=benchmark.memory_per_session(CALLED, args.sessions),
        author_bytes=author_bytes(),
    )
    made = table((theirs.name, ours.name), rows(figures))
    text = f"{made}\n\n{conditions(command, figures, (theirs, ours))}"
    print(text)
    if args.json:
        args.json.write_text(json.dumps({"printed": text, **dataclasses.asdict(figures)}, indent=1))
    if args.write_page:
        ORS_PAGE.write(text)


if __name__ == "__main__":
    main()
