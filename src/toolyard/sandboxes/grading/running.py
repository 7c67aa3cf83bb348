"""Runs hidden tests on an agent's code, each file and each of its twins in a fresh sandbox."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from importlib import resources

from toolyard.core.errors import DefinitionError, WorkspaceError
from toolyard.sandboxes.base import Limits, Sandbox
from toolyard.sandboxes.grading import judging, laying, records, twins
from toolyard.sandboxes.grading.finding import is_test_file
from toolyard.sandboxes.paths import inside
from toolyard.sandboxes.verdicts import TestReport

_RUNNER = resources.files("toolyard.sandboxes.grading").joinpath("pytest_runner.py").read_text(encoding="utf-8")
_ARGUMENTS = ["-c", "/dev/null", "--import-mode=importlib", "--assert=plain"]
_PLUGINS_OFF = ["cacheprovider", "terminal", "faulthandler"]
_REPORT_MOST = 4 * 2**20
_AT_ONCE = 2
_FILE_MOST = 2**20
_IMPORT = re.compile(rb"^[ \t]*(?:from|import)\b.*", re.MULTILINE)
_WORD = re.compile(rb"\w+")


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """The settings of a test run, and its hidden files."""

    timeout: float
    path: Sequence[str]
    plugins: Sequence[str]
    hidden: Mapping[str, bytes]
    limits: Limits
    open: Callable[[Limits], Awaitable[Sandbox]]

    def beside(self, file: str) -> Mapping[str, bytes]:
        """The hidden files that a test file may need. Other test files are left out unless one imports them: they could
        reveal what is really expected."""
        lines = [line for path, data in self.hidden.items() if path.endswith(".py") for line in _IMPORT.findall(data)]
        imported = {word for line in lines for word in _WORD.findall(line)}
        return {
            path: data
            for path, data in self.hidden.items()
            if path != file and (not is_test_file(path) or _stem(path).encode() in imported)
        }

    def arguments(self, file: str) -> Sequence[str]:
        has_conftest = any(_is_conftest(path) for path in self.hidden)
        return [
            *_ARGUMENTS,
            *(word for name in _PLUGINS_OFF for word in ("-p", f"no:{name}")),
            *(word for name in self.plugins for word in ("-p", name)),
            *([] if has_conftest else ["--noconftest"]),
            file,
        ]


async def run_tests(
    source: Sandbox, plan: Plan, wanted: Sequence[str] | None, expected: Sequence[str] | None, number_of_twins: int
) -> TestReport:
    """Run the tests on the source's current files. Any trouble that is not the agent's raises."""
    files = _chosen(plan.hidden, wanted)
    dice = random.SystemRandom()
    written = await asyncio.to_thread(_written, {path: plan.hidden[path] for path in files}, number_of_twins, dice)
    _check_expected(written, expected)
    found = (await laying.take(source)).files
    workspace = {path: data for path, data in found.items() if path not in plan.hidden and not _is_conftest(path)}
    jobs = [(at, -1, file.real) for at, file in enumerate(written)]
    jobs += [(at, number, twin.text) for at, file in enumerate(written) for number, twin in enumerate(file.twins)]
    dice.shuffle(jobs)
    turn = asyncio.Semaphore(_AT_ONCE)
    done: dict[tuple[int, int], records.Records] = {}

    async def play(at: int, number: int, text: str) -> None:
        async with turn:
            done[at, number] = await _run(plan, written[at].path, text, workspace)

    try:
        async with asyncio.TaskGroup() as group:
            for job in jobs:
                group.create_task(play(*job))
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    tally = judging.Tally()
    for at, file in enumerate(written):
        judging.judge(file, done[at, -1], [done[at, number] for number in range(len(file.twins))], tally)
    return tally.report(expected)


async def _run(plan: Plan, path: str, text: str, workspace: Mapping[str, bytes]) -> records.Records:
    hidden = {**plan.beside(path), path: text.encode()}
    async with await plan.open(plan.limits) as sandbox:
        await laying.lay(sandbox, workspace, hidden)
        told = {"path": [path.rpartition("/")[0], *plan.path], "arguments": plan.arguments(path)}
        limits = dataclasses.replace(sandbox.limits, output_bytes=_REPORT_MOST, wall_seconds=plan.timeout)
        argv = ["python3", "-I", "-B", "-c", _RUNNER]
        finished = await sandbox.run(argv, stdin=json.dumps(told).encode(), limits=limits)
        found = await asyncio.to_thread(records.read, finished, path)
        if changed := await _changed(sandbox, hidden):
            found.tampered = found.tampered or f"the hidden file {changed} was changed"
        return found


async def _changed(sandbox: Sandbox, hidden: Mapping[str, bytes]) -> str:
    """A hidden Python file that was changed; empty if none was. Tests may write to their data."""
    for path in hidden:
        if path.endswith(".py") and not await _is_still(sandbox, path, hidden[path]):
            return path
    return ""


async def _is_still(sandbox: Sandbox, path: str, data: bytes) -> bool:
    try:
        return await sandbox.read(path) == data
    except WorkspaceError:
        return False


def _chosen(hidden: Mapping[str, bytes], wanted: Sequence[str] | None) -> Sequence[str]:
    """The selected hidden test files. The agent's own files never run as tests."""
    tests = sorted(path for path in hidden if is_test_file(path))
    if wanted is None:
        chosen = tests
    else:
        names = [inside(name) for name in wanted]
        chosen = [path for path in tests if any(name in (".", path) or path.startswith(f"{name}/") for name in names)]
        for name in names:
            if not any(name in (".", path) or path.startswith(f"{name}/") for path in tests):
                raise DefinitionError(f"no hidden test file at {name!r}; there are {_listed(tests)}")
    if not chosen:
        raise DefinitionError(f"there is no hidden test file (test_*.py, *_test.py); hidden are {_listed(hidden)}")
    return chosen


def _written(sources: Mapping[str, bytes], number_of_twins: int, dice: random.Random) -> Sequence[twins.Written]:
    found = []
    for path, source in sources.items():
        if len(source) > _FILE_MOST:
            raise DefinitionError(f"{path}: a test file of {len(source)} bytes; it may have {_FILE_MOST}")
        try:
            written = twins.write(path, source.decode(), number_of_twins, dice)
        except (SyntaxError, ValueError, RecursionError) as error:
            raise DefinitionError(f"{path}: this hidden test file cannot be read: {error}") from error
        if not any(test.counts for test in written.tests):
            raise DefinitionError(f"{path}: no test is found in this hidden file by reading it, or all may be skipped")
        found.append(written)
    return found


def _check_expected(written: Sequence[twins.Written], expected: Sequence[str] | None) -> None:
    names = {f"{file.path}::{test.name}": test for file in written for test in file.tests if test.counts}
    for id in expected or ():
        name, bracket, case = id.partition("[")
        if name not in names:
            raise DefinitionError(f"no test {name!r} is found by reading the hidden files; there are {_listed(names)}")
        if bracket and f"[{case}" not in names[name].ids.values():
            raise DefinitionError(f"{id!r}: the cases of {name!r} cannot be found by reading it; expect all of it")


def _stem(path: str) -> str:
    return path.rpartition("/")[2].removesuffix(".py")


def _is_conftest(path: str) -> bool:
    return path.rpartition("/")[2] == "conftest.py"


def _listed(names: Collection[str]) -> str:
    shown = ", ".join(repr(name) for name in [*names][:8])
    return shown + ", …" * (len(names) > 8) or "none"
