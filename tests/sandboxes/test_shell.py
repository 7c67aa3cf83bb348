"""A real bash behind the host's side of the shell: what it keeps, and that no command breaks the next."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator

import pytest

from tests.sandboxes.backends import LOOPS
from toolyard.sandboxes.pipes import Capture
from toolyard.sandboxes.shell import ARGV, COMMAND_BYTES, Shell, refused

pytestmark = pytest.mark.anyio


@pytest.fixture(params=LOOPS)
def anyio_backend(request):
    return request.param


class Bash:
    """A shell without any sandbox around it."""

    def __init__(self, directory: str) -> None:
        pipes = [os.pipe() for _ in range(3)]
        (stdin, self.stdin), (self.out, stdout), (self.err, stderr) = pipes
        self.process = subprocess.Popen(ARGV, stdin=stdin, stdout=stdout, stderr=stderr, cwd=directory)
        for fd in (stdin, stdout, stderr):
            os.close(fd)
        self.overflown = 0
        self.shell = Shell(self.stdin, Capture(self.out, 0, self.full), Capture(self.err, 0, self.full))

    def full(self) -> None:
        self.overflown += 1

    async def run(self, command: str, output_bytes: int = 64 * 1024) -> tuple[int, bytes, bytes]:
        async with asyncio.timeout(20):
            code = await self.shell.run(command, output_bytes)
        return code, self.shell.stdout.take(), self.shell.stderr.take()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.stdin)
        self.shell.stdout.close()
        self.shell.stderr.close()


@pytest.fixture
async def bash(tmp_path) -> AsyncIterator[Bash]:
    bash = Bash(str(tmp_path))
    try:
        yield bash
    finally:
        bash.close()


async def test_what_a_shell_has_it_keeps(bash, tmp_path):
    assert await bash.run(
        "mkdir d; cd d; v='a  b'; export E=1; f() { echo \"f:$v\"; }; set -o pipefail; alias x=y"
    ) == (
        0,
        b"",
        b"",
    )
    assert await bash.run('pwd; echo "$v$E"; f; false | true') == (1, f"{tmp_path}/d\na  b1\nf:a  b\n".encode(), b"")
    assert await bash.run("exec 7>kept; echo one >&7") == (0, b"", b"")
    assert await bash.run("echo two >&7; cat kept") == (0, b"one\ntwo\n", b"")
    assert await bash.run("sleep 0.1 && echo done > later & job=$!") == (0, b"", b"")
    assert await bash.run("wait $job; cat later") == (0, b"done\n", b"")


async def test_output_is_exact_to_the_byte(bash):
    assert await bash.run("printf 'no newline'") == (0, b"no newline", b"")
    assert await bash.run("printf '\\0\\377\\n\\n' >&2; (exit 3)") == (3, b"", b"\0\xff\n\n")
    assert await bash.run("echo ä \udcff") == (0, "ä ".encode() + b"\xff\n", b"")
    assert await bash.run("true") == (0, b"", b"")


async def test_what_looks_like_our_own_words_is_output(bash):
    command = "echo 'builtin printf'; echo '0123456789abcdef0123456789abcdef=0'; echo =0"
    assert await bash.run(command) == (0, b"builtin printf\n0123456789abcdef0123456789abcdef=0\n=0\n", b"")


BREAKING = r"""
echo 'open
echo "open
echo `
if true
while :; do
( (
)
}
case x in
cat <<END
f() {
echo $((
echo ${
&&
;;
!
\
coproc
#
exec 9<&-
exec 1>&- 2>&-
exec >/dev/null 2>&1
exec </dev/zero
trap 'echo trapped' DEBUG
trap 'echo err' ERR; false
set -x
set -v
set -o posix
set -f
IFS=0123456789
shopt -s expand_aliases; alias builtin=false
eval() { :; }
printf() { :; }
unset PATH
PS4='$(echo hidden)'; set -x
set -o errtrace; set -T
ulimit -n 70
readonly x=1; x=2
return 3
break
continue
shift 9
umask 777
""".strip("\n").split("\n")


@pytest.mark.parametrize("command", [*BREAKING, "'\n'\n\"", "\n\n", ""])
async def test_no_command_breaks_the_next(bash, command):
    await bash.run("kept=1")
    await bash.run(command)
    code, stdout, _ = await bash.run('command -p echo "after $kept"; (exit 4)')
    if "IFS" in command:
        await bash.run("unset IFS")
    await bash.run("trap - DEBUG ERR; set +x +v")
    assert (code, stdout.replace(b"trapped\n", b"").replace(b"err\n", b"")) == (4, b"after 1\n")


async def test_a_command_has_no_input_and_none_of_our_descriptors(bash):
    assert await bash.run("cat; read line; echo $?") == (0, b"1\n", b"")
    assert await bash.run("ls /proc/self/fd") == (0, b"0\n1\n2\n3\n", b"")


async def test_tracing_shows_the_command_and_nothing_of_ours(bash):
    await bash.run("set -x")
    assert await bash.run("echo traced") == (0, b"traced\n", b"++ echo traced\n")


async def test_too_much_output_is_told_once_and_the_rest_is_dropped(bash):
    code, stdout, _ = await bash.run("head -c 300000 /dev/zero; echo end >&2", output_bytes=1000)
    assert (code, stdout, bash.overflown) == (0, bytes(1000), 1)
    assert await bash.run("echo fine") == (0, b"fine\n", b"")
    await bash.run("head -c 3000 /dev/zero", output_bytes=1000)
    assert bash.overflown == 2


async def test_output_of_jobs_in_the_background_does_not_break_the_answer(bash):
    await bash.run("(while :; do echo noise; echo noise >&2; done) & job=$!")
    for number in range(20):
        code, stdout, stderr = await bash.run(f"(exit {number})", output_bytes=10**7)
        assert code == number
        assert not (stdout + stderr).replace(b"noise\n", b"").strip(b"noise\n")
    await bash.run("kill $job; wait $job")
    assert await bash.run("echo quiet") == (0, b"quiet\n", b"")


async def test_a_large_command_is_fed_without_blocking(bash):
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.ensure_future(tick())
    text = "x" * 1_000_000
    assert await bash.run(f"v='{text}'; echo ${{#v}}") == (0, b"1000000\n", b"")
    ticking.cancel()
    assert ticks > 3


async def test_commands_are_quoted_whatever_is_in_them(bash):
    for text in ("it's", 'say "x"', "a\nb", "$HOME `id` $(id)", "\\", "''''", "\t\r", "!!", "{a,b}", "*", "~"):
        quoted = "'" + text.replace("'", "'\\''") + "'"
        assert await bash.run(f"printf %s {quoted}") == (0, text.encode(), b"")


async def test_the_end_of_the_shell_is_seen_by_who_waits_for_it(bash):
    running = asyncio.ensure_future(bash.shell.run("echo last; exit 7", 1000))
    await asyncio.wait_for(bash.shell.stdout.ended.wait(), 10)
    assert not running.done()
    running.cancel()
    assert bash.process.wait(10) == 7
    assert bash.shell.stdout.take() == b"last\n"


async def test_what_no_shell_could_read_is_refused():
    assert refused("echo fine") == ""
    assert "null" in refused("echo \0")
    assert "not text" in refused("\ud800")
    assert str(COMMAND_BYTES) in refused("x" * (COMMAND_BYTES + 1))
    assert refused("\udcff") == ""
