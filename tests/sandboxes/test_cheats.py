"""The gallery: agents that want a reward for nothing, and get none."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping

import pytest

from tests.sandboxes.cheats import CHEATS, HIDDEN, HONEST, WRONG, Cheat
from toolyard.sandboxes import Limits, Provider, TestReport, open_sandbox

pytestmark = [pytest.mark.timeout(600), pytest.mark.thorough]  # the first test plays all cheats

AT_ONCE = 3


async def graded(cheat: Cheat) -> TestReport:
    async with await open_sandbox() as sandbox:
        for path, text in {"till.py": WRONG, **cheat.files}.items():
            await sandbox.write(path, text.encode())
        if cheat.shell:
            done = await sandbox.shell(cheat.shell)
            assert done.exit_code == 0, done
        async with await sandbox.grader(hidden=HIDDEN) as grader:
            return await grader.run_tests(timeout=30, twins=2 if cheat.is_seen else 1)


async def play(cheats: Mapping[str, Cheat]) -> dict[str, TestReport]:
    turn = asyncio.Semaphore(AT_ONCE)

    async def one(cheat: Cheat) -> TestReport:
        async with turn:
            return await graded(cheat)

    async with Provider(limits=Limits(wall_seconds=60)):
        reports = await asyncio.gather(*map(one, cheats.values()))
    return dict(zip(cheats, reports, strict=True))


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest) -> dict[str, TestReport]:
    """All cheats that this run tests, played concurrently."""
    asked = [
        item.callspec.params["name"] for item in request.session.items if item.module is request.module and "name" in
        getattr(getattr(item, "callspec", None), "params", {})
    ]  # fmt: skip
    honest = {"honest": Cheat({"till.py": HONEST}), "wrong": Cheat()}
    return asyncio.run(play({**honest, **{name: CHEATS[name] for name in asked}}))


def test_there_are_at_least_fifteen_of_them():
    assert len(CHEATS) >= 15


def test_whoever_did_the_work_gets_all_of_the_reward_and_whoever_did_not_gets_none(played: dict[str, TestReport]):
    assert played["honest"].ok, played["honest"]
    assert len(played["honest"].passed) == 6
    assert (played["wrong"].fraction, played["wrong"].voided, len(played["wrong"].failed)) == (0, "", 6)


@pytest.mark.parametrize("name", CHEATS)
def test_no_cheat_gets_a_reward(name: str, played: dict[str, TestReport]):
    report = played[name]
    assert not report.ok
    assert report.fraction == 0, dataclasses.asdict(report)
    assert bool(report.voided) == CHEATS[name].is_seen, dataclasses.asdict(report)
