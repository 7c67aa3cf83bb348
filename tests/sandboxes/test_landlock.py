"""Sandboxes without namespaces: which walls hold, for which users, and what is left of the sandboxes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.sandboxes import backends, hostile
from tests.sandboxes.test_process_based import server, sleeping, started, temporary, until  # noqa: F401  # a fixture
from toolyard.core.errors import SandboxLost, SandboxUnavailable
from toolyard.sandboxes.base import Limits
from toolyard.sandboxes.landlock import LandlockBackend

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]

_AS_STRANGER: Mapping[str, Any] = {"user": hostile.STRANGER, "group": hostile.STRANGER, "extra_groups": []}
_IS_ROOT = os.geteuid() == 0


@pytest.fixture(params=backends.LOOPS)
def anyio_backend(request):
    return request.param


# Attacks, as the server's own user, as a user for each sandbox, and with a server that is not root.

_WHO = ["own user", "root", "ordinary user"] if _IS_ROOT else ["ordinary user"]


def _python(who: str) -> str:
    """A Python that the programs can start."""
    return sys.executable if who == "root" or not _IS_ROOT else hostile.rootless_python()


def _attacked(who: str) -> Mapping[str, Any]:
    done = subprocess.run(
        [_python(who), "-c", "from tests.sandboxes.landlock_attacks import main; main()"],
        env=hostile.server_environment(),
        cwd="/",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **(_AS_STRANGER if who == "ordinary user" and _IS_ROOT else {}),
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("who", _WHO)
def test_nothing_outside_can_be_read_changed_reached_or_ended_by_a_program(who):
    told = _attacked(who)
    assert told["level"] == "L2"
    assert len(told["attempts"]) > 130
    assert {name: how for name, how in told["attempts"].items() if how == "done"} == {}
    assert told["changed"] == []
    assert ("a user of its own" in told["missing"]) == (who != "own user" and not _all_may_use(sys.prefix, who))


def _all_may_use(prefix: str, who: str) -> bool:
    """Whether a server that is root found an interpreter that other users can start."""
    return who == "root" and hostile.rootless_python() == sys.executable


# What is left.


@pytest.mark.parametrize(
    "daemon",
    [
        "(setsid sleep {number} </dev/null >/dev/null 2>&1 &)",
        "(setsid env -i sleep {number} </dev/null >/dev/null 2>&1 &)",
        "setsid sh -c 'env -i setsid sleep {number} </dev/null >/dev/null 2>&1 &' &",
    ],
)
async def test_a_daemon_without_parents_group_and_environment_ends_with_its_program(daemon):
    number = str(2_000_000 + os.getpid())
    async with started(LandlockBackend()) as backend, await backend.open() as box:
        begins = daemon.format(number=number)
        process = await box.start(["sh", "-c", f"{begins}\ncat"])
        assert await until(lambda: len(sleeping(number)) == 1)
        await process.close_input()
        assert await process.wait(10)
        assert sleeping(number) == []
        await box.shell(begins)
        assert await until(lambda: len(sleeping(number)) == 1)  # a session's programs run until it closes
    assert sleeping(number) == []


async def test_when_a_server_is_killed_its_wardens_end_what_they_guard(temporary):  # noqa: F811
    number = str(3_000_000 + os.getpid())
    with server("LandlockBackend()", temporary, number) as process:
        assert await until(lambda: len(sleeping(number)) == 4)
        process.kill()
        process.wait()
        assert await until(lambda: not sleeping(number))
    assert len(list(temporary.iterdir())) == 1
    async with started(LandlockBackend()):
        assert list(temporary.iterdir()) == []


async def test_a_program_whose_walls_cannot_be_made_is_no_program_that_failed():
    async with started(LandlockBackend()) as backend, await backend.open() as box:
        box._room._shows.append(None)  # not a path
        with pytest.raises(SandboxLost, match="walls could not be made"):
            await box.run(["true"])
        with pytest.raises(SandboxLost, match="walls could not be made"):
            await box.exec("1")


def parent_of(pid: str) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


async def test_a_program_whose_warden_is_killed_is_lost_and_so_is_its_session():
    number = str(4_000_000 + os.getpid())
    async with started(LandlockBackend()) as backend, await backend.open() as box:
        running = asyncio.ensure_future(box.run(["sleep", number]))
        assert await until(lambda: len(sleeping(number)) == 1)
        (program,) = sleeping(number)
        os.kill(parent_of(program), signal.SIGKILL)
        with pytest.raises(SandboxLost, match="a warden was killed"):
            await running
        assert await until(lambda: not sleeping(number))


async def test_a_program_that_is_given_up_before_it_has_walls_costs_its_session_nothing():
    number = str(5_000_000 + os.getpid())
    async with started(LandlockBackend()) as backend, await backend.open() as box:
        for milliseconds in range(0, 60, 3):
            done = await box.run(["sleep", number], timeout=milliseconds / 1000)
            assert (done.exit_code, done.killed_by) == (124, "wall")
        assert (await box.exec("6 * 7")).value == "42"
        ended = await box.exec("import os; os._exit(3)")
        assert ended.state_lost
        assert (await box.exec("6 * 7")).value == "42"
        assert sleeping(number) == []


async def test_many_at_once_leave_no_files_open():
    async with started(LandlockBackend()) as backend, await backend.open() as box:
        before = len(os.listdir("/proc/self/fd"))
        done = await asyncio.gather(*(box.run(["sh", "-c", f"exit {code}"]) for code in range(8)))
        assert [one.exit_code for one in done] == list(range(8))
        await box.run(["true"])
        assert len(os.listdir("/proc/self/fd")) <= before + 1  # the last one's, until the next starts


async def test_there_is_no_network_of_its_own_to_be_had():
    async with started(LandlockBackend()) as backend:
        with pytest.raises(SandboxUnavailable, match="use 'none' or 'host'"):
            await backend.open(Limits(network="loopback"))
        async with await backend.open(Limits(network="host")) as box:
            reached = await box.exec("import socket\nsocket.socket().bind(('127.0.0.1', 0))")
            refused = await box.exec("socket.socket(socket.AF_UNIX)")
    assert reached.error is None
    assert refused.error is not None


# Where it is used: namespaces are forbidden here, as in a container.

_CONTAINED = """
import asyncio, sys
from toolyard.sandboxes import choice
from toolyard.sandboxes.native import seccomp, syscalls
policy = dict.fromkeys(seccomp.numbers(seccomp.MACHINE), seccomp.ALLOW)
refused = dict.fromkeys(["unshare", "setns", "mount", "pivot_root"], seccomp.REFUSE)
policy |= refused | {{"clone": seccomp.without(0, seccomp.CLONE_NEW), "clone3": seccomp.ABSENT}}
calls = syscalls.Syscalls()
syscalls.load_filter(calls, seccomp._compiled_for(seccomp.MACHINE, policy))
syscalls.forbid_new_privileges()
calls.make()
async def main():
    try:
        backend = await choice.start("auto", {minimum!r})
    except Exception as error:
        print(error)
        return
    try:
        async with await backend.open() as box:
            print(backend.name, backend.report().level, (await box.exec("6 * 7")).value)
    finally:
        await backend.close()
asyncio.run(main())
"""


def _contained(minimum: str) -> Sequence[str]:
    done = subprocess.run(
        [sys.executable, "-c", _CONTAINED.format(minimum=minimum)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_where_nobody_can_make_namespaces_it_is_what_there_is_for_who_accepts_it():
    assert _contained("L2") == ["landlock L2 42"]


def test_who_asks_for_more_is_told_what_there_would_be():
    (said,) = _contained("L3-nolimit")
    assert "landlock: it reaches L2 here. namespaces is missing" in said
    assert "--min-isolation" in said
