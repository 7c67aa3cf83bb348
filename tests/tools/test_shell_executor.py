"""`shell_command_executor`: case 121, and shells that outlive the call that started them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator

import pytest

from tests.tools.test_shell_env import sleeping
from tests.wires.wire import until
from toolyard import Client
from toolyard.core.errors import ToolError
from toolyard.sandboxes import Provider
from toolyard.testing import running
from toolyard.tools import shell_executor
from toolyard.tools.environment import ToolsEnvironment
from toolyard.tools.sandboxed import SessionSandbox
from toolyard.tools.shell_executor import KILLED, RUNNING, SHELLS_MOST, ShellExecutor

pytestmark = pytest.mark.anyio


class Executors(ToolsEnvironment):
    toolsets = (ShellExecutor,)


@pytest.fixture
async def executor(sandboxes: Provider) -> AsyncIterator[ShellExecutor]:
    executor = ShellExecutor(Executors())
    yield executor
    await executor.teardown()


async def run(executor: ShellExecutor, command: str = "", **options: object) -> dict:
    """A call of its only tool."""
    return await executor.shell_command_executor(command, **options)


async def failed(executor: ShellExecutor, command: str = "", **options: object) -> ToolError:
    with pytest.raises(ToolError) as caught:
        await run(executor, command, **options)
    return caught.value


async def test_121_a_command_gives_its_code_and_what_it_said(executor):
    assert await run(executor, "echo hi") == {"ReturnCode": 0, "display": "\nstdout:\nhi\n"}
    both = {"ReturnCode": 0, "display": "\nstderr:\ne\n\nstdout:\no\n"}
    assert await run(executor, "echo o; echo e >&2") == both
    assert await run(executor) == {"ReturnCode": 0, "display": ""}


async def test_121_a_command_that_fails_is_an_error_with_the_same_object(executor):
    assert (await failed(executor, "exit 3")).detail == {"ReturnCode": 3, "display": ""}
    error = await failed(executor, "echo o; echo e >&2; false")
    assert error.detail == {"ReturnCode": 1, "display": "\nstderr:\ne\n\nstdout:\no\n"}
    assert str(error) == "ReturnCode: 1\nstderr:\ne\n\nstdout:\no\n"
    assert await run(executor, "exit 3", kill=True) == {"ReturnCode": 3, "display": ""}


async def test_a_command_that_is_waited_for_takes_all_that_it_started_with_it(executor):
    number = 7_000_000 + os.getpid()
    began = time.monotonic()
    command = f"(setsid sleep {number} >/dev/null 2>&1 </dev/null &); sleep {number} & echo on"
    assert (await run(executor, command))["display"] == "\nstdout:\non\n"
    assert time.monotonic() - began < 5
    await until(lambda: not sleeping(number))


async def test_a_command_that_takes_too_long_is_ended_and_what_it_said_is_told(executor, monkeypatch):
    monkeypatch.setattr(shell_executor, "SECONDS", 0.5)
    error = await failed(executor, "echo begun; sleep 60")
    assert str(error) == "Timeout while executing command.\nstdout:\nbegun\n"
    assert error.detail is None


async def test_what_no_command_can_be_is_refused_and_a_long_one_is_not(executor):
    assert "null character" in str(await failed(executor, "echo a\0b"))
    assert "-x: command not found" in str(await failed(executor, "-x"))
    assert "not text" in str(await failed(executor, "echo \ud800", run_async=True))
    assert (await run(executor, f": {'x' * 500_000}; cat; echo on"))["display"] == "\nstdout:\non\n"


async def test_output_that_is_no_text_or_too_much_is_shown_as_well_as_can_be(executor):
    assert (await run(executor, r"printf 'a\xffb'"))["display"] == "\nstdout:\na�b"
    detail = (await failed(executor, "yes")).detail
    assert detail["ReturnCode"] == 137
    assert "it wrote more output than it may" in detail["display"]
    assert len(detail["display"]) < 70_000


async def test_a_shell_that_goes_on_keeps_its_state_and_is_asked_by_its_number(executor):
    answer = await run(executor, "mkdir d; cd d; echo on", run_async=True)
    assert answer == {"shell_id": 0, "display": "\nstdout:\non\n", "status": RUNNING}
    assert (await run(executor, "basename $PWD", run_async=True, shell_id=0))["display"] == "\nstdout:\nd\n"
    assert (await run(executor, "true", run_async=True, shell_id=0))["display"] == ""
    assert (await run(executor, "echo other", run_async=True))["shell_id"] == 1
    assert (await run(executor, "ls"))["display"] == "\nstdout:\nd\n"


async def test_what_a_shell_says_later_is_told_to_who_asks_later(executor, monkeypatch):
    monkeypatch.setattr(shell_executor, "SILENT_SECONDS", 0.3)
    assert await run(executor, "sleep 1; echo late", run_async=True) == {
        "shell_id": 0,
        "display": "",
        "status": RUNNING,
    }
    monkeypatch.setattr(shell_executor, "SILENT_SECONDS", 10)
    assert (await run(executor, shell_id=0, run_async=True))["display"] == "\nstdout:\nlate\n"


async def test_one_that_keeps_talking_is_listened_to_for_a_while(executor, monkeypatch):
    monkeypatch.setattr(shell_executor, "GATHER_SECONDS", 0.7)
    answer = await run(executor, "while :; do echo x; sleep 0.1; done", run_async=True)
    assert 3 <= answer["display"].count("x\n") <= 20
    assert answer["status"] == RUNNING


async def test_a_shell_ends_when_it_is_killed(executor):
    number = 8_000_000 + os.getpid()
    command = f"echo on; (setsid sleep {number} >/dev/null 2>&1 </dev/null &)"
    await run(executor, command, run_async=True)
    await until(lambda: sleeping(number))
    assert await run(executor, shell_id=0, kill=True) == {"shell_id": 0, "display": "", "status": KILLED}
    await until(lambda: not sleeping(number))
    error = await failed(executor, shell_id=0, kill=True)
    assert error.detail == {"Error": "Shell not found or has been closed."}
    answer = await run(executor, "echo once", run_async=True, kill=True)
    assert answer == {"shell_id": 1, "display": "\nstdout:\nonce\n", "status": KILLED}


async def test_a_shell_ends_when_it_exits(executor):
    assert (await failed(executor, "echo bye; exit 4", run_async=True)).detail == {
        "shell_id": 0,
        "ReturnCode": 4,
        "display": "\nstdout:\nbye\n",
    }
    assert (await run(executor, "exit", run_async=True))["ReturnCode"] == 0
    for number in (0, 1, 2, -1):
        assert "not found" in str(await failed(executor, shell_id=number, run_async=True))


async def test_a_shell_ends_with_a_command_that_is_waited_for(executor, monkeypatch):
    await run(executor, "x=kept", run_async=True)
    answer = await run(executor, "sleep 0.5; cat; echo $x; sh -c 'exit 0'", shell_id=0)
    assert answer == {"ReturnCode": 0, "display": "\nstdout:\nkept\n"}
    assert "not found" in str(await failed(executor, shell_id=0))
    await run(executor, "true", run_async=True)
    assert (await failed(executor, "(exit 5)", shell_id=1)).detail == {"ReturnCode": 5, "display": ""}
    monkeypatch.setattr(shell_executor, "SECONDS", 0.5)
    await run(executor, "true", run_async=True)
    assert str(await failed(executor, "echo a; sleep 60", shell_id=2)).startswith("Timeout while executing command.")
    await run(executor, "true", run_async=True)
    assert "more output than it may" in str(await failed(executor, "yes", shell_id=3))


async def test_there_are_so_many_shells_and_no_more(executor):
    answers = await asyncio.gather(*(run(executor, f"echo {n}", run_async=True) for n in range(SHELLS_MOST)))
    assert sorted(answer["shell_id"] for answer in answers) == list(range(SHELLS_MOST))
    assert "kill one of 0, 1," in str(await failed(executor, "echo", run_async=True))
    await run(executor, shell_id=3, kill=True)
    assert (await run(executor, "echo on", run_async=True))["shell_id"] == SHELLS_MOST


async def test_a_shell_that_does_not_take_its_first_command_is_none(executor):
    assert "does not take this" in str(await failed(executor, f"#{'x' * 2**20}", run_async=True))
    assert executor._shells == {}
    assert (await run(executor, "echo on", run_async=True))["shell_id"] == 0
    assert "does not take this" in str(await failed(executor, f"#{'x' * 2**20}", run_async=True, shell_id=0))
    assert (await run(executor, "echo still", run_async=True, shell_id=0))["display"] == "\nstdout:\nstill\n"


async def test_sessions_share_nothing_and_leave_nothing(executor):
    number = 9_000_000 + os.getpid()
    other = ShellExecutor(Executors())
    command = f"echo 1 > file; echo on; (setsid sleep {number} >/dev/null 2>&1 </dev/null &)"
    assert (await run(other, command, run_async=True))["shell_id"] == 0
    await until(lambda: sleeping(number))
    assert "not found" in str(await failed(executor, shell_id=0))
    assert (await run(executor, "ls"))["display"] == ""
    await other.teardown()
    await until(lambda: not sleeping(number))


async def test_it_works_in_the_workspace_of_the_session(executor):
    sandbox = await SessionSandbox.of(executor.env).get()
    await sandbox.write("given", b"from outside\n")
    assert (await run(executor, "cat given", run_async=True))["display"] == "\nstdout:\nfrom outside\n"
    assert (await run(executor, "cat given; pwd -P"))["display"].startswith("\nstdout:\nfrom outside\n")


def test_over_ors_the_result_is_json_and_a_failure_is_text():
    with (
        running([Executors]) as server,
        Client(server.url) as client,
        client.environment("toolbox").session({}) as session,
    ):
        (spec,) = (spec for spec in session.list_tools() if spec.name == "shell_command_executor")
        assert list(spec.input_schema["properties"]) == ["command", "run_async", "shell_id", "kill"]
        assert "required" not in spec.input_schema
        output = session.call_tool("shell_command_executor", {"command": "echo hi"})
        assert output.text == '{"ReturnCode": 0, "display": "\\nstdout:\\nhi\\n"}'
