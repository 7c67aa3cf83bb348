"""Sandboxes of sessions in other processes: the server's templates make them, and only their session uses them."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import anyio
import pytest

from tests.placement.test_processes import PLACES, value
from tests.placement.worlds import Counting
from tests.tiers import first
from tests.wires.wire import H, Wire, until
from toolyard import tool
from toolyard.core.errors import SandboxUnavailable
from toolyard.sandboxes import open_sandbox, tool_output
from toolyard.sandboxes.native import wire as packets
from toolyard.sandboxes.native.backend import NativeBackend
from toolyard.sandboxes.native.channel import pair
from toolyard.sandboxes.process_based.launcher import tree
from toolyard.sandboxes.template_loan import Lender
from toolyard.testing import Running, running

pytestmark = pytest.mark.anyio


class Programs(Counting):
    uses_sandbox = True

    async def setup(self):
        self.sandbox = await open_sandbox()

    async def teardown(self):
        await self.sandbox.close()

    @tool
    async def run(self, code: str) -> object:
        return tool_output(await self.sandbox.exec(code))

    @tool
    async def again(self, profile: str = "plain") -> str:
        """In another sandbox."""
        await self.sandbox.close()
        self.sandbox = await open_sandbox(profile=profile)
        return "opened"


class Secretive(Counting):
    @tool
    async def begin(self) -> str:
        self.sandbox = await open_sandbox()
        return (await self.sandbox.exec("print(1 + 1)")).stdout.strip()

    @tool
    async def stop(self) -> str:
        await self.sandbox.close()
        return "closed"


OPEN: list[IO[bytes]] = []
"""Files that the module of an environment has opened, for example for its log."""


class Logging(Programs):
    @tool
    async def log(self) -> int:
        for file in OPEN:
            file.write(b"to a file")
            file.close()
        return len(OPEN)


@pytest.fixture(scope="module", params=PLACES)
def served(request: pytest.FixtureRequest) -> Iterator[Running]:
    with running([Programs], placement=request.param, pool_processes=2, sandboxes_ready=0) as server:
        yield server


async def opened(wire: Wire) -> str:
    return await wire.open(env_name="programs", task_spec={})


async def run(wire: Wire, sid: str, code: str) -> str:
    return (await value(wire, sid, "run", env="programs", code=code)).strip()


def first_processes() -> set[int]:
    """Process 1 of every sandbox of this server, by host pid."""
    return {pid for pid in tree(os.getpid()) if pid_inside(pid) == 1}


def pid_inside(pid: int) -> int:
    """Its pid in its own namespace."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[-1]) for line in lines if line.startswith("NSpid:") and len(line.split()) == 3), 0)


def user_of(pid: int) -> int:
    return Path(f"/proc/{pid}").stat().st_uid


async def test_sessions_have_sandboxes_of_their_own_from_templates_that_they_share(wire):
    before = first_processes()
    one, other = await opened(wire), await opened(wire)
    assert await run(wire, one, "x = 1; print(x)") == "1"
    assert "NameError" in await run(wire, other, "print(x)")
    for sid in (one, other):
        worker = int(await value(wire, sid, "where", env="programs"))
        assert tree(worker) == [worker]
    assert await run(wire, one, "print(x)") == "1"
    new = first_processes() - before
    assert len(new) == 2
    if os.getuid() == 0:  # then each has its own user
        assert len({user_of(pid) for pid in new}) == 2


async def test_a_sandbox_ends_with_the_process_that_asked_for_it_and_no_other_does(wire):
    before = first_processes()
    one = await opened(wire)
    of_one = first_processes() - before
    other = await opened(wire)
    assert await run(wire, other, "y = 2; print(y)") == "2"
    os.kill(int(await value(wire, one, "where", env="programs")), signal.SIGKILL)
    await until(lambda: not of_one & first_processes())
    assert await run(wire, other, "print(y)") == "2"


async def test_when_the_templates_have_gone_a_session_gets_its_next_sandbox_from_new_ones(served, wire):
    sid = await opened(wire)
    assert await run(wire, sid, "print(1)") == "1"
    broker = served.server.sandboxes._backend._process.pid
    os.kill(broker, signal.SIGKILL)
    await until(lambda: not first_processes())
    with anyio.fail_after(30):
        assert await value(wire, sid, "again", env="programs") == "opened"
    assert await run(wire, sid, "print(2)") == "2"


