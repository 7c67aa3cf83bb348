"""Right programs on a host in trouble, over every wire that runs code: each answer is right or lost, never wrong."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

from benchmarks import trouble
from benchmarks.servers import Started, running
from toolyard.sandboxes.native.cgroups import own_hierarchies

pytestmark = [pytest.mark.alone, pytest.mark.timeout(180), pytest.mark.thorough]

_GROUPS = {"memory", "pids"}
_CAN_LIMIT = os.geteuid() == 0 and {name for one in own_hierarchies() for name in one.controllers} >= _GROUPS


@pytest.fixture(scope="module")
def server() -> Iterator[Started]:
    with running(trouble.contender()) as server:
        asyncio.run(trouble.warm_up(server))
        yield server


@pytest.mark.skipif(not _CAN_LIMIT, reason="needs root and control groups, to give the server too little")
@pytest.mark.parametrize("kind", ["memory", "processes"])
def test_a_host_that_runs_out_makes_no_right_program_wrong(server: Started, kind: str) -> None:
    check(server, kind, at_once=2)


@pytest.mark.parametrize("kind", ["stopped", "blocked", "files"])
def test_a_server_that_stands_still_or_is_full_makes_no_right_program_wrong(server: Started, kind: str) -> None:
    check(server, kind, at_once=1)


def check(server: Started, kind: str, at_once: int) -> None:
    came = asyncio.run(trouble.answers(server, kind, at_once))
    assert not {way: wrong for way, answers in came.items() if (wrong := trouble.wrong(answers))}, came
    assert sum(answers.total() for answers in came.values()) == at_once * len(trouble.WAYS)
