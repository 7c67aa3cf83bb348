"""Toolyard's native sandbox beside other ways to run Python: `python -m benchmarks.sandbox`.

Everything takes its turn in every round, forwards in one and backwards in the next. A ratio is the median over rounds
of the ratio within one round, so a neighbour that slows all of them down changes little. Processor time says more than
elapsed time, and counts everything: see `sandbox_meter`.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Literal, TypeAlias

import uvloop

from benchmarks.report import (
    SANDBOX_PAGE,
    aligned,
    check_platform,
    command_of,
    milli,
    per_second,
    processor,
    progress,
)
from benchmarks.sandbox_meter import (
    Meter,
    available_bytes,
    descendants,
    kernel_seconds,
    metering,
    proportional_bytes,
    unique_bytes,
    wait_until_gone,
)
from benchmarks.sandbox_peers import Launcher, Peer, peers, with_packages
from toolyard.sandboxes import Level, Profile, Provider, Sandbox, profiles
from toolyard.sandboxes.base import Interpreter

CODE = "print(1 + 1)"
NUMPY = "import numpy; print(1 + 1)"
ANALYSIS = "import numpy, pandas, sympy; print(1 + 1)"
LARGE: Sequence[Profile] = ("analytic", "scientific")
"""Profiles that have loaded these. The second has also loaded scipy."""
AT_ONCE = (1, 2, 8, 32)
FRESH, READY = "Toolyard, fresh", "Toolyard, from the pool"
READY_COUNT = 2
KILLED_WITH = 20
"""Open sandboxes in the server that is killed."""
BRANCHES = 20
"""Branches of one session, to measure their memory."""

_REFILL_SECONDS = 0.05
"""Longer than making a sandbox takes, so that the pool is full at each request."""
_SETTLE_SECONDS = 0.2
"""Time for the leftovers of a turn to end: sandboxes that end in the background, and what the kernel's own threads
clean up a little later."""

Once: TypeAlias = Callable[[Callable[[], None]], Awaitable[None]]
"""Do the work once. It may call its argument at the end of the timed part; otherwise all of it is timed."""


@dataclass(frozen=True)
class Work:
    once: Once
    at_once: int = 1
    rest: float = 0.0
    """Seconds between the end of one and the beginning of the next, not timed."""


@dataclass(frozen=True)
class Turn:
    """What repeating the work took, in seconds."""

    seconds: float
    count: int
    p50: float
    p99: float
    cpu_all: float
    kernel_all: float

    @property
    def cpu(self) -> float:
        return self.cpu_all / self.count

    @property
    def kernel(self) -> float:
        """Processor time of the kernel's own threads."""
        return self.kernel_all / self.count

    @property
    def interval(self) -> float:
        """Between the ends of two."""
        return self.seconds / self.count


