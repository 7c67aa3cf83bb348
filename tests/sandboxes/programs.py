"""Random programs with known behaviour, and a judge of what a sandbox reports of them.

A program is a list of steps with an end. It can be written in Python and in sh, and tells its `Story`: its result if
nothing stops it. Where limits can stop it, several results may be true, and `judge` knows them. Every choice comes from
one `Random`, so the same seed makes the same programs.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Literal

from toolyard.sandboxes.base import Executed, Finished, Limit, Limits, exit_code_of

Way = Literal["run", "exec", "once", "shell"]
"""As a program, in a session's interpreter, in a lone interpreter, in a session's shell."""
Language = Literal["python", "sh"]

MIB = 2**20
LATE_SECONDS = 2.0
"""How late the server may notice an exceeded limit that it only checks now and then."""
CLOCK_SECONDS = 0.005
"""The error of an event loop's clock."""
SANDBOX_PROCESSES = 7
"""A sandbox's own processes: an agent, an interpreter, a shell, what starts a program, and dying ones."""
OVERHEAD = 6 * MIB
"""Memory that a process may need beside what it holds on purpose."""
STARTING_CPU_SECONDS = 0.3
"""The same for processor time, which a busy machine counts inaccurately."""

REFUSED_FORK, REFUSED_FILE, REFUSED_MEMORY, REFUSED_SIZE = 77, 78, 79, 80
"""Exit codes of a Python program when the kernel refuses a resource."""
NOT_STARTED = 126
CANNOT_FLUSH = 120
"""Python's exit code when it has lost its standard output."""
SMALL_FILE, LAST_WORDS_LOST = 65_536, 120
"""Python's exit code when a file replaces a closed stream and a traceback may not fit."""
SHELL_CANNOT_FORK = (2, 254)
"""The exit codes of dash and bash when they cannot fork."""

_PRELUDE = """
import os, signal, sys, time
if sys.version_info >= (3, 12):  # which warns of forks beside threads
    import warnings
    warnings.simplefilter("ignore", DeprecationWarning)
def say(stream, byte, count):
    data = byte * min(count, 65536)
    while count > 0:
        count -= os.write(stream, data[:count])
def fork():
    try:
        return os.fork()
    except OSError:
        os._exit(77)
def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
def hold(held, size):
    try:
        held.append(b"x" * size)
    except MemoryError:
        os._exit(79)
def store(size):
    try:
        with open("stored", "wb", 0) as file:
            while size > 0:
                size -= file.write(b"s" * min(size, 65536))
    except OSError:
        os._exit(80)
def open_many(count):
    held = []
    try:
        held = [os.open("/dev/null", os.O_RDONLY) for _ in range(count)]
    except OSError:
        os._exit(78)
    for file in held:
        os.close(file)
def daemon(seconds, holds):
    pid = fork()
    if pid == 0:
        os.setsid()
        if fork() == 0:
            if not holds:
                os.closerange(0, 3)
            time.sleep(seconds)
        os._exit(0)
    os.waitpid(pid, 0)
def thread():
    import threading
    try:
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    except (RuntimeError, MemoryError):
        os._exit(77)
def signal_self(number):
    if number not in (9, 19):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    time.sleep(1000)
"""


# ---- What a program does


@dataclass(slots=True)
class Story:
    """The result of a program if no limit ends it, for one way of running it, with its limits."""

    way: Way
    limits: Limits
    language: Language
    stdout: bytearray = field(default_factory=bytearray, repr=False)
    stderr: bytearray = field(default_factory=bytearray, repr=False)
    code: int | None = 0
    """None: it never ends."""
    error: str = ""
    """The uncaught exception, for a session's interpreter."""
    ends_session: bool = False
    """It ends the session's interpreter or shell too."""
    asleep: float = 0.0
    """The least time that it takes."""
    burns: float = 0.0
    """The most processor time that it takes; `surely_burns` is the least."""
    surely_burns: float = 0.0
    holds: int = 0
    """Memory of the first process at its end; `surely_holds` if it cannot do without."""
    surely_holds: int = 0
    touches: int = 0
    """Memory of everything, including files."""
    processes: int = 1
    """The most processes at once, beside the sandbox's own."""
    files: int = 0
    largest: int = 0
    """The largest file that it tries to write."""
    closed: set[int] = field(default_factory=set)
    """Streams that it has closed."""
    severed: bool = False
    """It has tampered with its interpreter's connection to the server, so it may end in any way."""
    leaves_threads: bool = False
    leaves_children: bool = False
    over: bool = False
    """It does not reach the rest."""

    def end(self, code: int | None, *, session: bool) -> None:
        self.code, self.ends_session, self.over = code, session, True

    @property
    def surely_exceeds(self) -> bool:
        """It ends soon, even if it would go on without limits."""
        limits = self.limits
        too_much = max(len(self.stdout), len(self.stderr)) > limits.output_bytes
        too_large = self.surely_holds > limits.memory_bytes and limits.memory_bytes < 100 * MIB
        return too_much or too_large or (self.burns >= 1000 and limits.cpu_seconds is not None)

    def output(self, stream: int) -> bytearray:
        return self.stdout if stream == 1 else self.stderr


