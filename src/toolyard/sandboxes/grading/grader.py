"""A fresh sandbox for grading: the agent's files, copied while none of its programs runs, with hidden ones on top."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from toolyard.sandboxes.base import Finished, Limits, Sandbox
from toolyard.sandboxes.grading import laying
from toolyard.sandboxes.grading.laying import Hidden
from toolyard.sandboxes.grading.running import Plan, run_tests
from toolyard.sandboxes.verdicts import TestReport


async def open_grader(
    sandbox: Sandbox,
    *,
    files: Sequence[str] | None,
    hidden: Hidden,
    limits: Limits | None,
) -> WorkspaceGrader:
    read = await laying.gather(hidden)
    await sandbox.stop_programs()
    taken = await laying.take(sandbox, files)
    fresh = await sandbox.another(limits or sandbox.limits)
    try:
        await laying.lay(fresh, taken.files, read)
    except BaseException:
        await fresh.close()
        raise
    return WorkspaceGrader(fresh, read, taken.left_out)


class WorkspaceGrader:
    """`hidden` are the hidden files that it already contains."""

    def __init__(self, sandbox: Sandbox, hidden: Mapping[str, bytes], left_out: Sequence[str]) -> None:
        self.sandbox = sandbox
        self.left_out = left_out
        self._hidden = hidden

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Finished:
        return await self.sandbox.run(argv, stdin=stdin, timeout=timeout, env=env)

    async def run_tests(
        self,
        paths: Sequence[str] | None = None,
        *,
        expected: Sequence[str] | None = None,
        timeout: float = 60.0,
        twins: int = 4,
        path: Sequence[str] = (".",),
        plugins: Sequence[str] = (),
    ) -> TestReport:
        await self.sandbox.stop_programs()
        plan = Plan(timeout, path, plugins, self._hidden, self.sandbox.limits, self.sandbox.another)
        return await run_tests(self.sandbox, plan, paths, expected, twins)

    async def close(self) -> None:
        await self.sandbox.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
