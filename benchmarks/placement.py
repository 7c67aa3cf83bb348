"""What the place of sessions costs: `python -m benchmarks.placement`.

The runtime is driven without HTTP, in one process for each place, so that only the place differs. Processor time covers
all processes: this one, the workers, the template. Each figure is the median over rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import platform
import resource
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median, quantiles
from typing import Any, TypeVar

from benchmarks.report import PLACEMENT_PAGE, aligned, micro, milli, processor, progress
from benchmarks.sandbox_meter import Meter, metering
from toolyard import Environment, tool
from toolyard.core.output import ToolOutput
from toolyard.placement.base import SessionSpec, Task
from toolyard.runtime.limits import Limits
from toolyard.runtime.runtime import Runtime
from toolyard.runtime.session import Session
from toolyard.server import placement_of
from toolyard.serving import tune_process
from toolyard.settings import Settings

T = TypeVar("T")

AT_ONCE = 32
"""Sessions that call at once."""


class Trivial(Environment):
    """Does almost nothing, so that the place is what is measured."""

    replayable = False

    @classmethod
    def list_splits(cls) -> Sequence[str]:
        return ["train"]

    @classmethod
    def list_tasks(cls, split: str) -> list[dict[str, object]]:
        return []

    def get_prompt(self) -> str:
        return ""

    def __init__(self, task_spec: Mapping[str, object] = {}, secrets: Mapping[str, str] = {}) -> None:
        super().__init__(task_spec, secrets)
        self.count = 0

    @tool
    async def add(self) -> str:
        self.count += 1
        return str(self.count)

    @tool
    def burn(self, rounds: int) -> str:
        total = 0
        for number in range(rounds):
            total += number * number
        return str(total)


@dataclass(frozen=True)
class Figures:
    """For one place. Seconds, bytes, per second."""

    open: float
    call: float
    call_cpu: float
    calls: float
    burns: float
    fork: float | None
    memory: float
    close: float


async def measure(settings: Settings, sessions: int, calls: int) -> Figures:
    placement = placement_of(settings, [Trivial], [])
    placement.prepare()
    runtime = Runtime([Trivial], placement, settings.pick(Limits))
    with metering() as meter:
        try:
            async with runtime.running():
                return await _measure(runtime, meter, sessions, calls)
        finally:
            await placement.stop()


async def _measure(runtime: Runtime, meter: Meter, sessions: int, calls: int) -> Figures:
    await runtime.close((await _open(runtime, "first")).id)
    before = memory()
    opened: list[Session] = []
    opening = await _timed([partial(_kept, runtime, str(number), opened) for number in range(sessions)])
    held = (memory() - before) / sessions
    one = opened[0]
    calling = await _timed([lambda: _called(one, "add")] * calls)
    cpu, at_once = await _together(meter, opened[:AT_ONCE], calls, lambda session: _called(session, "add"))
    rounds = await _rounds_of(0.005, one)
    _, burning = await _together(
        meter, opened[:AT_ONCE], AT_ONCE * 6, lambda session: _called(session, "burn", rounds=rounds)
    )
    fork = await _fork(runtime, one)
    closing = await _timed([partial(runtime.close, session.id) for session in opened])
    return Figures(opening, calling, cpu, at_once, burning, fork, held, closing)


async def _open(runtime: Runtime, name: str) -> Session:
    session = await runtime.open(SessionSpec(name, Trivial, Task({})))
    await session.ready()
    return session


async def _kept(runtime: Runtime, name: str, opened: list[Session]) -> None:
    opened.append(await _open(runtime, name))


async def _called(session: Session, name: str, **arguments: int) -> None:
    result = await session.start(name, arguments).finished()
    assert isinstance(result, ToolOutput | str), result  # text comes unchanged


async def _timed(works: Sequence[Callable[[], Awaitable[object]]]) -> float:
    """The median of doing one after the other."""
    took: list[float] = []
    for work in works:
        began = time.perf_counter()
        await work()
        took.append(time.perf_counter() - began)
    return median(took)


async def _together(
    meter: Meter, sessions: Sequence[Session], calls: int, call: Callable[[Session], Awaitable[None]]
) -> tuple[float, float]:
    """Processor time of a call, and calls per second, when all sessions call at once."""

    async def play(session: Session) -> None:
        for _ in range(max(calls // len(sessions), 1)):
            await call(session)

    count = max(calls // len(sessions), 1) * len(sessions)
    before, began = meter.read(), time.perf_counter()
    await asyncio.gather(*map(play, sessions))
    return (meter.read() - before) / count, count / (time.perf_counter() - began)


async def _rounds_of(seconds: float, session: Session) -> int:
    """How many rounds to burn for about that long."""
    began = time.perf_counter()
    await _called(session, "burn", rounds=20_000)
    return round(20_000 * seconds / (time.perf_counter() - began))


async def _fork(runtime: Runtime, session: Session) -> float | None:
    took: list[float] = []
    for number in range(8):
        began = time.perf_counter()
        try:
            await runtime.fork(session, [f"fork-{number}"])
        except Exception:  # this place cannot fork
            return None
        took.append(time.perf_counter() - began)
        await runtime.close(f"fork-{number}")
    return median(took)


def memory() -> int:
    """Proportional set size of this process and all of its descendants."""
    return sum(map(_pss, _tree(os.getpid())))


def _tree(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except FileNotFoundError:
        return []
    return [pid, *(each for child in children for each in _tree(int(child)))]


def _pss(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


# Many sessions at once.


@dataclass(frozen=True)
class Crowd:
    sessions: int
    opened: float
    """Seconds for all."""
    memory: float
    """Bytes for one."""
    p50: float
    p99: float
    """Seconds of a call while all of them call, each once in a while."""
    per_second: float


async def crowd(settings: Settings, sessions: int, at_once: int = 256) -> Crowd:
    placement = placement_of(settings, [Trivial], [])
    placement.prepare()
    runtime = Runtime([Trivial], placement, settings.pick(Limits))
    took: list[float] = []

    async def play(some: Sequence[Session]) -> None:
        for session in some:
            began = time.perf_counter()
            await _called(session, "add")
            took.append(time.perf_counter() - began)

    try:
        async with runtime.running():
            for number in range(sessions // 10):  # warm up: what is needed once exists
                await _open(runtime, f"first {number}")
            await asyncio.gather(*map(runtime.close, list(runtime.sessions)))
            gc.collect()
            before, began = memory(), time.perf_counter()
            opened: list[Session] = []
            for number in range(sessions):
                await _kept(runtime, str(number), opened)
            opening = time.perf_counter() - began
            gc.collect()
            held = memory() - before
            began = time.perf_counter()
            for _ in range(4):
                await asyncio.gather(*(play(opened[lane::at_once]) for lane in range(at_once)))
            seconds = time.perf_counter() - began
            cuts = quantiles(took, n=100)
            return Crowd(sessions, opening, held / sessions, cuts[49], cuts[98], len(took) / seconds)
    finally:
        await placement.stop()


def apart(work: Callable[..., Coroutine[Any, Any, T]], place: str, *numbers: int) -> T:
    """In a separate process, so that what one place leaves in memory does not count for another."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(_run, work, place, numbers).result()


