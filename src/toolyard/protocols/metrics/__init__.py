"""The server's metrics, as Prometheus reads them: `GET /metrics`. Operators use it, not agents, so it is always served.

So is `/health`, if no protocol has one of its own.
"""

from __future__ import annotations

import logging
import os
import platform
import resource
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from toolyard.asgi import PASSED, HttpOptions, Request, wrong_method
from toolyard.placement.base import SessionSpec
from toolyard.protocols.metrics.merging import merged
from toolyard.protocols.metrics.text import CONTENT_TYPE, Histogram, by_environment, family, labelled, one, triples
from toolyard.readiness import health, obstacles
from toolyard.runtime.journal import Outcome, Why
from toolyard.runtime.runtime import Runtime
from toolyard.sandboxes.provider import provided
from toolyard.version import __version__

log = logging.getLogger("toolyard.health")

_HEALTH = "/health"
PATHS = ("/metrics", "/toolyard/metrics")
"""The second path is for servers on which another protocol has the first."""

SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 60, 300, 3600)
_QUICK = SECONDS[0]
LAG_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)

_BOOTED = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
"""When the system was started. The kernel gives the start of a process relative to this."""
_TICKS, _PAGE = os.sysconf("SC_CLK_TCK"), resource.getpagesize()


@dataclass(frozen=True, slots=True)
class Options(HttpOptions):
    """`settings.py` explains each."""

    placement: str
    protocol: tuple[str, ...]


def routes(runtime: Runtime, options: Options) -> list[BaseRoute]:
    return [Metrics(runtime, options)]


class Counts:
    """The counters of one environment, since the server started."""

    __slots__ = (
        "closed",
        "outcomes",
        "quick",
        "quick_ran",
        "quick_waited",
        "ran",
        "session_setups_failed",
        "sessions_opened",
        "sessions_rebuilt",
        "setup",
        "waited",
    )

    def __init__(self) -> None:
        self.sessions_opened = 0
        self.sessions_rebuilt = 0
        self.session_setups_failed = 0
        self.closed: Counter[Why] = Counter()
        self.outcomes: dict[Outcome, int] = {"ok": 0}
        self.setup = Histogram(SECONDS)
        self.waited = Histogram(SECONDS)
        self.ran = Histogram(SECONDS)
        self.quick, self.quick_waited, self.quick_ran = 0, 0.0, 0.0
        """Calls that succeeded within the first bucket, as most do. `count_quick` adds them to the counters above."""

    def count_quick(self) -> None:
        self.outcomes["ok"] += self.quick
        self.waited.add_least(self.quick, self.quick_waited)
        self.ran.add_least(self.quick, self.quick_ran)
        self.quick, self.quick_waited, self.quick_ran = 0, 0.0, 0.0


