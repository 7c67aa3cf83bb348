"""What all tests share: a server, signals and variables as they should be, and what each file of tests cost."""

from __future__ import annotations

import gc
import os
import re
import signal
from collections import defaultdict
from collections.abc import Generator, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import httpx2
import hypothesis
import pytest

from tests.standstill import Watch
from tests.worlds import ManyEnv, MathEnv, OtherEnv
from toolyard.testing import Running, running

SLOWEST_FILES = 20
WHOLLY_THOROUGH = re.compile(r"^pytestmark = .*\bmark\.thorough\b", re.MULTILINE)
PARTLY_THOROUGH = re.compile(r"\b(thorough|LOOPS|sandboxes)\b|\b(first|others)\(")
"""What a file says of which some tests are thorough: the mark, or cases and fixtures that have it."""
SPENT = pytest.StashKey[float]()
"""The processor time of this process at the last report."""


def pytest_configure(config: pytest.Config) -> None:
    """Keep the settings, the proxy and the ignored signals of whoever runs the tests away from the servers in here.

    A shell starts `make test &` in a script with SIGINT ignored, and `nohup make test` ignores SIGHUP. A program that
    tests start would ignore them too.
    And let Hypothesis take its time: on a busy machine a slow example is no failure.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    for name in [name for name in os.environ if name.startswith("TOOLYARD_")]:
        del os.environ[name]
    for name in ("NO_PROXY", "no_proxy"):
        os.environ[name] = ",".join(filter(None, (os.environ.get(name), "127.0.0.1,localhost,::1")))
    hypothesis.settings.register_profile(
        "no matter how slow", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
    )
    hypothesis.settings.load_profile("no matter how slow")
    if config.getoption("numprocesses", None):  # this is the process that hands out the tests
        config.pluginmanager.register(Watch(Path(config.cache._cachedir)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nothing that collecting makes is garbage, and looking for it would take half of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file without a test of this tier, and where only tests marked `alone` run, no file without one."""
    tier = re.fullmatch("(not )?thorough and (not )?alone", config.option.markexpr)
    if tier is None or not collection_path.name.startswith("test_"):
        return None
    text = collection_path.read_text()
    quick, together = tier.groups()
    if not together and "mark.alone" not in text:
        return True
    return (WHOLLY_THOROUGH.search(text) is not None if quick else PARTLY_THOROUGH.search(text) is None) or None


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Refuse to lose a test: in `make test-all`, a file that does not say which of its tests are thorough has none."""
    for path in {item.path for item in items if item.get_closest_marker("thorough")}:
        if path.name.startswith("test_") and not PARTLY_THOROUGH.search(path.read_text()):
            raise pytest.UsageError(f"{path}: `make test-all` would not find its thorough tests; name the mark there")


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """uvloop does not look for signals while it waits: there, only a thread can end a test that hangs."""
    for item in items:
        if "uvloop" in item.name:
            item.add_marker(pytest.mark.timeout(method="thread"))


def pytest_collection_finish() -> None:
    """Thousands of tests stay to the end: looking through them again and again would hold up the servers in here."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Half characters, which tests play with, cannot be sent to the process that shows what became of a test."""
    return _sendable((yield))


def _sendable(value: Any) -> Any:
    match value:
        case str():
            return value.encode(errors="backslashreplace").decode()
        case dict():
            return {name: _sendable(one) for name, one in value.items()}
        case list():
            return [_sendable(one) for one in value]
        case tuple():  # why a test was skipped is one, and pytest wants it back as such
            return tuple(_sendable(one) for one in value)
    return value


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """Note in each report the processor time since the last one. Processes that ended meanwhile are included."""
    now = sum(os.times()[:4])
    report = yield
    report.processor_seconds = now - item.config.stash.get(SPENT, now)
    item.config.stash[SPENT] = now
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    files: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for report in chain.from_iterable(terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            files[report.location[0]][0] += report.duration
            files[report.location[0]][1] += getattr(report, "processor_seconds", 0)  # a crash has none
    if not files:
        return
    slowest = sorted(files.items(), key=lambda file: -file[1][0])[:SLOWEST_FILES]
    terminalreporter.section("slowest files: seconds, and seconds of processor time")
    for name, (seconds, of_processors) in slowest:
        terminalreporter.line(f"{seconds:7.1f} {of_processors:7.1f}  {name}")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Each test has an event loop of its own, unless one of its asynchronous fixtures outlives it."""
    return "asyncio"


@pytest.fixture(scope="session")
def served() -> Iterator[Running]:
    with running([MathEnv, OtherEnv, ManyEnv]) as server:
        yield server


@pytest.fixture
def http(served: Running) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=served.url, timeout=30) as client:
        yield client