class Step:
    """Something that a program does. `python` and `sh` are lines of code, `tell` adds it to a story."""

    def python(self) -> Sequence[str]:
        raise NotImplementedError

    def sh(self) -> str:
        raise NotImplementedError

    def tell(self, story: Story) -> None:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Say(Step):
    stream: int
    byte: str
    count: int

    def python(self) -> Sequence[str]:
        return [f"say({self.stream}, b{self.byte!r}, {self.count})"]

    def sh(self) -> str:
        if self.count <= 4000:
            return f"printf %s {self.byte * self.count} >&{self.stream}" if self.count else ":"
        return f"head -c {self.count} /dev/zero >&{self.stream}"

    def tell(self, story: Story) -> None:
        byte = b"\0" if story.language == "sh" and self.count > 4000 else self.byte.encode()
        story.output(self.stream).extend(byte * self.count)
        if story.language == "sh" and self.count > 4000:
            story.processes = max(story.processes, 2)


@dataclass(frozen=True, slots=True)
class Sleep(Step):
    seconds: float

    def python(self) -> Sequence[str]:
        return [f"time.sleep({self.seconds})"]

    def sh(self) -> str:
        return f"sleep {self.seconds}"

    def tell(self, story: Story) -> None:
        story.asleep += self.seconds
        story.processes = max(story.processes, 2)


@dataclass(frozen=True, slots=True)
class Burn(Step):
    seconds: float

    def python(self) -> Sequence[str]:
        return [f"burn({self.seconds})"]

    def sh(self) -> str:
        return f"timeout {self.seconds} sh -c 'while :; do :; done'"

    def tell(self, story: Story) -> None:
        story.burns += self.seconds
        if story.language == "python":
            story.surely_burns += self.seconds
        else:
            story.processes = max(story.processes, 3)


@dataclass(frozen=True, slots=True)
class Hold(Step):
    """Memory. In sh a child holds it, and a limit may end the child while the program goes on."""

    size: int

    def python(self) -> Sequence[str]:
        return [f"hold(held, {self.size})"]

    def sh(self) -> str:
        return f"{{ head -c {self.size} /dev/zero | tail | wc -c >/dev/null; }} 2>/dev/null"

    def tell(self, story: Story) -> None:
        story.touches += self.size
        if story.language == "python":
            story.holds += self.size
            story.surely_holds += self.size
        else:
            story.holds = max(story.holds, self.size)
            story.processes = max(story.processes, 4)


@dataclass(frozen=True, slots=True)
class Store(Step):
    """A file. If it is too large, Python gets an error, a session's interpreter ends, and in sh a child ends."""

    size: int

    def python(self) -> Sequence[str]:
        return [f"store({self.size})"]

    def sh(self) -> str:
        return f"{{ head -c {self.size} /dev/zero >stored; }} 2>/dev/null"

    def tell(self, story: Story) -> None:
        story.largest = max(story.largest, self.size)
        story.touches += min(self.size, story.limits.file_bytes)
        if story.language == "sh":
            story.processes = max(story.processes, 2)
        elif self.size > story.limits.file_bytes:
            story.end(-signal.SIGXFSZ if story.way == "exec" else REFUSED_SIZE, session=True)
        elif self.size > story.limits.disk_bytes:
            story.end(REFUSED_SIZE, session=True)


