"""Check a sandbox backend: `check_sandbox(backend)` uses it in every way and reports what it found.

It tries each promise of the contract in `sandboxes/base`, and each layer of isolation that the backend reports. It does
not prove that untrusted code cannot get out; for that there are the hostile programs of Toolyard's own tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence

from toolyard.core.errors import SandboxError
from toolyard.sandboxes.base import Backend
from toolyard.testing.blame import explained
from toolyard.testing.census import Census, growth_since
from toolyard.testing.report import Finding, Level, Report
from toolyard.testing.sandbox_rules import RULES, SECRET, Case, Rule

_RULE_SECONDS = 60.0


def check_sandbox(
    backend: Backend, *, only: Sequence[str] = (), tell: Callable[[Finding], None] = lambda finding: None
) -> Report:
    """Check a backend that has not been started; in a test: `report = check_sandbox(MyBackend())`, and then
    `assert report.ok, str(report)`.

    `only` names topics: run, process, limits, python, shell, files, fork, end, report. It passes each finding to `tell`
    at once. Call it from a plain function: it runs an event loop of its own.
    """
    report = Report(backend.name)

    def add(level: Level, topic: str, text: str) -> None:
        report.findings.append(Finding(level, topic, text))
        tell(report.findings[-1])

    with _private_temporary_directory() as directory, _secret():
        asyncio.run(_everything(backend, [rule for rule in RULES if not only or rule.topic in only], add))
        left = sorted(os.listdir(directory))
        if left:
            add("error", "leaks", f"left in the temporary directory: {', '.join(left[:5])}")
    return report


async def _everything(backend: Backend, rules: Sequence[Rule], add: Callable[[Level, str, str], None]) -> None:
    before = Census.take()
    try:
        found = await backend.start()
    except SandboxError as error:
        add("error", "start", str(error))
        return
    add("ok", "start", f"isolates at level {found.level}")
    try:
        for rule in rules:
            await _follow(rule, backend, add)
    finally:
        await backend.close()
    await asyncio.get_running_loop().shutdown_default_executor()  # its threads are no leak of the backend
    growth = await growth_since(before)
    for kind, names in growth.items():
        add("error", "leaks", f"{kind} left behind: {len(names)} ({', '.join(list(dict.fromkeys(names))[:3])})")
    if not growth:
        add("ok", "leaks", "no thread, open file, process or asyncio task is left")


async def _follow(rule: Rule, backend: Backend, add: Callable[[Level, str, str], None]) -> None:
    """One rule, in a sandbox of its own."""
    if rule.is_disclaimed(backend.report()):
        add("note", rule.topic, f"not checked, since the backend does not claim it: {rule.text}")
        return
    case = Case(backend)
    try:
        async with asyncio.timeout(_RULE_SECONDS), await backend.open(rule.limits) as box:
            await rule.trial(box, case)
    except TimeoutError:
        case.problem(f"it was not done after {_RULE_SECONDS:g} s")
    except Exception as error:  # the backend's own code
        case.problem(f"it raised {explained(error)}")
    for problem in case.problems:
        add("error", rule.topic, f"{rule.text}: {problem}")
    if not case.problems:
        add("ok", rule.topic, rule.text)


@contextlib.contextmanager
def _private_temporary_directory() -> Iterator[str]:
    """A temporary directory of its own, which shows what the backend leaves behind."""
    before = tempfile.tempdir
    directory = tempfile.mkdtemp()
    os.chmod(directory, 0o711)  # programs may run as another user
    tempfile.tempdir = directory
    try:
        yield directory
    finally:
        tempfile.tempdir = before
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def _secret() -> Iterator[None]:
    os.environ[SECRET] = SECRET
    try:
        yield
    finally:
        del os.environ[SECRET]
