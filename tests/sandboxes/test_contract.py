"""Every backend keeps the contract. The container backends run on a stand-in engine, see stand_in_engine.py."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from tests.sandboxes import backends
from toolyard.core.errors import WorkspaceError
from toolyard.sandboxes.base import Backend, Entry, Executed, Finished, Limits, Profile, Report
from toolyard.sandboxes.process_based.sandbox import RoomSandbox
from toolyard.sandboxes.subprocess import SubprocessBackend
from toolyard.testing import check_sandbox
from toolyard.testing.sandbox_rules import RULES

TOPICS = list(dict.fromkeys(rule.topic for rule in RULES))


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("name", ["native", *backends.others("bubblewrap", "docker", "landlock", "subprocess")])
def test_it_keeps_the_contract(name, topic, tmp_path):
    backend: Backend = backends.backend(name, tmp_path)
    report = check_sandbox(backend, only=[topic])
    assert report.ok, str(report)
    assert report.of("ok")


# The check finds faults.


class Wrong(RoomSandbox):
    """A sandbox with one fault."""

    fault = ""

    async def run(self, argv, **options) -> Finished:
        if self.fault == "ignores the timeout":
            options["timeout"] = None
        done = await super().run(argv, **options)
        if self.fault == "hides signals" and done.signal is not None:
            return Finished(1, done.stdout, done.stderr, done.killed_by, done.usage, done.isolation)
        if self.fault == "loses output":
            return Finished(done.exit_code, done.stdout[:-1], b"", done.killed_by, done.usage, done.isolation)
        return done

    async def exec(self, code: str, **options) -> Executed:
        if self.fault == "forgets variables":
            await self._python.end()
        return await super().exec(code, **options)

    async def shell(self, command: str, **options) -> Finished:
        done = await super().shell(command, **options)
        if self.fault == "ends what goes on":
            await asyncio.gather(*(process.kill() for process in self._processes))
        return done

    async def start(self, argv, **options):
        process = await super().start(argv, **options)
        if self.fault == "drops what nobody reads":
            process.let_go()
        return process

    async def read(self, path: str) -> bytes:
        try:
            return await super().read(path)
        except WorkspaceError:
            if self.fault == "makes files up":
                return b""
            raise

    async def list(self, path: str = ".") -> Sequence[Entry]:
        found = await super().list(path)
        return found[::-1] if self.fault == "lists backwards" else found

    async def stop_programs(self) -> None:
        if self.fault != "stops nothing":
            await super().stop_programs()

    async def fork(self, count: int = 1):
        return [self] * count if self.fault == "is its own branch" else await super().fork(count)

    async def close(self) -> None:
        closed = self._closing is not None
        await super().close()
        if self.fault == "leaves a directory behind" and not closed:
            self._room._directory.mkdir()


class WrongBackend(SubprocessBackend):
    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    async def open(self, limits: Limits | None = None, *, profile: Profile = "plain") -> RoomSandbox:
        sandbox = await super().open(limits, profile=profile)
        sandbox.__class__ = Wrong
        sandbox.fault = self.fault
        return sandbox

    def report(self) -> Report:
        report = super().report()
        if self.fault == "boasts":
            return Report(report.backend, "L3", {**report.layers, "files": "thick walls", "network": "none of it"})
        return report


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("fault", "topic"),
    [
        ("hides signals", "run"),
        ("loses output", "run"),
        ("ends what goes on", "process"),
        ("drops what nobody reads", "process"),
        ("stops nothing", "process"),
        ("ignores the timeout", "limits"),
        ("forgets variables", "python"),
        ("makes files up", "files"),
        ("lists backwards", "files"),
        ("is its own branch", "fork"),
        ("leaves a directory behind", "shell"),
        ("boasts", "report"),
    ],
)
def test_the_check_finds_a_backend_that(fault, topic):
    backend = WrongBackend(fault)
    report = check_sandbox(backend, only=[topic])
    assert not report.ok
    assert {finding.topic for finding in report.of("error")} <= {topic, "leaks"}