@dataclass(frozen=True, slots=True)
class OpenMany(Step):
    count: int

    def python(self) -> Sequence[str]:
        return [f"open_many({self.count})"]

    def sh(self) -> str:
        return ":"

    def tell(self, story: Story) -> None:
        if story.language == "python":
            story.files = max(story.files, self.count)
            if self.count >= story.limits.open_files:
                story.end(REFUSED_FILE, session=True)


@dataclass(frozen=True, slots=True)
class Child(Step):
    """A process that does some steps while this one waits for it."""

    steps: Sequence[Step]

    def python(self) -> Sequence[str]:
        inside = [line for step in self.steps for line in step.python()]
        return [
            "pid = fork()",
            "if pid == 0:",
            *(f"    {line}" for line in [*inside, "os._exit(0)"]),
            "os.waitpid(pid, 0)",
        ]

    def sh(self) -> str:
        return f"( {'; '.join(step.sh() for step in self.steps)} )"

    def tell(self, story: Story) -> None:
        inside = replace(story, stdout=story.stdout, stderr=story.stderr, holds=0, surely_holds=0, processes=1)
        for step in self.steps:
            if not inside.over:
                step.tell(inside)
        story.asleep, story.burns, story.surely_burns = inside.asleep, inside.burns, inside.surely_burns
        story.touches, story.files, story.largest = inside.touches, inside.files, inside.largest
        story.processes = max(story.processes, inside.processes + 1)


@dataclass(frozen=True, slots=True)
class Leave(Step):
    """A child that its parent does not wait for."""

    seconds: float

    def python(self) -> Sequence[str]:
        return ["if fork() == 0:", f"    time.sleep({self.seconds})", "    os._exit(0)"]

    def sh(self) -> str:
        return f"sleep {self.seconds} &"

    def tell(self, story: Story) -> None:
        story.processes += 2
        story.leaves_children = True


@dataclass(frozen=True, slots=True)
class Daemon(Step):
    """A process without a parent, in its own session, with or without our output."""

    seconds: float
    holds: bool

    def python(self) -> Sequence[str]:
        return [f"daemon({self.seconds}, {self.holds})"]

    def sh(self) -> str:
        return f"(setsid sleep {self.seconds} {'' if self.holds else '<&- >&- 2>&-'} &)"

    def tell(self, story: Story) -> None:
        story.processes += 3
        story.leaves_children = True


@dataclass(frozen=True, slots=True)
class Threads(Step):
    count: int

    def python(self) -> Sequence[str]:
        return ["thread()"] * self.count

    def sh(self) -> str:
        return ":"

    def tell(self, story: Story) -> None:
        if story.language == "python":
            story.processes += self.count
            story.leaves_threads = True


@dataclass(frozen=True, slots=True)
class Read(Step):
    """Read standard input to its end, and report its length."""

    count: int

    def python(self) -> Sequence[str]:
        return ["os.write(1, b'%d\\n' % len(sys.stdin.buffer.read()))"]

    def sh(self) -> str:
        return "wc -c"

    def tell(self, story: Story) -> None:
        story.stdout.extend(b"%d\n" % (self.count if story.way == "run" else 0))
        if story.language == "sh":
            story.processes = max(story.processes, 2)


@dataclass(frozen=True, slots=True)
class Close(Step):
    stream: int

    def python(self) -> Sequence[str]:
        return [f"os.close({self.stream})"]

    def sh(self) -> str:
        return f"exec {self.stream}>&-"

    def tell(self, story: Story) -> None:
        story.closed.add(self.stream)


@dataclass(frozen=True, slots=True)
class Meddle(Step):
    """Tamper with the socket to the server, which only a session's interpreter has."""

    what: Literal["close", "garble", "answer"]

    def python(self) -> Sequence[str]:
        action = {
            "close": "os.close(3)",
            "garble": "os.write(3, b'garbage')",
            "answer": """os.write(3, b'{"id": 1, "size": 0}')""",
        }[self.what]
        return ["try:", f"    {action}", "except OSError:", "    pass"]

    def sh(self) -> str:
        return ":"

    def tell(self, story: Story) -> None:
        if story.way in ("exec", "once") and story.language == "python":
            story.severed = True


