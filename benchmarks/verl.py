"""Toolyard against verl-tool's own tool server: `python -m benchmarks.verl --checkout PATH`.

PATH is a checkout of verl-tool; its server is run from there, in a virtual environment with what it imports. All
servers are up at once and take turns under the same load. A ratio is the median over rounds of the ratio within one
round. The tool of the first rows does next to nothing, so they show what the server itself costs; the others run
Python, isolated by Toolyard's sandbox and by firejail if that is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cache import load_generator
from benchmarks.load import SESSION, Load, Step, drive
from benchmarks.report import VERL_PAGE, Row, micro, milli, per_second, processor, progress, table
from benchmarks.sandbox_meter import Meter, metering
from benchmarks.servers import Contender, Started, running, serving, venvs
from benchmarks.turns import in_turns, row

BATCHES = (1, 32, 256, 1024)
TEXT = "I will compute it. <python>print('hello world')</python>"
REQUIRED = ["fire", "uvicorn", "uvloop", "httptools", "fastapi", "tqdm", "regex", "ray"]
"""What its server and its python_code import."""
TARGETS = {
    "async": {1: "15x less", 32: "20x less", 256: "20x less", 1024: "15x less"},
    "plain": {1: "8x less", 32: "6x less", 256: "6x less", 1024: "6x less"},
}


def theirs(checkout: Path, tool: str) -> Contender:
    python = venvs.interpreter(venvs.Peer("verl-tool-bench", REQUIRED))
    command = [str(python), "-m", "verl_tool.servers.tool_server", f"--tool_type={tool}", "--host=127.0.0.1", "--port"]
    return Contender("verl-tool", "verl_tool", python, command, checkout)


def batch(size: int) -> Sequence[Step]:
    """One request for so many trajectories, which belong to one connection, and end with its load as a trainer's do."""
    body = {
        "trajectory_ids": [f"{SESSION}-{i}" for i in range(size)],
        "actions": [TEXT] * size,
        "finish": [False] * size,
        "is_last_step": [False] * size,
        "extra_fields": [{"number": i} for i in range(size)],
    }
    return [
        Step("setup", "GET", "/health", session="new"),
        Step("loop", "POST", "/get_observation", json.dumps(body)),
        Step("teardown", "POST", "/get_observation", json.dumps({**body, "finish": [True] * size})),
    ]


@dataclass(frozen=True)
class Turn:
    load: Load
    cpu: float
    """Seconds per request, of all processes, those of sandboxes included."""


class Benchmark:
    def __init__(self, generator: Path, seconds: float, meter: Meter) -> None:
        self._generator = generator
        self._seconds = seconds
        self._meter = meter

    def rounds(
        self, servers: Mapping[str, Started], steps: Sequence[Step], *, connections: int, count: int
    ) -> Sequence[Mapping[str, Turn]]:
        def turn(name: str, seconds: float) -> Turn:
            return self._turn(servers[name], steps, connections, seconds)

        return in_turns(list(servers), turn, count=count, seconds=self._seconds)

    def _turn(self, server: Started, steps: Sequence[Step], connections: int, seconds: float) -> Turn:
        before = self._meter.read()
        load = drive(self._generator, server, steps, connections=connections, seconds=seconds)
        return Turn(load, (self._meter.read() - before - load.own_cpu) / load.passes)


def rows_of_batches(benchmark: Benchmark, servers: Mapping[str, Started], count: int) -> list[Row]:
    rows = []
    for size in BATCHES:
        progress(f"batches of {size}")
        done = benchmark.rounds(servers, batch(size), connections=8 if size == 1 else 2, count=count)
        for way in ("async", "plain"):
            pairs = [(turns["theirs"].load.cpu, turns[way].load.cpu) for turns in done]
            what = f"CPU per request of {size}, {'coroutine' if way == 'async' else 'plain function'}"
            rows.append(row(what, pairs, micro, "less", TARGETS[way][size]))
        intervals = [(turns["theirs"].load.interval / size, turns["async"].load.interval / size) for turns in done]
        rows.append(row(f"trajectories per second, requests of {size}", intervals, per_second, "more"))
    return rows


def rows_of_python(benchmark: Benchmark, servers: Mapping[str, Started], count: int) -> list[Row]:
    progress("python_code")
    alone = benchmark.rounds(servers, batch(1), connections=1, count=count)
    many = benchmark.rounds(servers, batch(1), connections=8, count=count)
    cpu = [(turns["theirs"].cpu, turns["ours"].cpu) for turns in alone]
    p50 = [(turns["theirs"].load.p50, turns["ours"].load.p50) for turns in alone]
    pace = [(turns["theirs"].load.interval, turns["ours"].load.interval) for turns in many]
    return [
        row("python_code: CPU per execution", cpu, milli, "less", "10x less"),
        row("python_code: time of one, p50", p50, milli, "shorter", "10 ms"),
        row("python_code: executions per second, 8 at a time", pace, per_second, "more", "200"),
    ]


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.verl", description=__doc__)
    parser.add_argument("--checkout", type=Path, required=True, metavar="PATH", help="of verl-tool")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="how often each server has its turn (5)")
    parser.add_argument("--seconds", type=float, default=1.5, metavar="S", help="length of each turn (1.5)")
    parser.add_argument("--write-page", action="store_true", help="replace the table in docs/verl.md by this one")
    return parser


def main() -> None:
    args = arguments().parse_args()
    if args.write_page:
        VERL_PAGE.around()
    environment = "benchmarks/verl_environment.py"
    made: list[Row] = []
    with metering() as meter:
        benchmark = Benchmark(load_generator(), args.seconds, meter)
        with ExitStack() as stack:
            servers = {
                "theirs": stack.enter_context(running(theirs(args.checkout, "base"))),
                "async": stack.enter_context(running(serving(f"{environment}:Trivial", "--protocol", "verl"))),
                "plain": stack.enter_context(running(serving(f"{environment}:TrivialPlain", "--protocol", "verl"))),
            }
            made += rows_of_batches(benchmark, servers, args.rounds)
        with ExitStack() as stack:
            servers = {
                "theirs": stack.enter_context(running(theirs(args.checkout, "python_code"))),
                "ours": stack.enter_context(running(serving("--tools", "python_code", "--protocol", "verl"))),
            }
            made += rows_of_python(benchmark, servers, args.rounds)
    jail = "firejail" if shutil.which("firejail") else "nothing, since firejail is not installed"
    text = (
        f"{table(('verl-tool', 'toolyard'), made)}\n\n"
        f"Printed by `python -m benchmarks.verl --checkout PATH` with Python "
        f"{platform.python_version()} on {os.cpu_count()} cores of {processor()}. Medians of {args.rounds} rounds; a "
        f"ratio is the median of the ratios within a round. CPU is that of the server's processes, for python_code "
        f"also of what runs the code. verl-tool's is isolated by {jail}."
    )
    print(text)
    if args.write_page:
        VERL_PAGE.write(text)


if __name__ == "__main__":
    main()
