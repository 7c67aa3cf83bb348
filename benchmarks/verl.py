"""Toolyard against verl-tool's own tool server: `python -m benchmarks.verl --checkout PATH`.

PATH is a checkout of verl-tool; its server runs from there, in a virtual environment with what it imports. All servers
are up at once and take turns under the same load. A ratio is the median over rounds of the ratio within one round. We
compare with one process of that server. Its own training scripts start several behind a router, a column of its own.

A trainer opens a trajectory with its first action and ends it with `finish` or `is_last_step`. So most rows play whole
trajectories, with ids that are new to the server. The tools of the first table do almost nothing: they show what the
server itself costs. The second table runs Python, isolated by Toolyard's sandbox, and by firejail if that is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal, TypeAlias

from benchmarks.cache import load_generator
from benchmarks.load import SESSION, Load, Step, drive
from benchmarks.report import VERL_PAGE, Row, aligned, micro, milli, per_second, processor, progress, table
from benchmarks.sandbox_meter import Meter, metering
from benchmarks.servers import Contender, Started, running, serving, venvs
from benchmarks.turns import in_turns, row

LOTS = (1, 32, 256, 1024)
"""Trajectories in one request."""
TURNS = 4
TEXT = "I will compute it. <python>print('hello world')</python>"
REQUIRED = ["fire", "httpx", "uvicorn", "uvloop", "httptools", "fastapi", "tqdm", "regex", "ray"]
"""Packages that its server and its python_code import."""
OURS = ("base", "coroutine", "plain function")
"""What our servers serve: the built-in tool that verl-tool has as well, and two environments of one tool."""
ROUTED = "with its router"
"""The same server as verl-tool's training scripts start it."""
EMPTY = "empty"
"""A server with our HTTP and nothing behind it. Its turns show the upper bound for single trajectories."""

Shape: TypeAlias = Literal["four turns and a finish", "one turn", "an action of an open one"]
TARGETS: Mapping[Shape, Sequence[str]] = {
    "four turns and a finish": ("7x", "8x", "5x", ""),
    "one turn": ("12x", "5x", "3x", ""),
    "an action of an open one": ("12x, plain 5x", "10x, plain 5x", "6x, plain 5x", "5x, plain 5x"),
}
"""For each of LOTS."""


def theirs(checkout: Path, tool: str, module: str = "tool_server") -> Contender:
    python = venvs.interpreter(venvs.Peer("verl-tool-bench", REQUIRED))
    command = [str(python), "-m", f"verl_tool.servers.{module}", f"--tool_type={tool}", "--host=127.0.0.1", "--port"]
    return Contender("verl-tool", "verl_tool", python, command, checkout)


def nothing() -> Contender:
    command = [sys.executable, "-m", "benchmarks.empty"]
    return Contender("toolyard", "toolyard", Path(sys.executable), command, Path(__file__).parents[1])


def request(
    phase: Literal["loop", "setup", "teardown"],
    lot: int,
    *,
    new: bool = False,
    last: bool = False,
    finish: bool = False,
    repeat: int = 1,
) -> Step:
    """One request with an action for each of so many trajectories, or with what ends them."""
    body = {
        "trajectory_ids": [f"{SESSION}-{i}" for i in range(lot)],
        "actions": [TEXT] * lot,
        "finish": [finish] * lot,
        "is_last_step": [last] * lot,
        "extra_fields": [{"number": i} for i in range(lot)],
    }
    return Step(phase, "POST", "/get_observation", json.dumps(body), repeat=repeat, session="new" if new else "keep")


def played(shape: Shape, lot: int) -> Sequence[Step]:
    match shape:
        case "four turns and a finish":
            more = request("loop", lot, repeat=TURNS - 1)
            return [request("loop", lot, new=True), more, request("loop", lot, finish=True)]
        case "one turn":
            return [request("loop", lot, new=True, last=True)]
        case "an action of an open one":
            return [request("setup", lot, new=True), request("loop", lot), request("teardown", lot, finish=True)]


@dataclass(frozen=True)
class Turn:
    load: Load
    cpu: float
    """Seconds per pass, of all processes, sandboxes included."""


class Benchmark:
    def __init__(self, generator: Path, count: int, seconds: float, meter: Meter) -> None:
        self._generator = generator
        self._count = count
        self._seconds = seconds
        self._meter = meter

    def rounds(
        self, servers: Mapping[str, Started], steps: Sequence[Step], *, connections: int
    ) -> Sequence[Mapping[str, Turn]]:
        def turn(name: str, seconds: float) -> Turn:
            return self._turn(servers[name], steps, connections, seconds)

        return in_turns(list(servers), turn, count=self._count, seconds=self._seconds)

    def _turn(self, server: Started, steps: Sequence[Step], connections: int, seconds: float) -> Turn:
        before = self._meter.read()
        load = drive(self._generator, server, steps, connections=connections, seconds=seconds)
        return Turn(load, (self._meter.read() - before - load.own_cpu) / load.passes)