@dataclass(frozen=True, slots=True)
class Ignore(Step):
    """Ignore signals."""

    def python(self) -> Sequence[str]:
        return [f"signal.signal({number}, signal.SIG_IGN)" for number in (2, 12)]

    def sh(self) -> str:
        return "trap '' 2 12"

    def tell(self, story: Story) -> None:
        pass


# ---- How a program ends


@dataclass(frozen=True, slots=True)
class Fall(Step):
    """End after the last line."""

    def python(self) -> Sequence[str]:
        return []

    def sh(self) -> str:
        return "true"

    def tell(self, story: Story) -> None:
        story.end(0, session=False)


@dataclass(frozen=True, slots=True)
class Exit(Step):
    status: int
    hard: bool
    """Immediately. Otherwise by an exception, or by a command's status, after which a session goes on."""

    def python(self) -> Sequence[str]:
        return [f"os._exit({self.status})" if self.hard else f"sys.exit({self.status})"]

    def sh(self) -> str:
        return f"exit {self.status}" if self.hard else f"(exit {self.status})"

    def tell(self, story: Story) -> None:
        if not self.hard and story.way in ("exec", "once") and story.language == "python":
            story.error = "SystemExit"
        story.end(self.status, session=self.hard)


@dataclass(frozen=True, slots=True)
class Raise(Step):
    def python(self) -> Sequence[str]:
        return ["sys.tracebacklimit = 0", "raise ValueError('no')"]

    def sh(self) -> str:
        return "(exit 1)"

    def tell(self, story: Story) -> None:
        if story.language == "python" and story.way in ("exec", "once"):
            story.error = "ValueError"
        elif story.language == "python" and 2 not in story.closed:
            story.stderr.extend(b"ValueError: no\n")
        story.end(1, session=False)


@dataclass(frozen=True, slots=True)
class Signal(Step):
    number: int

    def python(self) -> Sequence[str]:
        return [f"signal_self({self.number})"]

    def sh(self) -> str:
        return f"kill -{self.number} $$; sleep 1000"

    def tell(self, story: Story) -> None:
        story.end(-self.number, session=True)


@dataclass(frozen=True, slots=True)
class Endless(Step):
    """Go on until a limit ends it."""

    what: Literal["hang", "stop", "spin", "flood", "hoard", "spin_all"]

    def python(self) -> Sequence[str]:
        return {
            "hang": ["time.sleep(1000)"],
            "stop": ["signal_self(19)"],
            "spin": ["while True:", "    pass"],
            "spin_all": ["fork(), fork()", "while True:", "    pass"],
            "flood": ["while True:", "    say(1, b'~', 5000)"],
            "hoard": ["while True:", "    hold(held, 4000000)"],
        }[self.what]

    def sh(self) -> str:
        return {
            "hang": "sleep 1000",
            "stop": "kill -19 $$; sleep 1000",
            "spin": "while :; do :; done",
            "spin_all": "while :; do :; done & while :; do :; done",
            "flood": "exec yes ''",
            "hoard": "exec tail /dev/zero",
        }[self.what]

    def tell(self, story: Story) -> None:
        if self.what == "flood":
            byte = b"~" if story.language == "python" else b"\n"
            story.stdout.extend(byte * (story.limits.output_bytes + 1))
            story.burns += 1000
        elif self.what in ("spin", "spin_all"):
            story.burns += 1000
            story.processes += 3 if self.what == "spin_all" else 0
        elif self.what == "hoard":
            story.holds = story.surely_holds = story.touches = 2**62
        story.end(None, session=True)


# ---- Programs


