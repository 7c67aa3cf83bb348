"""Plays random scenarios against the native backend, many at once, in its own process, and reports what it found.

    python -m tests.sandboxes.fuzzing --seed SEED --executions N --seconds S --scenario NUMBER --times N

A scenario is one family of sandboxes, the programs in it and the events that hit it: calls are cancelled, sandboxes are
forked or closed, and processes of a sandbox are killed. The seed and the scenario's number determine all of it.
Afterwards nothing may be left of it.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import dataclasses
import gc
import itertools
import json
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, NamedTuple, TypeVar

import uvloop

from tests.sandboxes.programs import (
    SANDBOX_PROCESSES,
    Judge,
    Program,
    Untrue,
    Way,
    draw_limits,
    draw_program,
    draw_run_limits,
)
from toolyard.core.errors import CannotFork, SandboxError, SandboxLost, WorkspaceError
from toolyard.sandboxes.base import Executed, Finished, Limits
from toolyard.sandboxes.native.backend import NativeBackend
from toolyard.sandboxes.native.sandbox import NativeSandbox

T = TypeVar("T")

AT_ONCE = 8
ACTIONS = {"call": 60, "together": 6, "queue": 3, "give up": 12, "fork": 8, "files": 6, "close": 3.5, "kill": 1.5}
"""The events of a scenario, and how often each happens."""
DOOMED_AT_ONCE = 2
DOOMED_EVERY = 10
"""Scenarios with multiples of this number run on a backend that loses its own processes now and then."""
SLACK_SECONDS = 10.0
"""The most by which a call may exceed its limit."""
GONE_SECONDS = 5.0
MARGIN_BYTES = 24 * 2**20
"""The most by which this process may have grown at the end, compared with a quarter of the way."""
PROBLEMS_MOST = 5


@dataclass(slots=True)
class Box:
    """A sandbox of a family, and what is known of it."""

    sandbox: NativeSandbox
    kept: int
    """The value of a variable in its interpreter."""
    python_known: bool = True
    """Whether it is known if that is still there."""
    shell_known: bool = False
    threads: bool = False
    children: bool = False
    closed: bool = False


@dataclass(slots=True)
class Family:
    """What the sandboxes of a scenario share."""

    number: int
    limits: Limits
    enforced: bool
    doomed: bool
    boxes: list[Box] = field(default_factory=list)
    left: int = 0
    """The most processes that may be left in sessions."""
    suspect: bool = False
    """Memory may have run out once, which can end any process."""
    lost: bool = False
    """We have killed the process that it lives in."""
    user: int = -1
    namespace: int = 0
    log: list[str] = field(default_factory=list)

    def processes(self) -> Sequence[int]:
        """Processes that can be its own: those of its user, which is unique if we are root."""
        return [pid for pid in _pids() if _user(pid) == (self.user if self.user > 0 else os.geteuid())]

    def first_process(self) -> int:
        """Process 1 of its first sandbox, found by its children, since it hides its namespaces. 0 if there are none."""
        members = [pid for pid in self.processes() if _namespace(pid) == self.namespace]
        found = [pid for pid in members if _number_inside(pid) == 1]
        return next(iter(found or [int(_status(pid, "PPid")) for pid in members]), 0)


class Drawn(NamedTuple):
    """A program to execute, and its possible results."""

    program: Program
    judge: Judge
    limits: Limits | None
    timeout: float | None
    stdin: bytes


class Fuzz:
    """Plays scenarios by number until it has played enough."""

    def __init__(self, seed: str, executions: int, seconds: float, numbers: Iterable[int]) -> None:
        self.seed = seed
        self.executions = 0
        self.scenarios = 0
        self.counts: collections.Counter[str] = collections.Counter()
        self.problems: list[str] = []
        self.slowest = 0.0
        """The longest time by which a call exceeded its limit."""
        self.early_bytes = 0
        """The size of this process a quarter of the way."""
        self._wanted = executions, seconds
        self._began = time.monotonic()
        doomed, usual = itertools.tee(numbers)
        self._numbers = {
            True: (number for number in doomed if number % DOOMED_EVERY == 0),
            False: (number for number in usual if number % DOOMED_EVERY != 0),
        }

    @property
    def progress(self) -> float:
        """1 when both the executions and the seconds are reached."""
        executions, seconds = self._wanted
        return min(self.executions / max(executions, 1), (time.monotonic() - self._began) / max(seconds, 0.001))

    # ---- Scenarios

    async def play(self, backend: NativeBackend, *, doomed: bool) -> None:
        """Play one scenario after the other."""
        enforced = backend.report().level == "L3"
        for number in self._numbers[doomed]:
            if self.progress >= 1 or len(self.problems) >= PROBLEMS_MOST:
                return
            if self.progress >= 0.25 and not self.early_bytes:
                self.early_bytes = resident()
            random = Random(f"{self.seed}/{number}")
            family = Family(number, draw_limits(random, enforced=enforced), enforced, doomed)
            try:
                await self._scenario(backend, family, random)
            except Exception as error:  # any exception: that is what we are looking for
                if not (doomed and isinstance(error, SandboxError)):
                    self._note(family, error)
            self.scenarios += 1

    def _note(self, family: Family, error: BaseException) -> None:
        text = "".join(traceback.format_exception(error))
        log = "\n".join(family.log[-12:])
        self.problems.append(
            f"seed {self.seed}, scenario {family.number}{' (doomed)' if family.doomed else ''}, {family.limits}\n"
            f"{log}\n{text}"
        )

    async def _scenario(self, backend: NativeBackend, family: Family, random: Random) -> None:
        limits = None if family.limits == Limits() else family.limits
        if random.random() < 0.1:
            await self._open_in_vain(backend, limits, random)
        while random.random() < 0.3:
            await self._execute_once(backend, family, Random(random.random()))
        sandbox = await self.within(backend.open(limits), 0.0)
        family.boxes.append(Box(sandbox, random.randrange(10**6)))
        try:
            await self._settle(family)
            for action in range(random.randrange(4, 13)):
                family.log.append(f"-- action {action}")
                await self._act(family, Random(random.random()))
                if family.lost or all(box.closed for box in family.boxes):
                    break
        finally:
            random.shuffle(family.boxes)
            for box in family.boxes:
                await self.within(box.sandbox.close(), 0.0)
        await self._check_gone(family)

    async def _open_in_vain(self, backend: NativeBackend, limits: Limits | None, random: Random) -> None:
        """Request a sandbox and cancel the request."""
        opening = asyncio.ensure_future(backend.open(limits))
        await asyncio.sleep(random.uniform(0, 0.008))
        opening.cancel()
        try:
            sandbox = await opening
        except asyncio.CancelledError:
            self.counts["opened in vain"] += 1
        else:
            await sandbox.close()

    async def _execute_once(self, backend: NativeBackend, family: Family, random: Random) -> None:
        """Run a program in its own interpreter. That is process 1, which no signal of its own ends."""
        drawn = self._draw(family, random, "once")
        while drawn.program.ends_by_signal:
            drawn = self._draw(family, random, "once")
        self.executions += 1
        family.log.append(f"once timeout={drawn.timeout} {drawn.judge}\n{drawn.program}")
        interpreter = await self.within(backend.open_interpreter(family.limits), 0.0)
        try:
            began = time.monotonic()
            source = drawn.program.source(mark=f"fuzz-{os.getpid()}-{self.executions}")
            work = interpreter.exec(source, timeout=drawn.timeout)
            came = await self.within(work, drawn.judge.limits.wall_seconds)
            seconds = time.monotonic() - began
            family.log.append(f"{_short(came)} after {seconds:.3f} s")
            self.counts[f"once: {came.killed_by or 'ended'}"] += 1
            drawn.judge.executed(came, seconds)
        finally:
            await self.within(interpreter.close(), 0.0)

    async def _settle(self, family: Family) -> None:
        """Find out how the host identifies the family."""
        box = family.boxes[0]
        code = "import os; os.stat('/proc/self/ns/pid').st_ino, int(open('/proc/self/uid_map').read().split()[1])"
        told = await self.within(box.sandbox.exec(code), family.limits.wall_seconds)
        if told.killed_by != "wall":
            family.namespace, user = json.loads(f"[{(told.value or '')[1:-1]}]")
            family.user = user if os.geteuid() == 0 else -1
        await self._plant(family, box)

    async def _check_gone(self, family: Family) -> None:
        def left() -> list[str]:
            if family.user > 0:
                return [f"process {pid} of its user" for pid in family.processes()]
            return [f"process {pid} of its namespace" for pid in _pids() if _namespace(pid) == family.namespace]

        await self._until_nothing(left)

    async def _until_nothing(self, left: Callable[[], Sequence[str]]) -> None:
        deadline = time.monotonic() + GONE_SECONDS
        while found := left():
            if time.monotonic() > deadline:
                raise Untrue(f"left behind: {found}")
            await asyncio.sleep(0.02)

    # ---- Events

    async def _act(self, family: Family, random: Random) -> None:
        box = random.choice([box for box in family.boxes if not box.closed])
        match random.choices(list(ACTIONS), list(ACTIONS.values()))[0]:
            case "call":
                await self._call(family, box, random).done()
            case "together":
                await self._together(family, box, random)
            case "queue":
                await self._queue(family, box, random)
            case "give up":
                await self._give_up(family, box, random)
            case "fork":
                await self._fork(family, box, random)
            case "files":
                await self._files(box, random)
            case "close":
                await self._close(family, box, random)
            case "kill":
                await self._kill(family, box, random)
        if family.suspect and not family.lost:
            for each in family.boxes:
                if not each.closed:
                    await self.find_out(family, each)
                    await self.find_out_shell(family, each)
            family.suspect = False  # what ended then has been noticed by now

    async def _together(self, family: Family, box: Box, random: Random) -> None:
        """Run several in one sandbox. The memory of one may end another."""
        calls = [self._call(family, box, random) for _ in range(random.randrange(2, 5))]
        family.left += sum(call.judge.story.processes + 2 for call in calls)
        family.suspect = sum(call.judge.story.touches for call in calls) > family.limits.memory_bytes / 2
        for call in calls:
            call.judge = dataclasses.replace(call.judge, left=family.left, suspect=family.suspect)
            call.alone = False
            call.waits = sum(other.judge.limits.wall_seconds + 1 for other in calls)
        box.python_known = box.python_known and all(call.way != "exec" for call in calls)
        box.shell_known = box.shell_known and all(call.way != "shell" for call in calls)
        await _all(call.done() for call in calls)
        await self.find_out(family, box)

    async def _queue(self, family: Family, box: Box, random: Random) -> None:
        """Cancel what waits for its turn: it never begins."""
        ask, first, second, test = random.choice((
            (box.sandbox.exec, "import time; time.sleep(0.2)", "queued = True", "assert 'queued' not in globals()"),
            (box.sandbox.shell, "sleep 0.2", "queued=yes", '[ -z "$queued" ]'),
        ))  # fmt: skip
        self.executions += 3
        began = asyncio.ensure_future(ask(first))
        await asyncio.sleep(0)
        waiting = asyncio.ensure_future(ask(second))
        await asyncio.sleep(random.uniform(0, 0.05))
        waiting.cancel()
        with contextlib.suppress(SandboxError):  # a full sandbox may have no interpreter
            await self.within(_all([began]), family.limits.wall_seconds)
            came = await self.within(ask(test), family.limits.wall_seconds)
            failed = came.error is not None if isinstance(came, Executed) else came.exit_code == 1
            if failed and came.killed_by is None and not family.suspect:
                raise Untrue(f"what was given up before its turn was done all the same: {came}")
        await asyncio.gather(waiting, return_exceptions=True)
        self.counts["given up in the queue"] += 1

    async def _give_up(self, family: Family, box: Box, random: Random) -> None:
        """Cancel a running call. What it has started ends, and the sandbox goes on."""
        call = self._call(family, box, random)
        task = asyncio.ensure_future(call.done())
        await asyncio.sleep(_delay(random))
        if task.cancel():
            self.counts["given up"] += 1
        try:
            await task
        except asyncio.CancelledError:
            if call.way == "exec":
                box.python_known = False
                box.threads = box.threads or call.judge.story.leaves_threads
                box.children = True
            elif call.way == "shell":
                box.shell_known = False
            family.suspect = call.judge.story.touches > family.limits.memory_bytes / 4
            await self._until_nothing(call.processes_left)
            await self.find_out(family, box)

    async def _fork(self, family: Family, box: Box, random: Random) -> None:
        """Fork it, perhaps while a program runs in it."""
        if len(family.boxes) >= 5:
            return
        running = [self._call(family, box, random)] if random.random() < 0.4 else []
        for call in running:
            call.alone = False
        tasks = [asyncio.ensure_future(call.done()) for call in running]
        await asyncio.sleep(_delay(random) if running else 0)
        count, began = random.randrange(1, 3), time.monotonic()
        forking = asyncio.ensure_future(box.sandbox.fork(count))
        try:
            if random.random() < 0.2:
                await asyncio.sleep(_delay(random) / 4)
                forking.cancel()
            branches = await self.within(forking, family.limits.wall_seconds * (count + 1))
        except asyncio.CancelledError:
            self.counts["forks given up"] += 1
            branches = []
        except CannotFork as error:
            self.counts["cannot fork"] += 1
            late = time.monotonic() - began > family.limits.wall_seconds
            scarce = family.suspect or family.left + 12 > family.limits.processes
            if not (box.threads or box.children or scarce or running or late):
                raise Untrue(f"nothing is in the way, but {error}") from error
            box.python_known = box.python_known and not late
            branches = []
        else:
            self.counts["forks"] += 1
            if len(branches) != count:
                raise Untrue(f"{len(branches)} branches, not {count}")
        finally:
            await _all(tasks)
        family.left += 4 * len(branches)
        new = [Box(branch, box.kept, python_known=box.python_known and not running) for branch in branches]
        family.boxes += new
        if running:
            box.python_known = box.shell_known = False
        for each in [box, *new]:
            await self.find_out(family, each)

    async def _files(self, box: Box, random: Random) -> None:
        path, data = f"d{random.randrange(3)}/f", random.randbytes(random.choice((0, 1, 1000, 300_000)))
        try:
            await self.within(box.sandbox.write(path, data), 0.0)
        except WorkspaceError:
            if len(data) <= box.sandbox.limits.file_bytes and box.sandbox.limits.disk_bytes > 2**26:
                raise
            return
        if await self.within(box.sandbox.read(path), 0.0) != data:
            raise Untrue("a file is read as it was not written")
        (entry,) = await self.within(box.sandbox.list(path.partition("/")[0]), 0.0)
        if (entry.name, entry.kind, entry.size) != ("f", "file", len(data)):
            raise Untrue(f"the file is listed as {entry}")

    async def _close(self, family: Family, box: Box, random: Random) -> None:
        """Close the sandbox while something runs in it."""
        calls = [self._call(family, box, random) for _ in range(random.randrange(3))]
        for call in calls:
            call.alone = False
        tasks = [asyncio.ensure_future(call.done()) for call in calls]
        await asyncio.sleep(_delay(random))
        box.closed = True
        for call in calls:
            call.may_be_lost = True
        await self.within(box.sandbox.close(), 0.0)
        self.counts["closed"] += 1
        async with asyncio.timeout(SLACK_SECONDS):
            await _all(tasks)
        for way in ("run", "exec", "shell"):
            with contextlib.suppress(SandboxLost):
                await getattr(box.sandbox, way)(["true"] if way == "run" else "")
                raise Untrue(f"{way}() in a sandbox that is closed")
        for other in family.boxes:
            if not other.closed:
                await self.find_out(family, other)

    async def _kill(self, family: Family, box: Box, random: Random) -> None:
        """Kill process 1 of the family's first sandbox, and so all of them, while something runs."""
        first = family.first_process() if family.namespace else 0
        if _number_inside(first) != 1:
            return
        calls = [self._call(family, box, random) for _ in range(random.randrange(1, 3))]
        for call in calls:
            call.alone = False
        tasks = [asyncio.ensure_future(call.done()) for call in calls]
        await asyncio.sleep(_delay(random))
        family.lost = True
        for call in calls:
            call.may_be_lost = True
        os.kill(first, signal.SIGKILL)
        self.counts["agents killed"] += 1
        async with asyncio.timeout(SLACK_SECONDS):
            await _all(tasks)
        deadline = time.monotonic() + GONE_SECONDS
        with contextlib.suppress(SandboxLost):
            while time.monotonic() < deadline:  # the kill may take effect later
                await self.within(box.sandbox.exec("1"), 0.0)
            raise Untrue("code runs in a sandbox whose process 1 was killed")

    # ---- Calls

    def _call(self, family: Family, box: Box, random: Random) -> Call:
        way: Way = random.choices(("run", "exec", "shell"), (45, 35, 20))[0]
        return Call(self, family, box, way, *self._draw(family, random, way))

    def _draw(self, family: Family, random: Random, way: Way) -> Drawn:
        stdin = random.randbytes(random.choice((0, 10, 100_000))) if way == "run" else b""
        program = draw_program(random, way, input_size=len(stdin))
        own = draw_run_limits(random, family.limits) if way == "run" and random.random() < 0.5 else None
        timeout = random.choice((None, None, None, 0.05, 0.2)) if random.random() < 0.5 else None
        most = own or family.limits
        alone = program.story(way, most)
        wall = most.wall_seconds if timeout is None else min(timeout, most.wall_seconds)
        if alone.code is None and not alone.surely_exceeds and wall > 0.4:
            timeout = random.choice((0.1, 0.2, 0.4))
        elif timeout is not None:
            timeout = wall
        effective = dataclasses.replace(most, wall_seconds=wall if timeout is None else timeout)
        story = program.story(way, effective)
        return Drawn(program, Judge(story, family.enforced, family.left, family.suspect), own, timeout, stdin)

    async def within(self, work: Awaitable[T], seconds: float) -> T:
        """The answer, unless it takes much longer than so many seconds."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(seconds + SLACK_SECONDS):
                return await work
        except TimeoutError:
            raise Untrue(f"no answer after {time.monotonic() - began:.1f} s") from None
        finally:
            self.slowest = max(self.slowest, time.monotonic() - began - seconds)

    # ---- State

    async def _plant(self, family: Family, box: Box) -> None:
        """Put a value into the interpreter that must be there later."""
        told = await self._ask(family, box, f"kept = {box.kept}")
        box.python_known = told is not None and told.killed_by is None and told.error is None

    async def find_out(self, family: Family, box: Box, *, lost: bool = False) -> None:
        """Check that the value is there, or gone if the result said so."""
        told = await self._ask(family, box, "kept if 'kept' in globals() else 'lost'")
        if told is None:
            box.python_known = False
            return
        if told.error is not None or told.killed_by is not None:
            if box.python_known and not family.suspect and told.killed_by not in ("wall", "cpu"):
                raise Untrue(f"the interpreter cannot be asked: {told}")
        elif box.python_known:
            expected = "'lost'" if lost else str(box.kept)
            if told.value != expected and not (family.suspect and told.value == "'lost'"):
                raise Untrue(f"the interpreter has {told.value}, not {expected}")
        box.python_known = told.value == str(box.kept)
        if not box.python_known:
            await self._plant(family, box)

    async def _ask(self, family: Family, box: Box, code: str) -> Executed | None:
        """None if there is no interpreter, because the sandbox is full."""
        try:
            return await self.within(box.sandbox.exec(code), family.limits.wall_seconds)
        except SandboxLost:
            raise
        except SandboxError:
            if family.left + SANDBOX_PROCESSES <= family.limits.processes:
                raise
            return None

    async def find_out_shell(self, family: Family, box: Box, *, lost: bool = False) -> None:
        """The same for the shell's value."""
        told = await self.within(box.sandbox.shell(f'[ "$kept" = {box.kept} ]'), family.limits.wall_seconds)
        there = told.exit_code == 0 and told.killed_by is None
        if box.shell_known and there == lost and not family.suspect and told.killed_by is None:
            scarce = family.left + SANDBOX_PROCESSES + 1 > family.limits.processes
            if not scarce:
                raise Untrue(f"the shell's variable is {'there' if there else 'gone'}: {told}")
        told = await self.within(box.sandbox.shell(f"kept={box.kept}"), family.limits.wall_seconds)
        box.shell_known = told.exit_code == 0 and told.killed_by is None