@pytest.mark.parametrize("placement", first(PLACES, 1))
async def test_a_session_that_uses_files_which_its_module_has_opened_disturbs_no_line_of_ours(placement):
    """A session's process has lost those files, and must have nothing else under their numbers."""
    with ExitStack() as stack:
        OPEN[:] = [stack.enter_context(tempfile.TemporaryFile(buffering=0)) for _ in range(40)]
        server = stack.enter_context(running([Logging], placement=placement, pool_processes=1))
        async with Wire(server.url) as wire:
            sid = await wire.open(env_name="logging", task_spec={})
            assert (await value(wire, sid, "run", env="logging", code="x = 1; print(x)")).strip() == "1"
            assert await value(wire, sid, "log", env="logging") == "40"
            assert (await value(wire, sid, "run", env="logging", code="print(x)")).strip() == "1"
            assert await value(wire, sid, "again", env="logging") == "opened"
            await wire.end(sid)
        assert [file.seek(0, os.SEEK_END) for file in OPEN] == [0] * 40


@pytest.mark.thorough
async def test_every_profile_is_lent(wire):
    sid = await opened(wire)
    assert await run(wire, sid, "import sys; print('numpy' in sys.modules)") == "False"
    assert await value(wire, sid, "again", env="programs", profile="scientific") == "opened"
    assert await run(wire, sid, "import sys; print('numpy' in sys.modules)") == "True"


async def test_a_profile_that_there_is_not_is_the_authors_mistake_and_keeps_nobody_waiting(wire):
    sid = await opened(wire)
    with anyio.fail_after(10):
        told = await wire.call(sid, "again", {"profile": "fancy"}, env="programs")
    assert "fancy" in str(told.events[-1].data)


async def test_what_has_no_templates_is_started_where_it_is_needed():
    with running(
        [Programs], placement="process", sandbox="subprocess", min_isolation="L0", allow_visible_source=True
    ) as server:
        async with Wire(server.url) as wire:
            sid = await opened(wire)
            assert await run(wire, sid, "print(3)") == "3"
            await wire.end(sid)


async def test_a_session_that_opened_a_sandbox_without_saying_so_is_not_forked_while_it_has_it():
    with running([Secretive], placement="process") as server:
        async with Wire(server.url) as wire:
            sid = await wire.open(env_name="secretive", task_spec={})
            await value(wire, sid, "begin", env="secretive")
            response = await wire.post("/secretive/fork", headers=H(sid), json={})
            assert (response.status_code, "it has 1 sandboxes open" in response.json()["detail"]) == (409, True)
            await value(wire, sid, "stop", env="secretive")
            response = await wire.post("/secretive/fork", headers=H(sid), json={})
            assert response.json()["strategy"] == "process"
            for each in (sid, *response.json()["sids"]):
                assert await value(wire, each, "begin", env="secretive") == "2"
                await wire.end(each)


async def test_a_template_with_all_the_files_that_it_may_have_says_so_and_goes_on():
    backend = NativeBackend(ready=0, templates=1)
    await backend.start()
    lines: list[socket.socket] = []
    try:
        (zygote,) = tree(backend._process.pid)[1:2]
        resource.prlimit(zygote, resource.RLIMIT_NOFILE, (300, 300))
        with pytest.raises(SandboxUnavailable, match="may have no more files open"):
            await borrow_all(backend, lines)
        async with asyncio.timeout(10), await backend.open() as sandbox:
            assert (await sandbox.exec("print(5)")).stdout == "5\n"
    finally:
        for line in lines:
            line.close()
        await backend.close()


async def borrow_all(backend: NativeBackend, lines: list[socket.socket]) -> None:
    for _ in range(300):
        lines += (await backend.lend("plain"))[1]


async def test_somebody_who_does_not_listen_keeps_no_one_else_waiting():
    backend = NativeBackend(ready=0, templates=1)
    await backend.start()
    try:
        _, (line,) = await backend.lend("plain")
        line.settimeout(10)
        await asyncio.to_thread(ask_and_never_listen, line)
        assert len(backend._templates["plain"].alive) == 1
        async with asyncio.timeout(10), await backend.open() as sandbox:
            assert (await sandbox.exec("print(4)")).stdout == "4\n"
    finally:
        await backend.close()


async def test_a_process_that_says_what_is_no_message_is_hung_up_on():
    line, theirs = pair()
    with line:
        Lender(theirs, None)
        line.send(b"printed by somebody else\n")
        line.settimeout(10)
        assert await asyncio.to_thread(line.recv, 1) == b""


def ask_and_never_listen(line: socket.socket) -> None:
    """Send requests and read no answers, until the other side closes."""
    with line, pytest.raises(ConnectionError):
        ask_all(line, 100_000)


def ask_all(line: socket.socket, count: int) -> None:
    one, other = pair()
    with one, other:
        for number in range(count):
            packets.send(line, {"op": "join", "id": number}, fds=[other.fileno()])