@dataclass(frozen=True, slots=True)
class Program:
    """Steps in one language, and perhaps the rest of them, by execve(), in the other."""

    language: Language
    steps: Sequence[Step]
    rest: Program | None = None
    padding: int = 0
    """So many bytes that do nothing come first."""

    def source(self, *, mark: str = "") -> str:
        return f"{'#' * self.padding}\n{self._python(mark) if self.language == 'python' else self._sh(mark)}"

    def argv(self, mark: str) -> Sequence[str]:
        if self.language == "python":
            return ["python3", "-I", "-S", "-c", self.source(mark=mark)]
        return ["sh", "-c", self.source(mark=mark)]

    @property
    def ends_by_signal(self) -> bool:
        """A signal that it sends to itself."""
        if self.rest is not None:
            return self.rest.ends_by_signal
        return isinstance(self.steps[-1], Signal) or self.steps[-1] == Endless("stop")

    def story(self, way: Way, limits: Limits) -> Story:
        story = Story(way, limits, self.language)
        part: Program | None = self
        replaced = False
        while part is not None:
            story.language = part.language
            for step in part.steps:
                if not story.over:
                    step.tell(story)
            part = part.rest
            if part is not None and not story.over:
                story.holds = story.surely_holds = 0
                replaced = True
        story.ends_session = story.ends_session or replaced
        return story

    def _python(self, mark: str) -> str:
        lines = [line for step in self.steps for line in step.python()]
        if self.rest is not None:
            argv = list(self.rest.argv(mark))
            lines.append(f"os.execvp({argv[0]!r}, {argv!r})")
        body = "\n".join(f"    {line}" for line in lines)
        return f"{_PRELUDE}\ndef main():  # {mark}\n    held = []\n{body}\nmain()\n'done'\n"

    def _sh(self, mark: str) -> str:
        lines = [f": {mark}", *(step.sh() for step in self.steps)]
        if self.rest is not None:
            quoted = " ".join("'" + part.replace("'", "'\\''") + "'" for part in self.rest.argv(mark))
            lines.append(f"exec {quoted}")
        return "\n".join(lines)


def draw_program(random: Random, way: Way, *, input_size: int = 0) -> Program:
    language: Language = {"run": random.choice(("python", "sh", "sh")), "shell": "sh"}.get(way, "python")
    steps = [_draw_step(random, input_size) for _ in range(random.randrange(5))]
    if way != "run":  # what it leaves behind stays as long as the session
        steps = [step for step in steps if not isinstance(step, Threads) or random.random() < 0.3]
    reads = [step for step in steps if isinstance(step, Read)]
    steps = [step for step in steps if not isinstance(step, Read) or step is reads[0]]
    closed: set[int] = set()
    steps = list(_without_closed(steps, closed))
    end = _draw_end(random)
    if end == Endless("flood") and 1 in closed:
        end = Endless("hang")
    if random.random() < 0.15:
        at = random.randrange(len(steps) + 1)
        other: Language = "sh" if language == "python" else "python"
        rest = Program(other, [*steps[at:], end])
        return Program(language, steps[:at], rest)
    padding = random.choice((3000, 70_000, 100_000 if way == "run" else 500_000)) if random.random() < 0.05 else 0
    return Program(language, [*steps, end], padding=padding)


def _without_closed(steps: Sequence[Step], closed: set[int]) -> Iterator[Step]:
    """Drop what would write to a closed stream, or close it again."""
    for step in steps:
        if isinstance(step, Child):
            yield Child(list(_without_closed(step.steps, closed)) or [Sleep(0.001)])
        elif isinstance(step, Close):
            if step.stream not in closed:
                closed.add(step.stream)
                yield step
        elif not (isinstance(step, Say) and step.stream in closed) and not (isinstance(step, Read) and 1 in closed):
            yield step


_STEPS = {
    **{"say": 30, "sleep": 8, "burn": 5, "hold": 6, "store": 8, "open": 4, "child": 10, "leave": 4, "daemon": 8},
    **{"threads": 3, "read": 4, "ignore": 3, "close": 3, "meddle": 1},
}
"""How often to draw each step."""


def _draw_step(random: Random, input_size: int) -> Step:
    match random.choices(list(_STEPS), list(_STEPS.values()))[0]:
        case "sleep":
            return Sleep(random.choice((0.001, 0.01, 0.05, 0.2)))
        case "burn":
            return Burn(random.choice((0.01, 0.05, 0.1)))
        case "hold":
            return Hold(random.choice((1, 8, 30, 60, 120)) * MIB)
        case "store":
            return Store(random.choice((0, 900, 1100, 70_000, 2 * MIB, 8 * MIB)))
        case "open":
            return OpenMany(random.choice((1, 10, 100, 300)))
        case "child":
            return Child([_draw_childs_step(random) for _ in range(random.randrange(3))] or [Sleep(0.001)])
        case "leave":
            return Leave(random.choice((0.01, 0.2, 1000)))
        case "daemon":
            return Daemon(random.choice((0.01, 0.2, 1000)), random.random() < 0.5)
        case "threads":
            return Threads(random.randrange(1, 5))
        case "read":
            return Read(input_size)
        case "ignore":
            return Ignore()
        case "close":
            return Close(random.choice((1, 2)))
        case "meddle":
            return Meddle(random.choice(("close", "garble", "answer")))
        case _:
            return _draw_say(random)