def _run(work: Callable[..., Coroutine[Any, Any, T]], place: str, numbers: Sequence[int]) -> T:
    tune_process()  # like a server
    return asyncio.run(work(Settings.read({"placement": place}, {}), *numbers))


# The table.


def rows(figures: Mapping[str, Figures]) -> list[Sequence[str]]:
    def row(what: str, show: Callable[[Figures], str]) -> Sequence[str]:
        return (what, *(show(each) for each in figures.values()))

    return [
        ("", *figures),
        row("open a session", lambda each: milli(each.open)),
        row("close it", lambda each: milli(each.close)),
        row("a call, one after the other", lambda each: micro(each.call)),
        row(f"CPU of a call, {AT_ONCE} sessions at once", lambda each: micro(each.call_cpu)),
        row("trivial calls per second", lambda each: f"{each.calls:,.0f}"),
        row("calls of 5 ms of Python per second", lambda each: f"{each.burns:,.0f}"),
        row("fork a session", lambda each: milli(each.fork) if each.fork is not None else "by replay or hook"),
        row("memory of a session", lambda each: f"{each.memory / 1024:,.0f} KiB"),
    ]


def crowded(crowds: Mapping[str, Crowd]) -> list[Sequence[str]]:
    return [
        ("", "sessions", "open all", "memory of one", "call p50", "call p99", "calls per second"),
        *(
            (
                name,
                f"{one.sessions:,}",
                f"{one.opened:.1f} s",
                f"{one.memory / 1024:,.1f} KiB",
                milli(one.p50),
                milli(one.p99),
                f"{one.per_second:,.0f}",
            )
            for name, one in crowds.items()
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--places", default="local,process,pool,ray", help="which of them (default: %(default)s)")
    parser.add_argument("--sessions", type=int, default=64, help="sessions in each place (default: %(default)s)")
    parser.add_argument("--calls", type=int, default=4000, help="calls in each place (default: %(default)s)")
    parser.add_argument("--crowd", type=int, default=5000, help="sessions at once, in local and pool; 0: none")
    parser.add_argument("--write-page", action="store_true", help="put the tables into docs/placement.md")
    args = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    figures: dict[str, Figures] = {}
    for name in args.places.split(","):
        progress(f"{name} …")
        figures[name] = apart(measure, name, args.sessions, args.calls)
    crowds: dict[str, Crowd] = {}
    for name in ("local", "pool") if args.crowd else ():
        progress(f"{args.crowd} sessions, {name} …")
        crowds[name] = apart(crowd, name, args.crowd)
    text = aligned(rows(figures))
    if crowds:
        text += "\n\n" + aligned(crowded(crowds))
    text += (
        f"\n\nPrinted by `make bench-placement` with Python {platform.python_version()} on {os.cpu_count()} cores of "
        f"{processor()}. Without HTTP. The tool adds one; memory is proportional set size of all processes."
    )
    print(text)
    if args.write_page:
        PLACEMENT_PAGE.write(text)


if __name__ == "__main__":
    main()
