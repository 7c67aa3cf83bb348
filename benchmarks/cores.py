"""The benefit of more processors: `python -m benchmarks.cores` runs `python_code` on 1, 2, 4 … of them.

The server and everything that it starts stay on so many processors, the load generator on the others, if there are any.
It sends a trainer's requests: 256 new trajectories each, every one with one short program and an end; two requests are
always in progress. The ratio compares executions per second with as many times those on one processor.

Where other programs use the same processors, read the last column: executions per second of the processor time that
those programs leave free, whether the server used it or not.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.cache import load_generator
from benchmarks.load import SESSION, Step, drive
from benchmarks.report import aligned, check_platform, milli, processor, progress
from benchmarks.sandbox_meter import Meter, metering
from benchmarks.servers import Started, running, serving
from toolyard.serving import tune_process

SIZE = 256
IN_FLIGHT = 2
PROCESSORS_EACH = 4
"""For one gateway, in the rows with several."""
_CODE = "<python>print('forty' + str(6 * 7))</python>"
_SAID = "forty42"
_TICKS = os.sysconf("SC_CLK_TCK")
_IDLE = slice(3, 5)
"""Fields of a processor's line in /proc/stat."""


@dataclass(frozen=True)
class Case:
    cores: int
    gateways: int


@dataclass(frozen=True)
class Figure:
    """The result of one turn of a case. Processor time is in seconds."""

    seconds: float
    executions: int
    cpu: float
    """For the server and everything that it starts."""
    gateways: float
    templates: float
    """The rest is the sandboxes'."""
    busiest: float
    """For the busiest gateway or template."""
    idle: float
    """For the processors that it may use."""

    @property
    def rate(self) -> float:
        return self.executions / self.seconds

    @property
    def rate_of_left(self) -> float:
        """Per second of processor time that other programs leave free."""
        return self.executions / (self.cpu + self.idle)


def batch() -> Step:
    body = {
        "trajectory_ids": [f"{SESSION}-{i}" for i in range(SIZE)],
        "actions": [_CODE] * SIZE,
        "is_last_step": [True] * SIZE,
        "extra_fields": [{} for _ in range(SIZE)],
    }
    return Step("loop", "POST", "/get_observation", json.dumps(body), session="new")


def check(server: Started) -> None:
    """Check once that the answers are right and in order."""
    body = {"trajectory_ids": [f"check-{i}" for i in range(SIZE)], "is_last_step": [True] * SIZE}
    actions = [f"<python>print('said', {i})</python>" for i in range(SIZE)]
    told = json.loads(server.ask("POST", "/get_observation", json.dumps({**body, "actions": actions})))
    said = [one if isinstance(one, str) else one["obs"] for one in told["observations"]]
    if wrong := [(i, one) for i, one in enumerate(said) if f"said {i}\n" not in f"{one}\n"]:
        raise SystemExit(f"{len(wrong)} of {SIZE} answers are wrong; the first is {wrong[0]}")