def trajectories(benchmark: Benchmark, servers: Mapping[str, Started]) -> str:
    """CPU of each server per trajectory: a line for each shape and lot."""
    lines: list[Sequence[str]] = [("CPU per trajectory", "lot", "verl-tool", *OURS, "empty requests", "target", ROUTED)]
    for shape, targets in TARGETS.items():
        for lot, target in zip(LOTS, targets, strict=True):
            progress(f"{shape}, {lot} at a time")
            done = benchmark.rounds(servers, played(shape, lot), connections=8 if lot == 1 else 2)
            cpu = {name: [turns[name].load.cpu / lot for turns in done] for name in servers}
            cells = [against(cpu["verl-tool"], cpu[name]) for name in (*OURS, EMPTY)]
            routed = f"{micro(median(cpu[ROUTED]))}, base {ratio(cpu[ROUTED], cpu['base']):.1f}x"
            lines.append((shape, f"{lot:,}", micro(median(cpu["verl-tool"])), *cells, target, routed))
    return aligned(lines)


def against(reference: Sequence[float], own: Sequence[float]) -> str:
    return f"{micro(median(own))}, {ratio(reference, own):.1f}x"


def ratio(reference: Sequence[float], own: Sequence[float]) -> float:
    return median(one / other for one, other in zip(reference, own, strict=True))


def executions(benchmark: Benchmark, servers: Mapping[str, Started]) -> str:
    """Whole trajectories of one execution each."""
    progress("python_code")
    alone = benchmark.rounds(servers, played("one turn", 1), connections=1)
    many = benchmark.rounds(servers, played("one turn", 1), connections=8)
    cpu = [(turns["verl-tool"].cpu, turns["python_code"].cpu) for turns in alone]
    p50 = [(turns["verl-tool"].load.p50, turns["python_code"].load.p50) for turns in alone]
    pace = [(turns["verl-tool"].load.interval, turns["python_code"].load.interval) for turns in many]
    rows: list[Row] = [
        row("python_code, one turn: CPU per trajectory", cpu, milli, "less", "10x less"),
        row("time of one, p50", p50, milli, "shorter", "10 ms"),
        row("trajectories per second, 8 at a time", pace, per_second, "more", "200"),
    ]
    return table(("verl-tool", "toolyard"), rows)


def compared(checkout: Path, benchmark: Benchmark) -> Sequence[str]:
    """The tables."""
    environment = "benchmarks/verl_environment.py"
    verl = ("--protocol", "verl")
    served = {
        "base": serving("--tools", "base", *verl),
        "coroutine": serving(f"{environment}:Trivial", *verl),
        "plain function": serving(f"{environment}:TrivialPlain", *verl),
    }
    with ExitStack() as stack:
        reference = {"verl-tool": theirs(checkout, "base"), ROUTED: theirs(checkout, "base", "serve")}
        contenders = {**reference, **served, EMPTY: nothing()}
        servers = {name: stack.enter_context(running(one)) for name, one in contenders.items()}
        first = trajectories(benchmark, servers)
    with ExitStack() as stack:
        contenders = {
            "verl-tool": theirs(checkout, "python_code"),
            "python_code": serving("--tools", "python_code", *verl),
        }
        servers = {name: stack.enter_context(running(one)) for name, one in contenders.items()}
        return first, executions(benchmark, servers)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.verl", description=__doc__)
    parser.add_argument("--checkout", type=Path, required=True, metavar="PATH", help="of verl-tool")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="how often each server has its turn (5)")
    parser.add_argument("--seconds", type=float, default=1.5, metavar="S", help="length of each turn (1.5)")
    parser.add_argument("--write-page", action="store_true", help="replace the tables in docs/verl.md by these")
    return parser


def main() -> None:
    args = arguments().parse_args()
    if args.write_page:
        VERL_PAGE.around()
    with metering() as meter:
        benchmark = Benchmark(load_generator(), args.rounds, args.seconds, meter)
        tables = compared(args.checkout, benchmark)
    jail = "firejail" if shutil.which("firejail") else "nothing, since firejail is not installed"
    text = "\n\n".join(
        (
            *tables,
            f"Printed by `python -m benchmarks.verl --checkout PATH` with Python "
            f"{platform.python_version()} on {os.cpu_count()} cores of {processor()}. Medians of {args.rounds} rounds; "
            f"a ratio is the median of the ratios within a round. A lot is the trajectories of one request. CPU is "
            f"that of the server's processes, for python_code also of what runs the code. verl-tool's is isolated by "
            f"{jail}. Empty requests are as many, and as long, to our HTTP with nothing behind it: no lot can have a "
            f"higher ratio. The last column is verl-tool's server as its training scripts start it: several processes "
            f"behind a router. Its ratio is to `base`.",
        )
    )
    print(text)
    if args.write_page:
        VERL_PAGE.write(text)


if __name__ == "__main__":
    main()
