"""`python_oj` scores what was earned: right programs of every shape pass, and no program deceives its judge."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tests.tools.changing_cheats import CHANGING_CHEATS
from tests.tools.cheats import CHEATS
from tests.tools.forgeries import FORGERIES
from tests.tools.later_cheats import LATER
from tests.tools.pairs import PAIRS
from tests.tools.right_programs import RIGHT
from toolyard.core.errors import SandboxError, SandboxUnavailable
from toolyard.sandboxes.provider import Provider
from toolyard.tools.agreement import agrees
from toolyard.tools.python_oj import first_failure, read_tests

pytestmark = pytest.mark.anyio

QUICK = [
    *("a cache that is a dict", "a stack that is a list", "points that go back", "errors that a block ignores"),
    *("a ring that is a list", "a bag that is a dict"),
    *("a built-in name beside others", "inheritance asked", "nothing to call", "a named tuple with fields"),
]
"""Pairs that `make test` plays."""
ELSEWHERE = 12
"""One in so many programs is judged on other backends too."""


async def verdicts(programs: dict[str, tuple[str, Any]]) -> dict[str, str]:
    """The verdict on each; empty for one that passes."""

    async def told(code: str, given: Any) -> str:
        return await first_failure(read_tests(given)[0], code)

    return dict(zip(programs, await asyncio.gather(*(told(*one) for one in programs.values())), strict=True))


async def test_right_programs_of_every_shape_pass():
    async with Provider("native"):
        failures = {name: told for name, told in (await verdicts(RIGHT)).items() if told}
    assert failures == {}
    assert len(RIGHT) >= 60


@pytest.mark.parametrize("names", [QUICK, pytest.param([*PAIRS], marks=pytest.mark.thorough)], ids=["quick", "all"])
async def test_a_right_program_passes_and_its_wrong_sibling_does_not(names):
    cases = {(name, at): one for name in names for at, one in enumerate(each_test(PAIRS[name][2]))}
    right = {f"{name}, {at}": (PAIRS[name][0], one) for (name, at), one in cases.items()}
    wrong = {f"{name}, {at}": (PAIRS[name][1], one) for (name, at), one in cases.items()}
    async with Provider("native"):
        assert {name: told for name, told in (await verdicts(right)).items() if told} == {}
        assert [name for name, told in (await verdicts(wrong)).items() if not told] == []


def each_test(given: Any) -> list[Any]:
    return [[one] for one in given] if isinstance(given, list) else [given]


async def test_a_message_that_makes_no_sense_is_a_failure_of_the_program_and_none_of_the_tool():
    odd = {name: one for name, one in LATER.items() if name.startswith("a head with")}
    async with Provider("native"):
        assert [name for name, told in (await verdicts(odd)).items() if not told] == []


async def test_a_program_whose_values_change_or_that_ends_a_block_of_its_test_does_not_pass():
    async with Provider("native"):
        assert [name for name, told in (await verdicts(CHANGING_CHEATS)).items() if not told] == []


def test_the_judge_compares_any_number_at_once():
    """A program prints it, and no other program is judged meanwhile."""
    began = time.process_time()
    assert not agrees("0" * 100_000 + "x", "5")
    assert agrees("0" * 100_000 + "5", "5")
    assert not agrees("-" + "0" * 100_000, "5")
    assert agrees("-00", "0")
    assert time.process_time() - began < 1


@pytest.mark.thorough
async def test_no_cheat_passes():
    async with Provider("native"):
        passed = [name for name, told in (await verdicts(CHEATS | FORGERIES | LATER)).items() if not told]
    assert passed == []
    assert len({name.partition(", test")[0] for name in CHEATS}) >= 20


@pytest.mark.thorough
@pytest.mark.parametrize("backend", ["subprocess", "landlock"])
async def test_other_backends_judge_alike(backend):
    """They have no template: our modules are loaded with each program."""
    async with Provider(backend, "L0") as provider:
        try:
            await provider.start()
        except SandboxUnavailable as missing:
            pytest.skip(str(missing))
        right = dict(list(RIGHT.items())[::ELSEWHERE])
        cheats = dict(list(CHEATS.items())[::ELSEWHERE])
        assert {name: told for name, told in (await verdicts(right)).items() if told} == {}
        assert [name for name, told in (await verdicts(cheats)).items() if not told] == []


async def test_a_sandbox_that_is_lost_is_no_verdict():
    """Neither on the program nor on the test."""
    for code, test in (
        ("import time\ndef f(x):\n    time.sleep(30)", "assert abs(f(1)) == 1"),
        ("def f(x):\n    return 1", "import time\nif f(1):\n    time.sleep(30)"),
    ):
        async with Provider("native") as provider:
            await provider.start()
            judging = asyncio.ensure_future(first_failure(read_tests([test])[0], code))
            await asyncio.sleep(0.3)
            assert not judging.done()
            await provider.close()
            with pytest.raises(SandboxError):
                await judging