@contextmanager
def on(processors: Sequence[int]) -> Iterator[None]:
    """Processes started in the block run on these processors; this process runs on the others, if there are any."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, processors)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def turn(case: Case, generator: Path, meter: Meter, seconds: float) -> Figure:
    everything = sorted(os.sched_getaffinity(0))
    chosen = everything[: case.cores]
    options = ["--tools", "python_code", "--protocol", "verl", "--gateways", str(case.gateways)]
    with ExitStack() as stack:
        with on(chosen):
            server = stack.enter_context(running(serving(*options)))
        check(server)
        with on(everything[case.cores :] or everything):
            drive(generator, server, [batch()], connections=IN_FLIGHT, seconds=seconds / 4)
            return _measured(server, chosen, generator, meter, seconds)


def _measured(server: Started, chosen: Sequence[int], generator: Path, meter: Meter, seconds: float) -> Figure:
    gateways, templates = _processes(server.pid)
    before = {pid: _cpu(pid) for pid in (*gateways, *templates)}
    cpu, idle = _servers_cpu(meter), _idle(chosen)
    load = drive(generator, server, [batch()], connections=IN_FLIGHT, seconds=seconds)
    cpu, idle = _servers_cpu(meter) - cpu - load.own_cpu, _idle(chosen) - idle
    used = {pid: _cpu(pid) - earlier for pid, earlier in before.items()}
    of_gateways, of_templates = (sum(used[pid] for pid in pids) for pids in (gateways, templates))
    return Figure(load.seconds, load.passes * SIZE, cpu, of_gateways, of_templates, max(used.values()), idle)


def _servers_cpu(meter: Meter) -> float:
    return meter.cpu().processes - time.process_time()


def _idle(processors: Sequence[int]) -> float:
    lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    fields = {name: [*map(int, numbers)] for name, *numbers in lines if name.startswith("cpu")}
    return sum(sum(fields[f"cpu{one}"][_IDLE]) for one in processors) / _TICKS


def _processes(server: int) -> tuple[Sequence[int], Sequence[int]]:
    """The gateways with their parent, and the templates, which are children of brokers."""
    gateways = [server, *(pid for pid in _children(server) if not _is_broker(pid))]
    brokers = [pid for gateway in gateways for pid in _children(gateway) if _is_broker(pid)]
    return gateways, [pid for broker in brokers for pid in _children(broker)]


def _is_broker(pid: int) -> bool:
    return b"native.broker" in Path(f"/proc/{pid}/cmdline").read_bytes()


def _children(pid: int) -> Sequence[int]:
    return [int(one) for file in Path(f"/proc/{pid}/task").glob("*/children") for one in file.read_text().split()]


def _cpu(pid: int) -> float:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def cases(most: int) -> list[Case]:
    """One gateway on 1, 2, 4 … processors, and several with some processors each."""
    counts = [count for count in (1, 2, 4, 8, 16, 32, 64) if count < most] + [most]
    found = []
    for count in counts:
        several = {1, -(-count // PROCESSORS_EACH), count if count <= 2 * PROCESSORS_EACH else count // 2}
        found += [Case(count, gateways) for gateways in sorted(several)]
    return found


HEAD = (
    *("processors", "gateways", "executions per second", "processor time of one", "in gateways", "in templates"),
    *("busiest process", "idle", "of 1 processor's", "without neighbours"),
)


def table(figures: Mapping[Case, Sequence[Figure]]) -> str:
    return aligned([HEAD, *(line(case, of_case, figures[Case(1, 1)]) for case, of_case in figures.items())])


def line(case: Case, figures: Sequence[Figure], base: Sequence[Figure]) -> Sequence[str]:
    """Medians; ratios are within a round."""

    def middle(each: Callable[[Figure], float]) -> float:
        return median(map(each, figures))

    def against_base(each: Callable[[Figure], float]) -> float:
        return median(each(one) / each(other) for one, other in zip(figures, base, strict=True))

    return [
        str(case.cores),
        str(case.gateways),
        f"{middle(lambda one: one.rate):,.0f}",
        milli(middle(lambda one: one.cpu / one.executions)),
        milli(middle(lambda one: one.gateways / one.executions)),
        milli(middle(lambda one: one.templates / one.executions)),
        f"{middle(lambda one: one.busiest / one.seconds):.0%}",
        f"{middle(lambda one: one.idle / one.seconds) / case.cores:.0%}",
        f"{against_base(lambda one: one.rate) / case.cores:.2f}",
        f"{against_base(lambda one: one.rate_of_left):.2f}",
    ]


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cores", description=__doc__)
    parser.add_argument("--rounds", type=int, default=2, metavar="N", help="how often each case has its turn (2)")
    parser.add_argument("--seconds", type=float, default=4.0, metavar="S", help="length of each turn (4)")
    return parser


def main() -> None:
    args = arguments().parse_args()
    check_platform()
    tune_process()
    generator = load_generator()
    figures: dict[Case, list[Figure]] = {case: [] for case in cases(len(os.sched_getaffinity(0)))}
    with metering() as meter:
        for number in range(args.rounds):
            for case in [*figures] if number % 2 == 0 else [*figures][::-1]:
                figures[case].append(turn(case, generator, meter, args.seconds))
                last = figures[case][-1]
                progress(f"{case}: {last.rate:,.0f} executions per second, {milli(last.cpu / last.executions)} each")
        scope = meter.scope
    print(table(figures))
    print(f"\n`make bench-cores` on {processor()}. Processor time is {scope}.")


if __name__ == "__main__":
    main()