@dataclass(slots=True)
class Call:
    """One execution, and the check of its result."""

    fuzz: Fuzz
    family: Family
    box: Box
    way: Way
    program: Program
    judge: Judge
    limits: Limits | None
    timeout: float | None
    stdin: bytes
    mark: str = ""
    may_be_lost: bool = False
    """Its sandbox is being closed or killed."""
    alone: bool = True
    """Nothing else happens in the sandbox at the same time."""
    waits: float = 0.0
    """How long others may delay its turn."""

    async def done(self) -> None:
        self.fuzz.executions += 1
        self.mark = f"fuzz-{os.getpid()}-{self.fuzz.executions}"
        self.family.log.append(f"{self.way} timeout={self.timeout} {self.judge}\n{self.program}")
        began = time.monotonic()
        try:
            came = await self.fuzz.within(self._work(), self.judge.limits.wall_seconds + self.waits)
        except SandboxLost as error:
            if not (self.may_be_lost or self.family.doomed):
                raise Untrue(f"nobody touched it, but {error}") from error
            self.family.log.append("lost")
            self.fuzz.counts["lost"] += 1
            return
        except SandboxError as error:
            if not (self.way == "exec" and self.judge.may_lack_processes):
                raise
            self.family.log.append(str(error))
            self.fuzz.counts["exec: not started"] += 1
            self.box.python_known = False
            return
        seconds = time.monotonic() - began
        self.family.log.append(f"{_short(came)} after {seconds:.3f} s")
        self.fuzz.counts[f"{self.way}: {came.killed_by or 'ended'}"] += 1
        if isinstance(came, Finished):
            self.judge.finished(came, seconds)
        else:
            self.judge.executed(came, seconds)
        await self._after(came)

    def processes_left(self) -> Sequence[str]:
        """Processes of a program that has ended."""
        if self.way != "run":
            return ()
        mark = f"TOOLYARD_FUZZ={self.mark}".encode()
        return [f"process {pid} of {self.mark}" for pid in self.family.processes() if mark in _environment(pid)]

    async def _work(self) -> Executed | Finished:
        sandbox = self.box.sandbox
        if self.way == "run":
            return await sandbox.run(
                self.program.argv(self.mark),
                stdin=self.stdin,
                timeout=self.timeout,
                env={"TOOLYARD_FUZZ": self.mark},
                limits=self.limits,
            )
        if self.way == "exec":
            return await sandbox.exec(self.program.source(mark=self.mark), timeout=self.timeout)
        return await sandbox.shell(self.program.source(mark=self.mark), timeout=self.timeout)

    async def _after(self, came: Executed | Finished) -> None:
        """Record its consequences for the sandbox."""
        family, box, story = self.family, self.box, self.judge.story
        if came.killed_by == "memory" or story.touches > family.limits.memory_bytes / 2:
            family.suspect = True
        if self.way == "run":
            if story.leaves_children or came.killed_by:
                found = self.processes_left()
                if found:
                    raise Untrue(f"it has ended, but not {found}")
        else:
            family.left += story.processes + 1
        if self.way == "exec":
            if came.state_lost and self.alone:  # otherwise another may have used the interpreter since
                box.threads = box.children = False
            elif not came.state_lost:
                box.threads = box.threads or story.leaves_threads
                box.children = box.children or story.leaves_children or came.killed_by is not None
        if not self.alone or self.may_be_lost or box.closed:
            return
        try:
            if self.way == "exec":
                await self.fuzz.find_out(family, box, lost=came.state_lost)
            elif self.way == "shell":
                await self.fuzz.find_out_shell(family, box, lost=came.state_lost)
        except SandboxLost:
            if not (self.may_be_lost or box.closed or family.doomed):
                raise


