"""`python_oj` scores what was earned: right programs of every shape pass, and no program deceives its judge."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.tools.cheats import CHEATS
from tests.tools.forgeries import FORGERIES
from tests.tools.right_programs import RIGHT
from toolyard.core.errors import SandboxError, SandboxUnavailable
from toolyard.sandboxes.provider import Provider
from toolyard.tools.python_oj import first_failure, read_tests

pytestmark = pytest.mark.anyio

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


@pytest.mark.thorough
async def test_no_cheat_passes():
    async with Provider("native"):
        passed = [name for name, told in (await verdicts(CHEATS | FORGERIES)).items() if not told]
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
