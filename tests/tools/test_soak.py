"""A small soak of the verl wire; `make soak` plays a large one."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.servers import running
from benchmarks.verl_soak import contender, soak

pytestmark = pytest.mark.thorough


@pytest.mark.timeout(180)
def test_each_trajectory_finds_its_own_state_and_a_killed_sandbox_costs_no_other_its():
    with running(contender()) as server:
        asyncio.run(soak(server, 4, 4, 0))  # from now on everything that any number needs exists
        told = asyncio.run(soak(server, 24, 12, 2))
    assert told.wrong == []
    assert sum(told.turns.values()) + told.lost * 5 >= 24 * 5
    assert set(told.turns) == {"python", "bash", "ipython"}
    assert told.killed == 2
    assert told.lost <= told.killed
    assert told.left == {}
    assert told.grown < 32 * 2**20