def _draw_childs_step(random: Random) -> Step:
    kind = random.choice(("say", "say", "sleep", "burn", "daemon"))
    if kind == "sleep":
        return Sleep(random.choice((0.001, 0.01, 0.1)))
    if kind == "burn":
        return Burn(random.choice((0.01, 0.03)))
    if kind == "daemon":
        return Daemon(random.choice((0.01, 1000)), random.random() < 0.5)
    return _draw_say(random)


def _draw_say(random: Random) -> Say:
    count = random.choice((0, 1, 2, 99, 100, 101, 4000, 4096, 4097, 65_536, 65_537, 200_000))
    return Say(random.choice((1, 1, 2)), random.choice("abcdefgh"), count)


def _draw_end(random: Random) -> Step:
    kind = random.choices(("fall", "exit", "raise", "signal", "endless"), (37, 26, 10, 12, 15))[0]
    match kind:
        case "exit":
            return Exit(random.choice((0, 1, 2, 3, 42, 126, 127, 130, 137, 255)), random.random() < 0.5)
        case "raise":
            return Raise()
        case "signal":
            return Signal(random.choice((1, 6, 9, 10, 11, 13, 14, 15, 24, 25, 31)))
        case "endless":
            weights = (20, 12, 15, 20, 20, 5)
            return Endless(random.choices(("hang", "stop", "spin", "flood", "hoard", "spin_all"), weights)[0])
        case _:
            return Fall()


def draw_limits(random: Random, *, enforced: bool) -> Limits:
    """Limits of a sandbox. Half of them are the default ones, with spare sandboxes."""
    if random.random() < 0.5:
        return Limits()
    return Limits(
        wall_seconds=random.choice((0.4, 1.0, 3.0, 10.0)),
        cpu_seconds=random.choice((None, None, 0.1, 0.3)),
        memory_bytes=random.choice((48, 64, 96, 512) if enforced else (256, 512)) * MIB,
        processes=random.choice((6, 8, 12, 64, 64)),
        open_files=random.choice((96, 256)),
        file_bytes=random.choice((1000, 65_536, MIB, 64 * MIB)),
        disk_bytes=random.choice((4 * MIB, 256 * MIB)),
        output_bytes=random.choice((1, 100, 4096, 65_536, 65_536)),
    )


def draw_run_limits(random: Random, limits: Limits) -> Limits:
    """Limits of one program in such a sandbox, within the sandbox's."""
    return replace(
        limits,
        wall_seconds=min(limits.wall_seconds, random.choice((0.05, 0.3, 1.0, 10.0))),
        cpu_seconds=random.choice((limits.cpu_seconds, limits.cpu_seconds or 0.2)),
        open_files=min(limits.open_files, random.choice((32, 64, 256))),
        file_bytes=min(limits.file_bytes, random.choice((1000, 65_536, 64 * MIB))),
        output_bytes=min(limits.output_bytes, random.choice((1, 100, 65_536))),
    )


# ---- The judge


class Untrue(AssertionError):
    """A sandbox reported something impossible."""