# ---- The host


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _user(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except (FileNotFoundError, ProcessLookupError):
        return -1


def _namespace(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}/ns/pid").st_ino
    except OSError:  # gone, or not readable
        return -1


def _environment(pid: int) -> bytes:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return file.read()
    except OSError:  # gone, or not readable
        return b""


def _number_inside(pid: int) -> int:
    """Its pid in its own namespace."""
    return int(_status(pid, "NSpid").split()[-1])


def _status(pid: int, name: str) -> str:
    try:
        with open(f"/proc/{pid}/status") as file:
            return next(line.partition(":")[2].strip() for line in file if line.startswith(f"{name}:"))
    except (FileNotFoundError, ProcessLookupError):
        return "0"


def _children(parent: int) -> list[int]:
    return [pid for pid in _pids() if int(_status(pid, "PPid")) == parent]


def _groups(brokers: set[int]) -> list[str]:
    found = []
    for folder, names, _ in os.walk("/sys/fs/cgroup"):
        for name in list(names):
            if name.startswith("toolyard-"):
                names.remove(name)
                if any(f"-{broker}-" in name for broker in brokers):
                    found.append(f"{folder}/{name}")
    return found


def _mounts() -> list[str]:
    """All mounts but those that a container engine makes for other tests."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if "/storage/overlay" not in line]


def _descriptors() -> list[str]:
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the descriptor that lists them
            found.append(f"{fd}: {os.readlink(f'/proc/self/fd/{fd}')}")
    return sorted(found)


def resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# ---- Small things


def _delay(random: Random) -> float:
    """The delay before an event hits a call: often none, and seldom longer than the call."""
    return random.choice((0.0, 0.0, random.uniform(0, 0.003), random.uniform(0, 0.03), random.uniform(0, 0.3)))


def _short(came: Executed | Finished) -> str:
    cut = {name: getattr(came, name)[-100:] for name in ("stdout", "stderr")}
    return str(dataclasses.replace(came, **cut))


async def _all(work: Any) -> None:
    """Wait for all of them to end, and then raise the first one's exception."""
    for done in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(done, BaseException):
            raise done


# ---- All of it


class Neighbour:
    """A session that has nothing to do with the others, in use all the time."""

    def __init__(self, sandbox: NativeSandbox) -> None:
        self._sandbox = sandbox
        self.count = 0

    async def live(self) -> None:
        await self._sandbox.exec("count = 0")
        await self._sandbox.write("count", b"0")
        while True:
            self.count += 1
            told = await self._sandbox.exec("count += 1; count")
            was = int(await self._sandbox.read("count"))
            if told.value != str(self.count) or was != self.count - 1:
                raise Untrue(f"the neighbour has lost count: {told}, {was}, and it should be {self.count}")
            await self._sandbox.write("count", b"%d" % self.count)
            await asyncio.sleep(0.05)


async def wreck(fuzz: Fuzz, spared: int) -> None:
    """Kill templates and brokers, but spare this broker and its descendants."""
    random = Random(f"{fuzz.seed}/wreck")
    while True:
        await asyncio.sleep(random.uniform(0.5, 4.0))
        brokers = [pid for pid in _children(os.getpid()) if pid != spared and _status(pid, "State").split()[0] != "Z"]
        templates = [pid for broker in brokers for pid in _children(broker)]
        which = random.choice(("brokers", "templates", "templates"))
        for pid in (brokers if which == "brokers" else templates)[:1]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                fuzz.counts[f"{which} killed"] += 1


@contextlib.asynccontextmanager
async def meanwhile(work: Awaitable[None]) -> AsyncIterator[asyncio.Future[None]]:
    """Do this until the block ends. The end of the block does not wait for it."""
    task = asyncio.ensure_future(work)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def fuzz_all(fuzz: Fuzz) -> None:
    before, mounts = _descriptors(), _mounts()
    brokers: set[int] = set()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: fuzz.problems.append(f"in the loop: {context}"))
    backend, doomed = NativeBackend(), NativeBackend(ready=1)
    try:
        await backend.start()
        (broker,) = _children(os.getpid())
        brokers.add(broker)
        await doomed.start()
        neighbour = Neighbour(await backend.open())
        async with meanwhile(neighbour.live()) as living, meanwhile(wreck(fuzz, broker)):
            await asyncio.gather(
                *(fuzz.play(backend, doomed=False) for _ in range(AT_ONCE)),
                *(fuzz.play(doomed, doomed=True) for _ in range(DOOMED_AT_ONCE)),
            )
            brokers.update(_children(os.getpid()))
            if living.done():
                living.result()
        async with await doomed.open() as sandbox:
            if (await sandbox.exec("6 * 7")).value != "42":
                raise Untrue("no sandbox after all that was lost")
    finally:
        await backend.close()
        await doomed.close()
    check_left(fuzz, before, mounts, brokers)


