"""`ShellEnv`: cases 125 to 127, and a shell with several concurrent writers and readers."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.wires.wire import until
from toolyard import Client
from toolyard.core.errors import ToolError
from toolyard.core.output import AskAgain
from toolyard.sandboxes import Limits, Provider
from toolyard.testing import running
from toolyard.tools import shell_env
from toolyard.tools.environment import ToolsEnvironment
from toolyard.tools.live_shell import HEARD_MOST
from toolyard.tools.sandboxed import SessionSandbox
from toolyard.tools.shell_env import INSTANT, INTERRUPT, ShellEnv

pytestmark = pytest.mark.anyio

ASK_AGAIN = AskAgain("read_stdout", {"probe": True})


class Shells(ToolsEnvironment):
    toolsets = (ShellEnv,)


@pytest.fixture
async def shell(sandboxes: Provider) -> AsyncIterator[ShellEnv]:
    shell = ShellEnv(Shells())
    yield shell
    await shell.teardown()


async def said(shell: ShellEnv, line: str, end: str = "") -> str:
    """The first output of a line, for a client that polls, or everything up to `end`."""
    answer = await shell.write_stdin(line)
    while isinstance(answer, AskAgain):
        answer = await getattr(shell, answer.tool)(**answer.arguments)
    text = answer.removeprefix(INSTANT)
    async with asyncio.timeout(20):
        while not text.endswith(end):
            text += await shell.read_stdout()
    return text


def sleeping(number: int) -> bool:
    wanted = f"sleep\0{number}\0".encode()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if Path(f"/proc/{pid}/cmdline").read_bytes() == wanted:
                return True
        except OSError:  # it has ended
            continue
    return False


async def test_what_is_said_at_once_is_returned_standard_error_first(shell, monkeypatch):
    monkeypatch.setattr(shell_env, "INSTANT_SECONDS", 5)  # however busy the machine is
    assert await shell.write_stdin("echo hi") == "Instant shell output: hi\n"
    assert await shell.write_stdin("echo o; echo e >&2") == "Instant shell output: e\no\n"
    assert (
        await shell.write_stdin("no-such-program\n")
        == "Instant shell output: bash: no-such-program: command not found\n"
    )


async def test_125_what_comes_later_is_to_be_asked_for(shell):
    for arguments in (ASK_AGAIN.arguments, {}):
        assert await shell.write_stdin("sleep 1; echo done") == ASK_AGAIN
        assert await shell.read_stdout(**arguments) == "done\n"


async def test_126_whoever_asks_again_waits_until_something_comes(shell, monkeypatch):
    monkeypatch.setattr(shell_env, "PROBE_SECONDS", 0.3)
    assert await shell.write_stdin("sleep 1; echo done") == ASK_AGAIN
    began = time.monotonic()
    answers = [await shell.read_stdout(probe=True)]
    while answers[-1] == ASK_AGAIN:
        answers.append(await shell.read_stdout(probe=True))
    assert answers[-1] == "done\n"
    assert 2 <= len(answers) <= 5
    assert time.monotonic() - began > 0.5


async def test_127_after_the_shell_has_exited_reading_says_so_and_writing_starts_afresh(shell):
    assert await said(shell, "x=1; echo kept > file; cd /; echo $x") == "1\n"
    assert await shell.write_stdin("exit 3") == ASK_AGAIN
    began = time.monotonic()
    for probe in (True, False):
        with pytest.raises(
            ToolError, match=r"has ended with exit code 3\. The next .* fresh one in the same workspace"
        ):
            await shell.read_stdout(probe=probe)
    assert time.monotonic() - began < 1
    assert await said(shell, 'echo "[$x] $(cat file)"') == "[] kept\n"


async def test_reading_a_shell_that_nobody_has_written_to_is_an_error(shell):
    with pytest.raises(ToolError, match="not running"):
        await shell.read_stdout()


async def test_a_shell_keeps_its_directory_variables_and_unfinished_commands(shell):
    assert await said(shell, "mkdir d; cd d; x='a b!'") == ""
    assert await said(shell, 'basename "$PWD"; echo "$x!"', "!\n") == "d\na b!!\n"
    assert await said(shell, "for i in 1 2") == ""
    assert await said(shell, "do echo $i") == ""
    assert await said(shell, "done", "2\n") == "1\n2\n"
    assert await said(shell, "cd ..\nsleep 0.5\ncat <<END\n$x\nEND") == "a b!\n"
    assert await said(shell, "env | grep -c PS1; ls -a | grep history") == "0\n"


async def test_a_command_that_says_nothing_is_soon_over_for_who_asks(shell):
    began = time.monotonic()
    assert await shell.write_stdin("cd /") == ASK_AGAIN
    assert await shell.read_stdout(probe=True) == ""
    assert time.monotonic() - began < 2


async def test_without_a_question_there_is_nothing_to_wait_for_but_time(shell, monkeypatch):
    monkeypatch.setattr(shell_env, "PROBE_SECONDS", 0.3)
    monkeypatch.setattr(shell_env, "READ_SECONDS", 0.2)
    await said(shell, "echo hi")
    assert await shell.read_stdout(probe=True) == ASK_AGAIN
    assert await shell.read_stdout() == ""
    assert (await shell.write_stdin("(sleep 0.5; echo later) &")).startswith(f"{INSTANT}[1] ")
    heard = ""
    async with asyncio.timeout(10):
        while not heard:
            heard = await shell.read_stdout()
    assert heard == "later\n"


async def test_a_program_in_the_shell_reads_what_is_written(shell):
    assert await shell.write_stdin('python3 -c \'while True: print("<" + input() + ">", flush=True)\'') == ASK_AGAIN
    assert await said(shell, "one") == "<one>\n"
    assert await said(shell, "two") == "<two>\n"


async def test_what_is_no_text_is_shown_with_replacement_characters_and_halves_are_put_together(shell):
    assert await said(shell, r"printf 'a\xff\x00b\n'") == "a�\0b\n"
    assert await said(shell, r"printf '\xc3'; sleep 0.3; printf '\xa4\n'") == "ä\n"
    assert await said(shell, "echo ä\ud800") == "ä?\n"


async def test_several_who_write_and_read_at_once_lose_nothing(shell, monkeypatch):
    monkeypatch.setattr(shell_env, "READ_SECONDS", 0.5)
    await said(shell, "echo on")
    heard: list[str] = []

    async def listen() -> None:
        while sum(text.count("\n") for text in heard) < 200:
            heard.append(await shell.read_stdout())

    async def write(n: int) -> None:
        for m in range(10):
            answer = await shell.write_stdin(f"echo {n}.{m}; echo {n}.{m} >&2")
            if isinstance(answer, str):
                heard.append(answer.removeprefix(INSTANT))

    async with asyncio.timeout(30):
        await asyncio.gather(*(write(n) for n in range(10)), listen(), listen())
    assert sorted("".join(heard).split()) == sorted(2 * [f"{n}.{m}" for n in range(10) for m in range(10)])


async def test_who_gives_up_listening_loses_nothing(shell):
    assert await shell.write_stdin("sleep 0.3; for i in $(seq 40); do echo $i; sleep 0.01; done") == ASK_AGAIN
    heard = ""
    async with asyncio.timeout(20):
        while not heard.endswith("40\n"):
            reading = asyncio.ensure_future(shell.read_stdout())
            await asyncio.wait((reading,), timeout=0.015)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            heard += reading.result() if not reading.cancelled() else ""
    assert heard.split() == [str(n) for n in range(1, 41)]


async def test_the_last_words_of_a_shell_are_told_by_the_next(shell):
    assert await shell.write_stdin("sleep 0.5; echo last words; exit 4") == ASK_AGAIN
    await until(lambda: shell._shell.ended)
    assert await said(shell, "echo new", "new\n") == (
        "last words\n[The shell has ended with exit code 4. This is a fresh one.]\nnew\n"
    )


async def test_a_shell_that_floods_is_held_back_and_can_be_ended(shell):
    await said(shell, "echo on")
    before = _memory()
    for text in [await said(shell, "yes"), *[await shell.read_stdout() for _ in range(20)]]:
        assert set(text.split()) == {"y"}
        assert len(text) < 4 * HEARD_MOST
    await asyncio.sleep(0.5)
    assert _memory() - before < 32 * 2**20
    assert "The shell has ended with exit code 137. The next" in await said(shell, INTERRUPT)
    assert await said(shell, "echo fresh") == "fresh\n"


async def test_a_shell_that_does_not_read_is_told_of_and_can_be_ended(shell, monkeypatch):
    monkeypatch.setattr("toolyard.sandboxes.process._WRITE_SECONDS", 0.3)
    await shell.write_stdin("sleep 1000")
    with pytest.raises(ToolError, match="has not read its input"):
        await shell.write_stdin("x" * 500_000)
    with pytest.raises(ToolError, match="too many"):
        await shell.write_stdin("x" * 2_000_000)
    await said(shell, INTERRUPT)
    assert await said(shell, "echo fresh") == "fresh\n"


async def test_sessions_share_nothing_and_leave_nothing(shell):
    number = 6_000_000 + os.getpid()
    other = ShellEnv(Shells())
    await said(other, f"x=1; echo 1 > file; (setsid sleep {number} >/dev/null 2>&1 </dev/null &)")
    await until(lambda: sleeping(number))
    assert await said(shell, 'echo "[$x]$(ls)"') == "[]\n"
    await other.teardown()
    await until(lambda: not sleeping(number))
    assert await said(shell, "echo on") == "on\n"


async def test_it_works_in_the_workspace_of_the_session(shell):
    sandbox = await SessionSandbox.of(shell.env).get()
    await sandbox.write("given", b"from outside\n")
    assert await said(shell, "echo from inside > taken; cat given") == "from outside\n"
    assert await sandbox.read("taken") == b"from inside\n"
    await sandbox.shell("sleep 60", timeout=0.2)
    assert await said(shell, "echo on") == "on\n"


@pytest.mark.parametrize("limits", [Limits(processes=2), Limits(memory_bytes=2**16, open_files=64)])
async def test_where_there_is_no_room_for_a_shell_that_is_told(limits):
    async with Provider("subprocess" if limits.processes > 2 else "native", "L0", limits=limits):
        shell = ShellEnv(Shells())
        async with asyncio.timeout(15):
            with pytest.raises(ToolError, match="could not be started"):
                await shell.write_stdin("echo hi")
        await shell.teardown()


def test_over_ors_a_call_lasts_until_there_is_something_to_say(monkeypatch):
    monkeypatch.setattr(shell_env, "INSTANT_SECONDS", 0.5)
    with (
        running([Shells]) as server,
        Client(server.url) as client,
        client.environment("toolbox").session({}) as session,
    ):
        assert {"write_stdin", "read_stdout"} <= {spec.name for spec in session.list_tools()}
        call = session.call_tool
        assert call("write_stdin", {"content": "echo hi"}).blocks[0].text == "Instant shell output: hi\n"
        assert call("write_stdin", {"content": "sleep 1; echo done"}).blocks[0].text == "done\n"
        assert call("write_stdin", {"content": "cd /"}).text == ""
        assert call("write_stdin", {"content": "pwd"}).text == "Instant shell output: /\n"


def _memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
