"""Repair a small repository: read the issue, work in a shell, hand in; hidden tests decide.

Shows: an environment in the style of SWE tasks, with a repository laid into each session's sandbox and tests that lie
beside this file and that no agent sees; `sandbox.grader()` and `run_tests()`, which grade in fresh sandboxes what the
agent left, so that cheating does not pay; and a reward by how much was repaired, which is nothing if something broke.

    toolyard serve examples/repair.py

Without a target, `toolyard serve` leaves this example out: the others work on hosts that cannot isolate anything.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from toolyard import Environment, TextBlock, ToolOutput, tool
from toolyard.sandboxes import Sandbox, TestReport, open_sandbox, tool_output

TASKS = Path(__file__).parent / "data" / "repair"
SPLITS = {"train": ["intervals", "ledger"], "test": ["slugs"]}


class Repair(Environment):
    """A repository with a bug, a shell, and tests that only the environment has."""

    uses_sandbox = True
    hidden = [TASKS]
    sandbox: Sandbox | None = None

    @classmethod
    def list_splits(cls) -> Sequence[str]:
        return list(SPLITS)

    @classmethod
    def list_tasks(cls, split: str) -> Sequence[dict[str, Any]]:
        return [{"repository": name} for name in SPLITS[split]]

    @property
    def folder(self) -> Path:
        name = str(self.task_spec["repository"])
        known = [each for names in SPLITS.values() for each in names]
        if name not in known:
            raise ValueError(f"no repository {name!r}; there are {', '.join(known)}")
        return TASKS / name

    async def setup(self) -> None:
        self.sandbox = await open_sandbox()
        repository = self.folder / "repository"
        for file in sorted(repository.rglob("*.*")):
            if file.suffix in (".py", ".md"):
                await self.sandbox.write(file.relative_to(repository).as_posix(), file.read_bytes())

    async def teardown(self) -> None:
        if self.sandbox is not None:
            await self.sandbox.close()

    def get_prompt(self) -> str:
        issue = json.loads((self.folder / "task.json").read_text())["issue"]
        return (
            f"The current folder has a Python package with a bug; its README.md says what it is for.\n\n{issue}\n\n"
            "Find the bug and repair it. Then call submit: tests that you have not seen decide, those for what worked "
            "before among them."
        )

    @tool
    async def bash(self, command: str) -> ToolOutput:
        """Run a command in a shell that keeps its directory and its variables.

        Args:
            command: Any number of lines.
        """
        assert self.sandbox is not None
        return tool_output(await self.sandbox.shell(command))

    @tool
    async def write_file(self, path: str, text: str) -> str:
        """Write a file, whole.

        Args:
            path: Where, from the folder of README.md.
            text: All that is to be in it.
        """
        assert self.sandbox is not None
        await self.sandbox.write(path, text.encode())
        return "written"

    @tool
    async def submit(self) -> ToolOutput:
        """Hand in the repository as it is now. This ends the task."""
        assert self.sandbox is not None
        async with await self.sandbox.grader(hidden=self.folder / "hidden") as grader:
            report = await grader.run_tests(timeout=30)
        reward = reward_for(report)
        verdict = "Your program tampered with the tests." if report.voided else f"{reward:.0%} of it is repaired."
        return ToolOutput(blocks=[TextBlock(text=verdict)], reward=reward, finished=True)


def reward_for(report: TestReport) -> float:
    """The share of tests that failed before and pass now; nothing if one fails that passed before."""
    failing = [*report.failed, *report.missing]
    if report.voided or any(is_kept(test) for test in failing):
        return 0.0
    repaired = sum(not is_kept(test) for test in report.passed)
    return repaired / (repaired + len(failing))


def is_kept(test: str) -> bool:
    return "::TestKept::" in test
