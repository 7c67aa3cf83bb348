"""Interpreters alone in their sandboxes: for one piece of code, and gone after it, whatever happens."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import pytest

from tests.sandboxes import backends
from toolyard.core.errors import SandboxLost, SandboxUnavailable
from toolyard.sandboxes.base import Limits
from toolyard.sandboxes.native import agent_client, one_shot
from toolyard.sandboxes.native.backend import NativeBackend
from toolyard.sandboxes.native.one_shot import OneShotInterpreter
from toolyard.sandboxes.provider import Provider, execute, interpreter_once
from toolyard.sandboxes.template_loan import Lender

pytestmark = pytest.mark.anyio


@pytest.fixture(params=backends.LOOPS)
def anyio_backend(request):
    return request.param


@pytest.fixture
async def backend(anyio_backend) -> AsyncIterator[NativeBackend]:
    started = NativeBackend(templates=1, ready=0)
    await started.start()
    try:
        yield started
    finally:
        await started.close()
        assert not below(os.getpid())


def children(pid: int) -> Sequence[int]:
    found: list[int] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for listed in Path(f"/proc/{pid}/task").glob("*/children"):
            found += map(int, listed.read_text().split())
    return found


def below(pid: int) -> Sequence[int]:
    return [found for child in children(pid) for found in (child, *below(child))]


def template() -> int:
    (broker,) = children(os.getpid())
    (found,) = children(broker)
    return found


async def check_nothing_left(backend: NativeBackend) -> None:
    """The template takes a moment to notice."""
    async with asyncio.timeout(10):
        while below(template()):
            await asyncio.sleep(0.01)
    assert backend.count() == (0, 0)


@contextlib.asynccontextmanager
async def opened(backend: NativeBackend, limits: Limits | None = None) -> AsyncIterator[OneShotInterpreter]:
    interpreter = await backend.open_interpreter(limits)
    try:
        yield interpreter
    finally:
        await interpreter.close()


async def begun(interpreter: OneShotInterpreter) -> asyncio.Task[object]:
    """Code that never ends."""
    running = asyncio.ensure_future(interpreter.exec("while True: pass", timeout=60))
    await asyncio.sleep(0.1)
    assert not running.done()
    return running


async def test_one_process_is_all_that_there_is(backend):
    async with opened(backend) as interpreter:
        assert (await interpreter.exec("import os; os.getpid(), os.getppid(), os.listdir()")).value == "(1, 0, [])"
        assert len(below(template())) == 1
        assert backend.count() == (1, 0)
    await check_nothing_left(backend)


async def test_one_that_is_killed_from_outside_is_lost_and_no_failure_of_its_code(backend):
    async with opened(backend) as interpreter:
        running = await begun(interpreter)
        (process,) = below(template())
        os.kill(process, signal.SIGKILL)
        with pytest.raises(SandboxLost, match="killed from outside"):
            await running
        assert not interpreter.alive
        with pytest.raises(SandboxLost):
            await interpreter.exec("1")


async def test_one_whose_template_is_killed_is_lost_and_the_next_has_another(backend):
    async with opened(backend) as interpreter:
        running = await begun(interpreter)
        before = template()
        os.kill(before, signal.SIGKILL)
        with pytest.raises(SandboxLost):
            await running
    async with opened(backend) as another:
        assert (await another.exec("1 + 1")).value == "2"
    assert template() != before


SERVER = """
import asyncio
from toolyard.sandboxes.native.backend import NativeBackend
async def main():
    backend = NativeBackend(templates=1, ready=0)
    await backend.start()
    interpreter = await backend.open_interpreter()
    asyncio.ensure_future(interpreter.exec("import os; os.fork(); os.fork()\\nwhile True: pass", timeout=60))
    await asyncio.sleep(0.3)
    print("ready", flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


@contextlib.contextmanager
def serving() -> Iterator[int]:
    """The process of a server that uses one."""
    with subprocess.Popen([sys.executable, "-c", SERVER], stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == b"ready\n"
            yield server.pid
        finally:
            server.kill()


@pytest.mark.thorough
@pytest.mark.parametrize("whom", ["server", "broker", "template"])
async def test_none_outlives_what_it_came_from(whom):
    with serving() as server:
        (broker,) = children(server)
        (origin,) = children(broker)
        inside = below(origin)
        assert len(inside) == 4
        os.kill({"server": server, "broker": broker, "template": origin}[whom], signal.SIGKILL)
        async with asyncio.timeout(10):
            while any(is_alive(pid) for pid in inside):
                await asyncio.sleep(0.01)


BORROWER = """
import asyncio, socket, sys
from toolyard.sandboxes.base import Limits
from toolyard.sandboxes.template_loan import borrow
async def main():
    _, backend = await borrow(socket.socket(fileno=int(sys.argv[1])), Limits())
    interpreters = [await backend.open_interpreter() for _ in range(3)]
    running = [asyncio.ensure_future(one.exec("while True: pass", timeout=60)) for one in interpreters]
    await asyncio.wait(running, timeout=0.3)
    print("ready", flush=True)
    await asyncio.wait(running)
asyncio.run(main())
"""


async def test_none_outlives_the_process_that_borrowed_its_template(anyio_backend):
    others = children(os.getpid())
    async with Provider("native", ready=0) as provider:
        await provider.start()
        (broker,) = set(children(os.getpid())) - {*others}
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            argv = [sys.executable, "-c", BORROWER, str(theirs.fileno())]
            borrower = await asyncio.create_subprocess_exec(*argv, pass_fds=[theirs.fileno()], stdout=subprocess.PIPE)
            _, (line,), _, _ = await asyncio.to_thread(socket.recv_fds, ours, 1, 1)
            lender = Lender(socket.socket(fileno=line), provider)
            assert borrower.stdout is not None
            assert await borrower.stdout.readline() == b"ready\n"
            inside = [found for origin in children(broker) for found in below(origin)]
            assert len(inside) == 3
            borrower.kill()
            await borrower.wait()
            async with asyncio.timeout(10):
                while any(is_alive(pid) for pid in inside):
                    await asyncio.sleep(0.01)
            lender.close()


async def test_a_lender_hangs_up_on_what_is_no_question(anyio_backend):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        Lender(ours, None)
        theirs.send(b"what the author's code writes to a number of ours")
        assert await asyncio.to_thread(theirs.recv, 1) == b""


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_who_gives_up_and_closes_it_leaves_nothing(backend):
    async with opened(backend) as interpreter:
        running = await begun(interpreter)
        running.cancel()
    await check_nothing_left(backend)
    with pytest.raises(SandboxLost, match="closed"):
        await interpreter.exec("1")


async def test_who_gives_up_while_it_is_made_leaves_nothing(backend):
    for turns in range(12):
        opening = asyncio.ensure_future(backend.open_interpreter())
        for _ in range(turns):
            await asyncio.sleep(0)
        opening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await (await opening).close()
    await check_nothing_left(backend)


async def test_code_that_ended_its_interpreter_has_used_it_up(backend):
    async with opened(backend) as interpreter:
        assert (await interpreter.exec("import os; os._exit(3)")).state_lost
        with pytest.raises(SandboxLost, match="one piece of code"):
            await interpreter.exec("1")


async def test_one_that_cannot_answer_does_not_pass_for_one_that_did_well(backend):
    async with opened(backend) as interpreter:
        executed = await interpreter.exec("import sys; sys.modules['toolyard.sandboxes.native.wire'].encoded = None")
    assert executed.error.message == "the interpreter ended with code 126"
    assert executed.stderr == "toolyard: TypeError: 'NoneType' object is not callable\n"


async def test_walls_that_cannot_be_made_are_told(backend):
    """A file system of an impossible size."""
    with pytest.raises(SandboxLost, match=r"could not be set up: OSError: .*mount"):
        await backend.open_interpreter(Limits(disk_bytes=-1))
    async with opened(backend) as interpreter:
        assert (await interpreter.exec("1 + 1")).value == "2"


async def test_what_does_not_get_ready_is_lost_and_no_failure_of_its_user(backend, monkeypatch):
    for module, keeper, opens in (
        (one_shot, one_shot.OneShotKeeper, backend.open_interpreter),
        (agent_client, agent_client.AgentClient, backend.open),
    ):
        monkeypatch.setattr(module, "SECONDS", 0.05)
        monkeypatch.setattr(keeper, "_event", lambda *_: None)  # its message is ignored
        with pytest.raises(SandboxLost, match="it does not get ready"):
            await opens()
    monkeypatch.undo()
    async with opened(backend) as interpreter:
        assert (await interpreter.exec("1 + 1")).value == "2"


async def test_what_is_open_is_closed_with_the_backend(backend):
    running = await begun(await backend.open_interpreter())
    await backend.close()
    with contextlib.suppress(SandboxLost):
        assert (await running).state_lost
    with pytest.raises(SandboxUnavailable):
        await backend.open_interpreter()


async def test_those_made_in_advance_are_handed_out_and_replaced():
    async with Provider("native", ready=2) as sandboxes:
        pids = set()
        for _ in range(3):
            async with asyncio.timeout(10):
                while (sandboxes.count or (0, 0))[1] < 2 and pids:
                    await asyncio.sleep(0.01)
            pids.add((await execute("import os; os.stat('/proc/self/ns/pid').st_ino, os.urandom(4)")).value)
        assert len(pids) == 3


async def test_who_needs_it_once_goes_on_before_it_is_gone():
    async with Provider("native", ready=0) as sandboxes:
        async with interpreter_once() as interpreter:
            assert (await interpreter.exec("1 + 1")).value == "2"
        assert sandboxes.count == (1, 0)
        async with asyncio.timeout(10):
            while sandboxes.count != (0, 0):
                await asyncio.sleep(0.001)


async def test_a_backend_that_has_none_gives_a_whole_sandbox():
    async with Provider("subprocess", "L0"), interpreter_once() as interpreter:
        assert (await interpreter.exec("1 + 1")).value == "2"


async def test_hundreds_at_once_each_get_their_own_answer(backend):
    async def one(number: int) -> None:
        async with opened(backend) as interpreter:
            said = await interpreter.exec(
                f"import os\nos._exit({number % 100})" if number % 3 == 0 else f"{number} + 0"
            )
            if number % 3 == 0:
                assert said.error is not None
                assert said.error.message.endswith(f"code {number % 100}")
            else:
                assert said.value == str(number)

    for start in range(0, 200, 40):
        await asyncio.gather(*(one(number) for number in range(start, start + 40)))
    await check_nothing_left(backend)