@dataclass(frozen=True, slots=True)
class Judge:
    """The possible results of one program, run in this way with these limits."""

    story: Story
    enforced: bool
    """Memory is limited for the sandbox as a whole."""
    left: int = 0
    """Processes that earlier programs may have left in the session, and that others run now."""
    suspect: bool = False
    """The kernel may have killed something in the sandbox for want of memory, or may do so for another program now."""

    @property
    def limits(self) -> Limits:
        return self.story.limits

    def finished(self, came: Finished, seconds: float) -> None:
        """Raises `Untrue`. `seconds` is how long the answer took."""
        code = -came.signal if came.signal is not None else came.exit_code
        if came.exit_code != exit_code_of(code, came.killed_by):
            raise Untrue(f"exit code {came.exit_code}, of one that ended with {code} for {came.killed_by}")
        self._check_limit(came, code, seconds)
        natural = came.killed_by is None and code == self.story.code
        if came.exit_code != NOT_STARTED or not came.stderr.startswith(b"toolyard:"):
            told = b"" if self.story.way == "shell" and came.killed_by else came.stderr  # bash reports killed programs
            self._check_output(came.stdout, told, whole=natural, killed=came.killed_by is not None)
        codes = self._codes(came.killed_by)
        if code not in codes and not (self.story.way == "shell" and came.killed_by):
            raise Untrue(f"exit code {code} is not one of {sorted(self._codes(came.killed_by))}")
        if self.story.way != "shell" and came.state_lost:
            raise Untrue("a program has no state to lose")
        if self.story.way == "shell" and natural and came.state_lost != self.story.ends_session and not self._scarce:
            raise Untrue(f"state_lost is {came.state_lost}")
        self._check_usage(came, seconds, natural=natural)

    def executed(self, came: Executed, seconds: float) -> None:
        """The same for a piece of code."""
        if self.story.severed:
            if not came.state_lost and came.killed_by is None and came.value != "'done'" and came.error is None:
                raise Untrue("it has come to no end")
            return
        code = interpreters_end(came)
        self._check_limit(came, code, seconds)
        if came.killed_by is None and code is not None:
            self._check_interpreters_end(came, code)
        elif came.killed_by is None:
            self._check_value(came)
        natural = came.killed_by in (None, "file_size") and code in (None, self.story.code)
        told = "" if self.story.language == "sh" and not natural else came.stderr  # so does dash
        self._check_output(came.stdout.encode(), told.encode(), whole=natural, killed=came.killed_by is not None)
        self._check_usage(came, seconds, natural=False)

    # The single checks.

    def _check_limit(self, came: Finished | Executed, code: int | None, seconds: float) -> None:
        """The named limit was exceeded; if none is named, none was."""
        story, limits = self.story, self.limits
        match came.killed_by:
            case None:
                if code == story.code or code not in self._codes(None):  # otherwise the kernel refused it something
                    self._check_none_exceeded()
            case "wall":
                if seconds < limits.wall_seconds:
                    raise Untrue(f"it was given {seconds} s of the {limits.wall_seconds} s that it had")
            case "output":
                if not self._over_output and not self._scarce:  # otherwise it may have printed long errors
                    raise Untrue("it does not write so much")
            case "cpu":
                most = story.burns + STARTING_CPU_SECONDS * (story.processes + 1)
                if limits.cpu_seconds is None or most < limits.cpu_seconds:
                    raise Untrue(f"it takes at most {most} s of processor time, and has {limits.cpu_seconds}")
            case "memory":
                if not self._may_lack_memory:
                    raise Untrue(f"it touches {story.touches} bytes of memory")
            case "file_size":
                if story.largest <= limits.file_bytes and story.code != -signal.SIGXFSZ:
                    raise Untrue(f"its largest file has {story.largest} bytes")

    def _check_none_exceeded(self) -> None:
        story, limits = self.story, self.limits
        if story.asleep > limits.wall_seconds + LATE_SECONDS:
            raise Untrue(f"it sleeps for {story.asleep} s and had {limits.wall_seconds}")
        if self._over_output and not self._scarce:
            raise Untrue("it writes more than it may, and that is not said")
        if limits.cpu_seconds is not None and story.surely_burns > limits.cpu_seconds + LATE_SECONDS:
            raise Untrue(f"it takes {story.surely_burns} s of processor time and had {limits.cpu_seconds}")
        if story.surely_holds > limits.memory_bytes:
            raise Untrue("it holds more memory than it may")
        if story.code is None:
            raise Untrue("it never ends by itself")

    def _check_interpreters_end(self, came: Executed, code: int) -> None:
        if not came.state_lost:
            raise Untrue("the interpreter ended, and its state is not lost")
        if code not in self._codes(None) or (code == self.story.code and not self.story.ends_session):
            raise Untrue(f"the interpreter ended with {code}, not with one of {sorted(self._codes(None))}")

    def _check_value(self, came: Executed) -> None:
        if came.state_lost:
            raise Untrue("the state is lost, and it is not said why")
        if self.story.ends_session:
            raise Untrue(f"the interpreter was to end with {self.story.code}")
        raised = "" if came.error is None else came.error.name
        if raised != self.story.error or came.value != (None if self.story.error else "'done'"):
            raise Untrue(f"value {came.value!r} and error {raised!r}, which was to be {self.story.error!r}")

    def _check_output(self, stdout: bytes, stderr: bytes, *, whole: bool, killed: bool) -> None:
        for name, was, truth in (("stdout", stdout, self.story.stdout), ("stderr", stderr, self.story.stderr)):
            if len(was) > self.limits.output_bytes:
                raise Untrue(f"{name} has {len(was)} bytes")
            if self._scarce:
                continue  # a child may be missing, or report an error
            if whole and was != truth:
                raise Untrue(
                    f"{name} has {len(was)} bytes {was[-80:]!r}, not {len(truth)} bytes {bytes(truth[-80:])!r}"
                )
            maimed = killed and self.story.way != "run" and self.story.processes > 1  # its children were killed first
            if not truth.startswith(was) and not maimed:
                raise Untrue(f"{name} is not how its true output begins: {was[-80:]!r}")

    def _check_usage(self, came: Finished | Executed, seconds: float, *, natural: bool) -> None:
        usage = came.usage
        if not 0 <= usage.wall_seconds <= seconds + CLOCK_SECONDS or usage.cpu_seconds < 0 or usage.memory_bytes < 0:
            raise Untrue(f"{usage} in {seconds} s")
        if natural and not self._scarce and usage.wall_seconds < self.story.asleep - 0.02:
            raise Untrue(f"{usage}, and it slept for {self.story.asleep} s")
        if natural and self.story.way == "run" and usage.cpu_seconds < self.story.surely_burns * 0.9:
            raise Untrue(f"{usage}, and it burned {self.story.surely_burns} s")

    def _codes(self, killed_by: Limit | None) -> set[int]:
        """The possible exit codes."""
        codes = set() if self.story.code is None else {self.story.code}
        if killed_by in ("wall", "output", "cpu", "memory"):
            codes |= {-signal.SIGKILL, -signal.SIGXCPU, exit_code_of(0, killed_by)}
        if self.may_lack_processes:
            codes |= {REFUSED_FORK, NOT_STARTED, *SHELL_CANNOT_FORK}
        if self.story.closed:
            codes.add(CANNOT_FLUSH)
        if self.story.files + 40 > self.limits.open_files:
            codes |= {REFUSED_FILE, NOT_STARTED}
        if self._may_lack_memory:
            codes |= {REFUSED_MEMORY, 1, 128 + signal.SIGKILL}
            if not self.enforced:
                codes |= {REFUSED_FORK, *SHELL_CANNOT_FORK, -signal.SIGSEGV, -signal.SIGABRT}
        if self.suspect:
            codes |= {-signal.SIGKILL, 128 + signal.SIGKILL}
        if self.story.code and self.limits.file_bytes <= SMALL_FILE:
            codes.add(LAST_WORDS_LOST)
        return codes

    @property
    def _over_output(self) -> bool:
        return any(len(output) > self.limits.output_bytes for output in (self.story.stdout, self.story.stderr))

    @property
    def _scarce(self) -> bool:
        """The kernel may refuse a part of it something while the rest goes on."""
        return self.may_lack_processes or self._may_lack_memory

    @property
    def may_lack_processes(self) -> bool:
        """Counting what earlier programs have left, and what others run now."""
        return self.story.processes + self.left + SANDBOX_PROCESSES > self.limits.processes

    @property
    def _may_lack_memory(self) -> bool:
        processes = self.story.processes + self.left + SANDBOX_PROCESSES
        return self.suspect or self.story.touches + OVERHEAD * processes > self.limits.memory_bytes


def interpreters_end(came: Executed) -> int | None:
    """The exit code of the interpreter, if it ended."""
    if came.error is None or came.error.name != "InterpreterEnded":
        return None
    how = came.error.message.rpartition(" ")[2]
    return int(how) if how.isdigit() else -signal.Signals[how]