async def take_turn(work: Work, meter: Meter, seconds: float) -> Turn:
    times: list[float] = []
    before = meter.cpu()
    began = time.perf_counter()

    async def repeat() -> None:
        while not times or time.perf_counter() - began < seconds:
            times.append(await timed(work.once))
            if work.rest:
                await asyncio.sleep(work.rest)

    await asyncio.gather(*(repeat() for _ in range(work.at_once)))
    took = time.perf_counter() - began
    await asyncio.sleep(_SETTLE_SECONDS)
    times.sort()
    after = meter.cpu()
    cpu, kernel = after.processes - before.processes, kernel_seconds(before, after)
    return Turn(took, len(times), median(times), times[len(times) * 99 // 100], cpu, kernel)


async def timed(once: Once) -> float:
    laps: list[float] = []
    began = time.perf_counter()
    await once(lambda: laps.append(time.perf_counter()))
    laps.append(time.perf_counter())
    return laps[0] - began


# The work.


class Bench:
    """Sandboxes and sessions that last for the whole run."""

    def __init__(self, fresh: Provider, ready: Provider, launcher: Launcher) -> None:
        self.fresh = fresh
        self.ready = ready
        self._launcher = launcher
        self.peers = peers()

    async def works(self) -> Mapping[str, Mapping[str, Work]]:
        """By name, and by contender."""
        plain = await self._session("plain")
        works: dict[str, Mapping[str, Work]] = {
            f"exec {at_once}": {
                **{peer.name: Work(self._program(peer, CODE), at_once) for peer in self.peers},
                FRESH: Work(stateless(self.fresh, "plain", CODE), at_once),
                READY: Work(stateless(self.ready, "plain", CODE), at_once),
            }
            for at_once in AT_ONCE
        }
        works["exec rested"] = {
            FRESH: Work(stateless(self.fresh, "plain", CODE), rest=_REFILL_SECONDS),
            READY: Work(stateless(self.ready, "plain", CODE), rest=_REFILL_SECONDS),
        }
        works["start"] = self._start("plain", CODE)
        works["call"] = {FRESH: Work(lambda _: self._call(plain))}
        works["builtin"] = {FRESH: Work(lambda _: self._shell(plain, "cd ."))}
        works["external"] = {FRESH: Work(lambda _: self._shell(plain, "/bin/true"))}
        works["run"] = {FRESH: Work(lambda _: self._run(plain))}
        works["fork"] = {FRESH: Work(forked(await self._session("plain")))}
        works["fork large"] = {FRESH: Work(forked(await self._session("plain", "large = b'x' * 10**8")))}
        files = "for i in range(100): open(f'file{i}', 'wb').write(bytes(10_000))"
        works["fork files"] = {FRESH: Work(forked(await self._session("plain", files)))}
        if not profiles.missing("analytic"):
            for at_once in (1, 2):
                works[f"numeric {at_once}"] = self._libraries("numeric", NUMPY, at_once)
                works[f"analytic {at_once}"] = self._libraries("analytic", ANALYSIS, at_once)
            analytic = await self._session("analytic")
            works["analytic call"] = {FRESH: Work(lambda _: self._call(analytic))}
            for profile in LARGE:
                works[f"{profile} start"] = self._start(profile, ANALYSIS)
                works[f"{profile} fork"] = {FRESH: Work(forked(await self._session(profile)))}
        return works

    def _libraries(self, profile: Profile, code: str, at_once: int) -> Mapping[str, Work]:
        return {
            self.peers[0].name: Work(self._program(self.peers[0], with_packages(code)), at_once),
            FRESH: Work(stateless(self.fresh, profile, code), at_once),
            READY: Work(stateless(self.ready, profile, code), at_once),
        }

    def _start(self, profile: Profile, code: str) -> Mapping[str, Work]:
        return {
            FRESH: Work(started(self.fresh, profile, code), rest=_REFILL_SECONDS),
            READY: Work(started(self.ready, profile, code), rest=_REFILL_SECONDS),
        }

    async def _session(self, profile: Profile, code: str = "1") -> Sandbox:
        sandbox = await self.fresh.open(profile=profile)
        await executed(sandbox, code, "")
        return sandbox

    def _program(self, peer: Peer, code: str) -> Once:
        async def once(_: Callable[[], None]) -> None:
            check(await self._launcher.run(peer, code), "2\n", peer.name)

        return once

    async def _call(self, sandbox: Sandbox) -> None:
        done = await sandbox.exec("1 + 1")
        check(done.value, "2", "a call")

    async def _shell(self, sandbox: Sandbox, command: str) -> None:
        done = await sandbox.shell(command)
        check((done.exit_code, done.stderr), (0, b""), command)

    async def _run(self, sandbox: Sandbox) -> None:
        done = await sandbox.run(["/bin/true"])
        check((done.exit_code, done.stderr), (0, b""), "/bin/true")


def check(said: object, expected: object, who: str) -> None:
    """Make sure that the work succeeded, so that no failure is measured."""
    if said != expected:
        raise SystemExit(f"{who} gave {said!r} instead of {expected!r}; what was measured would mean nothing.")


async def executed(interpreter: Interpreter, code: str, expected: str) -> None:
    done = await interpreter.exec(code)
    check((done.stdout, done.error), (expected, None), code)


def stateless(provider: Provider, profile: Profile, code: str) -> Once:
    """One piece of code, as `execute` runs it."""

    async def once(_: Callable[[], None]) -> None:
        async with provider.interpreter_once(profile=profile) as interpreter:
            await executed(interpreter, code, "2\n")

    return once


def started(provider: Provider, profile: Profile, code: str) -> Once:
    """Times the first result of a session."""

    async def once(lap: Callable[[], None]) -> None:
        async with await provider.open(profile=profile) as sandbox:
            await executed(sandbox, code, "2\n")
            lap()

    return once


def forked(sandbox: Sandbox) -> Once:
    """Times the first result of a branch."""

    async def once(lap: Callable[[], None]) -> None:
        async with (await sandbox.fork())[0] as branch:
            await executed(branch, CODE, "2\n")
            lap()

    return once


# Memory.


@dataclass(frozen=True)
class Memory:
    """Bytes for each of many live sessions."""

    proportional: float | None
    """Of its processes, by PSS; None where only root may read it."""
    unique: float | None
    """Of its processes, without what they share with others; or None."""
    machine: float
    """By how much less memory was available on the machine."""


async def memory_of_sessions(provider: Provider, profile: Profile, count: int) -> Memory:
    sessions: list[Sandbox] = []

    async def fill() -> None:
        while len(sessions) < count:
            sandbox = await provider.open(profile=profile)
            sessions.append(sandbox)
            await executed(sandbox, CODE, "2\n")

    try:
        return await _growth(fill, sessions)
    finally:
        await asyncio.gather(*(sandbox.close() for sandbox in sessions))


async def memory_of_branches(provider: Provider, profile: Profile, count: int) -> Memory:
    branches: list[Sandbox] = []
    async with await provider.open(profile=profile) as sandbox:
        await executed(sandbox, CODE, "2\n")

        async def fill() -> None:
            branches.extend(await sandbox.fork(count))
            await asyncio.gather(*(executed(branch, CODE, "2\n") for branch in branches))

        try:
            return await _growth(fill, branches)
        finally:
            await asyncio.gather(*(branch.close() for branch in branches))


async def _growth(fill: Callable[[], Awaitable[None]], filled: Sequence[Sandbox]) -> Memory:
    await asyncio.sleep(_SETTLE_SECONDS)
    before = set(descendants(os.getpid()))
    available = available_bytes()
    await fill()
    await asyncio.sleep(_SETTLE_SECONDS)
    machine = available - available_bytes()
    grown = set(descendants(os.getpid())) - before
    return Memory(
        _each(proportional_bytes, grown, len(filled)), _each(unique_bytes, grown, len(filled)), machine / len(filled)
    )


def _each(size: Callable[[int], int], processes: Iterable[int], count: int) -> float | None:
    try:
        return sum(map(size, processes)) / count
    except PermissionError:
        return None


# Leftovers.


@dataclass(frozen=True)
class Killed:
    """Seconds from the server's SIGKILL to the end of others."""

    sandboxes: float
    """Every process in a sandbox."""
    helpers: float
    """Also those outside of sandboxes, which have cleaned everything up by then."""


def kill_server(sandboxes: int) -> Killed:
    command = [sys.executable, "-m", "benchmarks.sandbox_victim", str(sandboxes)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        check(server.stdout.readline(), b"ready\n", "the server that is to be killed")
        helpers, inside = (list(held(server.pid, skip)) for skip in (0, 2))  # a broker, its templates, their sandboxes
        began = time.perf_counter()
        server.send_signal(signal.SIGKILL)
        wait_until_gone(set(inside))
        sandboxes_gone = time.perf_counter() - began
        wait_until_gone(set(helpers))
        helpers_gone = time.perf_counter() - began
    finally:
        server.kill()
        server.communicate()
    for pidfd in (*helpers, *inside):
        os.close(pidfd)
    return Killed(sandboxes_gone, helpers_gone)


def held(pid: int, skip: int) -> Iterator[int]:
    """Descendants of this process, each by a pidfd."""
    for below in descendants(pid, skip=skip):
        yield os.pidfd_open(below)


# All of it.

Round: TypeAlias = Mapping[str, Mapping[str, Turn]]
"""By work, and by contender."""

Figure: TypeAlias = Literal["cpu", "kernel", "p50", "p99", "interval"]


@dataclass
class Figures:
    """All measurements."""

    contenders: Sequence[str]
    versions: Sequence[str]
    level: Level
    scope: str
    """Whose processor time counts."""
    rounds: list[Round] = field(default_factory=list)
    sessions: dict[Profile, list[Memory]] = field(default_factory=dict)
    """By installed profile."""
    branches: dict[Profile, list[Memory]] = field(default_factory=dict)
    killed: list[Killed] = field(default_factory=list)

    def median(self, work: str, who: str, figure: Figure) -> float:
        return median(self._each(work, who, figure))

    def ratio(self, work: str, who: str, figure: Figure) -> float:
        """As a multiple of Toolyard's."""
        pairs = zip(self._each(work, who, figure), self._each(work, FRESH, figure), strict=True)
        return median(theirs / ours for theirs, ours in pairs)

    def _each(self, work: str, who: str, figure: Figure) -> Sequence[float]:
        return [getattr(done[work][who], figure) for done in self.rounds]


async def measure(rounds: int, seconds: float, sessions: int, meter: Meter) -> Figures:
    async with AsyncExitStack() as leaving:
        launcher = Launcher(max(AT_ONCE))
        leaving.callback(launcher.close)
        fresh, ready = (Provider("native", ready=count) for count in (0, READY_COUNT))
        for provider in (fresh, ready):
            leaving.push_async_callback(provider.close)
        level = (await fresh.start()).level
        bench = Bench(fresh, ready, launcher)
        works = await bench.works()
        figures = Figures(
            contenders=[*(peer.name for peer in bench.peers), FRESH, READY],
            versions=[f"{peer.name} {peer.version}" for peer in bench.peers if peer.version],
            level=level,
            scope=meter.scope,
        )
        there: list[Profile] = ["plain", *(LARGE if not profiles.missing("analytic") else [])]
        figures.sessions.update({profile: [] for profile in there})
        figures.branches.update({profile: [] for profile in there})
        progress("warming up")
        for turns in works.values():
            for work in turns.values():
                await take_turn(work, meter, min(seconds, 0.1))
        for number in range(rounds):
            progress(f"round {number + 1} of {rounds}")
            figures.rounds.append(await one_round(works, meter, seconds, backwards=number % 2 == 1))
            for profile, memory in figures.sessions.items():
                memory.append(await memory_of_sessions(bench.fresh, profile, sessions))
            for profile, memory in figures.branches.items():
                memory.append(await memory_of_branches(bench.fresh, profile, BRANCHES))
            figures.killed.append(await asyncio.to_thread(kill_server, KILLED_WITH))
        return figures


async def one_round(works: Mapping[str, Mapping[str, Work]], meter: Meter, seconds: float, *, backwards: bool) -> Round:
    done: dict[str, Mapping[str, Turn]] = {}
    for name, turns in works.items():
        in_turn = list(turns)[:: -1 if backwards else 1]
        done[name] = {who: await take_turn(turns[who], meter, seconds) for who in in_turn}
    return done


# The report.


def lines(figures: Figures) -> Iterator[Sequence[str]]:
    """The table, line by line."""

    def line(what: str, work: str, figure: Figure, show: Callable[[float], str], target: str = "") -> Sequence[str]:
        cells = []
        for who in figures.contenders:
            cell = show(figures.median(work, who, figure)) if who in figures.rounds[0][work] else ""
            if cell and who not in (FRESH, READY):
                cell += f" ({figures.ratio(work, who, figure):.1f}x)"
            cells.append(cell)
        return [what, *cells, target]

    def ours(what: str, told: str, target: str = "") -> Sequence[str]:
        return [what, *("" if who != FRESH else told for who in figures.contenders), target]

    yield ["", *figures.contenders, "target"]
    yield line("execution of `print(1 + 1)`: CPU", "exec 1", "cpu", milli, "5.7 ms")
    yield line("CPU of the kernel's threads besides", "exec 1", "kernel", milli)
    yield line("time, one at a time, p50", "exec 1", "p50", milli, "5 ms")
    yield line("time, one at a time, p99", "exec 1", "p99", milli, "20 ms")
    yield line("time, one at a time with pauses, p50", "exec rested", "p50", milli, "5 ms; pool 1 ms")
    for at_once in AT_ONCE:
        target = "350" if at_once == max(AT_ONCE) else ""
        yield line(f"executions per second, {at_once} at a time", f"exec {at_once}", "interval", per_second, target)
    yield line("session: open to first result, p50", "start", "p50", milli, "8 ms; pool 1 ms")
    yield line("call in an open session: CPU", "call", "cpu", milli)
    yield line("call in an open session, p50", "call", "p50", milli, "0.3 ms")
    yield line("call in an open session, p99", "call", "p99", milli, "2 ms")
    yield line("shell command, builtin, p50", "builtin", "p50", milli)
    yield line("shell command, external, p50", "external", "p50", milli, "4 ms")
    yield line("`run` of /bin/true, p50", "run", "p50", milli)
    yield line("fork of a session to first result, p50", "fork", "p50", milli, "10 ms")
    yield line("the same with an object of 100 MB, p50", "fork large", "p50", milli)
    yield line("the same with 100 files of 10 kB, p50", "fork files", "p50", milli)
    yield line("fork, with the end of the branch: CPU", "fork", "cpu", milli)
    if "analytic" in figures.sessions:
        yield line("with `import numpy`: CPU", "numeric 1", "cpu", milli)
        yield line("time, one at a time, p50", "numeric 1", "p50", milli)
        yield line("executions per second, 2 at a time", "numeric 2", "interval", per_second)
        yield line("with `import numpy, pandas, sympy`: CPU", "analytic 1", "cpu", milli)
        yield line("time, one at a time, p50", "analytic 1", "p50", milli, "10 ms")
        yield line("executions per second, 2 at a time", "analytic 2", "interval", per_second, "150")
        yield line("session: open to first result, p50", "analytic start", "p50", milli, "12 ms")
        yield line("call in an open session, p50", "analytic call", "p50", milli, "0.3 ms")
        yield line("fork of a session to first result, p50", "analytic fork", "p50", milli, "10 ms")
        yield line("with scipy besides: open to first result, p50", "scientific start", "p50", milli)
        yield line("fork of that to first result, p50", "scientific fork", "p50", milli)
    most = {"plain": ("2 MiB", "3 MiB"), "analytic": ("4 MiB", "3 MiB"), "scientific": ("", "")}
    for profile, memory in figures.sessions.items():
        of_processes, of_machine = most[profile]
        shared_out, machine = known(one.proportional for one in memory), median(one.machine for one in memory)
        yield ours(f"memory of an idle session, {profile}: PSS", shared_out, of_processes)
        yield ours(f"memory of an idle session, {profile}: machine", mib(machine), of_machine)
    for profile, memory in figures.branches.items():
        target = "" if profile == "scientific" else "2 MiB"
        yield ours(f"memory of an idle branch, {profile}: its own", known(one.unique for one in memory), target)
        yield ours(f"memory of an idle branch, {profile}: PSS", known(one.proportional for one in memory))
    gone = median(one.sandboxes for one in figures.killed)
    yield ours("server killed to no process left in a sandbox", milli(gone), "50 ms")
    yield ours("and to nothing left at all", milli(median(one.helpers for one in figures.killed)))


def known(figures: Iterable[float | None]) -> str:
    there = [figure for figure in figures if figure is not None]
    return mib(median(there)) if there else "only root may know"


def mib(size: float) -> str:
    return f"{size / 2**20:.2f} MiB"


def conditions(command: str, figures: Figures, sessions: int) -> str:
    """How the figures were measured, for readers who want to repeat or doubt them."""
    each = [done["exec 1"][FRESH].cpu for done in figures.rounds]
    return (
        f"Printed by `{command}` with Python {platform.python_version()} on {os.cpu_count()} cores of {processor()}, "
        f"Linux {platform.release()}{', '.join(['', *figures.versions])}; isolation {figures.level}, "
        f"{'as root' if os.geteuid() == 0 else 'not as root'}. Medians of {len(figures.rounds)} rounds; in brackets, "
        f"the median of the ratios to a fresh sandbox of Toolyard's within a round. Fresh means opened, used once and "
        f"closed; times are those until the result is there, and CPU is that of the end too. From the pool, with "
        f"{READY_COUNT} kept ready, the making of the next one is counted too. CPU is "
        f"processor time {figures.scope}; for a fresh sandbox it was {milli(min(each))} to {milli(max(each))} from "
        f"round to round. Targets are for 2 quiet cores. Memory is that of {sessions} sessions which have run "
        f"something, divided by their number. The server that was killed had {KILLED_WITH} sandboxes, each with an "
        f"interpreter, a shell, and a program in the background."
    )


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sandbox", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="how often each one has its turn (5)")
    parser.add_argument("--seconds", type=float, default=1.0, metavar="S", help="length of each turn (1)")
    parser.add_argument("--sessions", type=int, default=200, metavar="N", help="opened to measure memory (200)")
    parser.add_argument("--quick", action="store_true", help="a glance: 2 rounds of 0.3 seconds, 100 sessions")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything that was measured")
    parser.add_argument(
        "--write-docs", action="store_true", help="replace the table in docs/sandbox-cost.md by this one"
    )
    return parser


def main() -> None:
    args = arguments().parse_args()
    check_platform()
    command = command_of(arguments(), args, usual="make bench-sandbox")
    if args.quick:
        args.rounds, args.seconds, args.sessions = 2, 0.3, 100
    if args.write_docs:
        SANDBOX_PAGE.around()  # fail now, not after some minutes
    with metering() as meter:
        figures = uvloop.run(measure(args.rounds, args.seconds, args.sessions, meter))
    text = f"{aligned(list(lines(figures)))}\n\n{conditions(command, figures, args.sessions)}"
    print(text)
    if args.json:
        args.json.write_text(json.dumps({"printed": text, **dataclasses.asdict(figures)}, indent=1))
    if args.write_docs:
        SANDBOX_PAGE.write(text)


if __name__ == "__main__":
    main()