class Metrics(BaseRoute):
    def __init__(self, runtime: Runtime, options: Options) -> None:
        self._runtime = runtime
        self._options = options
        self._counts = {environment: Counts() for environment in runtime.environments.values()}
        self._names = {environment: name for name, environment in runtime.environments.items()}
        self._lag = Histogram(LAG_SECONDS)
        journal = runtime.journal
        journal.opened.append(self._opened)
        journal.settled.append(self._settled)
        journal.rebuilt.append(self._rebuilt)
        journal.answered.append(self._answered)
        journal.closed.append(self._closed)
        journal.swept.append(self._lag.add)
        journal.swept.append(self._look)
        self._lacking: list[str] = []
        self.paths = PATHS if not options.protocol or "ors" in options.protocol else (*PATHS, _HEALTH)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return (Match.FULL if scope["path"] in self.paths else Match.NONE), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in ("GET", "HEAD"):
            raise wrong_method("GET, HEAD")
        request = Request(scope, receive, send, self._options)
        if scope["path"] == _HEALTH:
            status, body = health(self._runtime)
            await request.answer_json(body, status)
        else:
            text = "".join(self._text())
            if not self._runtime.owners.alone and PASSED not in scope:
                text = await self._of_all(text)
            await request.answer(200, ((b"content-type", CONTENT_TYPE),), text.encode())

    async def _of_all(self, text: str) -> str:
        """The metrics of every gateway that answers. One that has just ended is left out."""
        owners = self._runtime.owners
        answers = await owners.ask_others(f"GET {PATHS[-1]}")
        texts = {owners.number: text, **{number: one.decode() for number, one in answers.items()}}
        return merged(dict(sorted(texts.items())))

    @property
    def counted(self) -> Mapping[str, Counts]:
        """By environment: what was counted since the server started."""
        named = {name: self._counts[environment] for name, environment in self._runtime.environments.items()}
        for counts in named.values():
            counts.count_quick()
        return named

    # What the journal calls.

    def _opened(self, spec: SessionSpec) -> None:
        self._counts[spec.environment].sessions_opened += 1

    def _settled(self, spec: SessionSpec, problem: str, seconds: float) -> None:
        counts = self._counts[spec.environment]
        if problem:
            counts.session_setups_failed += 1
        else:
            counts.setup.add(seconds)

    def _rebuilt(self, spec: SessionSpec) -> None:
        self._counts[spec.environment].sessions_rebuilt += 1

    def _answered(self, spec: SessionSpec, tool: str, outcome: Outcome, waited: float, ran: float | None) -> None:
        """Runs for each call: every tenth of a microsecond counts."""
        counts = self._counts[spec.environment]
        if ran is not None and ran < _QUICK and waited < _QUICK and outcome == "ok":
            counts.quick += 1
            counts.quick_waited += waited
            counts.quick_ran += ran
            return
        outcomes = counts.outcomes
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        counts.waited.add(waited)
        if ran is not None:
            counts.ran.add(ran)

    def _closed(self, spec: SessionSpec, why: Why, seconds: float) -> None:
        self._counts[spec.environment].closed[why] += 1

    def _look(self, late: float) -> None:
        """Log why the server takes no new sessions: one that can open no file may not be able to answer `/health`."""
        lacking = [one.reason for one in obstacles(self._runtime) if one.status == "unavailable"]
        if bool(lacking) != bool(self._lacking):
            change = f"not ready for new sessions: {'; '.join(lacking)}" if lacking else "ready for new sessions again"
            log.log(logging.WARNING if lacking else logging.INFO, change)
        self._lacking = lacking

    # What `/metrics` shows.

    def _text(self) -> Iterator[str]:
        yield from self._server()
        yield from self._now()
        yield from self._since_the_start()
        yield from self._places()
        yield from self._record()
        yield from _process()

    def _server(self) -> Iterator[str]:
        build = {"version": __version__, "python": platform.python_version()}
        yield from family("toolyard_build_info", "gauge", "The version of the server.", one(1, build))
        yield from family(
            "toolyard_ready", "gauge", "Whether it takes new sessions.", one(not obstacles(self._runtime))
        )
        yield from family(
            "toolyard_loop_lag_seconds",
            "histogram",
            "How late the event loop was, measured once for each sweep.",
            self._lag.samples({}),
        )

    def _now(self) -> Iterator[str]:
        """Gauges, read from every session now, so that nothing has to be counted as sessions come and go."""
        sessions, names = self._runtime.sessions.values(), self._names
        calls = Counter({(name, state): 0 for name in names.values() for state in ("running", "waiting")})
        states = Counter({(name, "ready"): 0 for name in names.values()})
        states.update([(names[session.spec.environment], session.condition) for session in sessions])
        for session in [session for session in sessions if session.running]:
            name = names[session.spec.environment]
            calls[name, "waiting"] += session.waiting
            calls[name, "running"] += session.running - session.waiting
        most, late = self._runtime.limits.max_sessions, self._runtime.shared.slots.waiting
        yield from family("toolyard_sessions", "gauge", "Open sessions.", labelled("state", triples(states)))
        yield from family("toolyard_sessions_limit", "gauge", "How many there may be.", one(most))
        yield from family(
            "toolyard_calls_in_progress",
            "gauge",
            "Calls that have their turn in a session, or wait for it.",
            labelled("state", triples(calls)),
        )
        yield from family(
            "toolyard_calls_waiting_for_slot",
            "gauge",
            "Of the running ones, those held up by the limit of the server.",
            one(late),
        )

    def _since_the_start(self) -> Iterator[str]:
        named = self.counted
        for what, about in (
            ("sessions_opened", "Sessions opened."),
            ("sessions_rebuilt", "Sessions whose environment was lost and made again."),
            ("session_setups_failed", "Sessions whose constructor or setup() failed."),
        ):
            values = {name: getattr(counts, what) for name, counts in named.items()}
            yield from family(f"toolyard_{what}_total", "counter", about, by_environment(values))
        closed = [(name, why, count) for name, counts in named.items() for why, count in counts.closed.items()]
        outcomes = [(name, how, count) for name, counts in named.items() for how, count in counts.outcomes.items()]
        yield from family(
            "toolyard_sessions_closed_total", "counter", "Sessions closed, and why.", labelled("reason", closed)
        )
        yield from family("toolyard_calls_total", "counter", "Calls by outcome.", labelled("outcome", outcomes))
        for what, kept, about in (
            ("session_setup", "setup", "From when a session was opened until it was set up."),
            ("call_queue", "waited", "From a call's arrival until its tool began to run."),
            ("call_run", "ran", "From when its tool began to run until its answer."),
        ):
            histograms = {name: getattr(counts, kept) for name, counts in named.items()}
            samples = (each for name, one in histograms.items() for each in one.samples({"environment": name}))
            yield from family(f"toolyard_{what}_seconds", "histogram", about, samples)

    def _record(self) -> Iterator[str]:
        if (recorder := self._runtime.journal.recorder) is None:
            return
        left_out, waiting = recorder.left_out, recorder.waiting
        yield from family(
            "toolyard_episodes_left_out_total", "counter", "Episodes not recorded, or not whole.", one(left_out)
        )
        yield from family("toolyard_record_queue", "gauge", "Events of sessions to be recorded.", one(waiting))

    def _places(self) -> Iterator[str]:
        placement = {"placement": self._options.placement}
        processes = self._runtime.placement.processes
        yield from family("toolyard_placement_info", "gauge", "Where sessions live.", one(1, placement))
        yield from family(
            "toolyard_placement_processes", "gauge", "Processes that hold sessions, beside this one.", one(processes)
        )
        provider = provided()
        if provider is None or (report := provider.report) is None:
            return
        isolation = {"backend": report.backend, "level": report.level}
        yield from family("toolyard_sandbox_info", "gauge", "What isolates untrusted code.", one(1, isolation))
        if (count := provider.count) is not None:
            samples = [*one(count[0], {"state": "in_use"}), *one(count[1], {"state": "ready"})]
            yield from family("toolyard_sandboxes", "gauge", "Sandboxes that this process has opened.", samples)


def _process() -> Iterator[str]:
    """Metrics of the server's own process, under the names that every Prometheus client uses."""
    if not os.path.exists("/proc/self/stat"):  # not Linux
        return
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    user, system, threads, started, pages = (int(fields[index]) for index in (11, 12, 17, 19, 21))
    for name, kind, about, value in (
        ("resident_memory_bytes", "gauge", "Memory in use.", pages * _PAGE),
        ("cpu_seconds_total", "counter", "Processor time used.", (user + system) / _TICKS),
        ("threads", "gauge", "Threads.", threads),
        ("open_fds", "gauge", "Open file descriptors.", len(os.listdir("/proc/self/fd"))),
        ("max_fds", "gauge", "How many there may be.", resource.getrlimit(resource.RLIMIT_NOFILE)[0]),
        ("start_time_seconds", "gauge", "When it started, since 1970.", _BOOTED + started / _TICKS),
    ):
        yield from family(f"process_{name}", kind, about, one(value))