def check_left(fuzz: Fuzz, before: Sequence[str], mounts: Sequence[str], brokers: set[int]) -> None:
    """Nothing is left of what the backends had."""
    this = asyncio.current_task()
    grown = resident() - fuzz.early_bytes
    left = {
        "file descriptors": sorted(set(_descriptors()) ^ set(before)),
        "tasks": [str(task) for task in asyncio.all_tasks() if task is not this],
        "processes": [Path(f"/proc/{pid}/status").read_text() for pid in _children(os.getpid())],
        "cgroups": _groups(brokers),
        "mounts": sorted(set(_mounts()) ^ set(mounts)),
        "bytes of memory": [grown] if fuzz.early_bytes and grown > MARGIN_BYTES else [],
    }
    fuzz.counts["bytes grown"] = grown if fuzz.early_bytes else 0
    fuzz.problems += [f"{what} left behind: {found}" for what, found in left.items() if found]


def main() -> None:
    """Fuzz by the command line, and print the results as one JSON object."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", default=str(time.time_ns()))
    parser.add_argument("--executions", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--scenario", type=int)
    parser.add_argument("--times", type=int, default=1)
    options = parser.parse_args()
    numbers = itertools.count() if options.scenario is None else [options.scenario] * options.times
    fuzz = Fuzz(options.seed, options.executions, options.seconds, numbers)
    warnings.simplefilter("error")
    sys.unraisablehook = lambda event: fuzz.problems.append(f"nobody could be told of {event.exc_value!r}: {event}")
    began, threads = time.monotonic(), set(threading.enumerate())
    with asyncio.Runner(loop_factory=Random(options.seed).choice((uvloop.new_event_loop, None))) as runner:
        kind = type(runner.get_loop()).__module__
        try:
            runner.run(fuzz_all(fuzz))
        except Exception:
            fuzz.problems.append(traceback.format_exc())
    if more := set(threading.enumerate()) - threads:
        fuzz.problems.append(f"threads left behind: {more}")
    told = {
        "seed": options.seed,
        "loop": kind,
        "executions": fuzz.executions,
        "scenarios": fuzz.scenarios,
        "seconds": round(time.monotonic() - began, 1),
        "slowest": round(fuzz.slowest, 2),
        "counts": dict(sorted(fuzz.counts.items())),
        "problems": fuzz.problems,
    }
    print(json.dumps(told, indent=2))


if __name__ == "__main__":
    main()
