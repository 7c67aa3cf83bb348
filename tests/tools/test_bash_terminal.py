"""`bash_terminal`: cases 88 to 94, splitting scripts, and a shell that lives as long as its trajectory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.wires.verl_wire import Observed, Trainer
from tests.wires.wire import until
from toolyard import Client
from toolyard.testing import Running, running
from toolyard.tools.bash_terminal import ENDED, LOST, ShellForm, blocked
from toolyard.tools.environment import named_toolsets, toolbox
from toolyard.tools.shell_lines import commands

pytestmark = pytest.mark.anyio

PROMPT = "user@bash-session:~$ "


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running([], tools="bash_terminal") as server:
        yield server


@pytest.fixture
async def trainer(server: Running) -> AsyncIterator[Trainer]:
    async with Trainer(server.url) as trainer:
        yield trainer


@pytest.fixture
async def trajectory(trainer: Trainer, request: pytest.FixtureRequest) -> AsyncIterator[str]:
    yield request.node.name
    await trainer.finish(request.node.name)


async def typed(trainer: Trainer, trajectory: str, script: str) -> str:
    seen = await trainer.act(trajectory, f"<bash>{script}</bash>")
    assert (seen.done, seen.valid) == (False, True)
    assert seen.text.startswith("\n<o>\n")
    assert seen.text.endswith("\n</o>\n")
    return seen.text.removeprefix("\n<o>\n").removesuffix("\n</o>\n")


async def output(trainer: Trainer, trajectory: str, script: str) -> str:
    """Without the prompts of one command."""
    _, _, shown = (await typed(trainer, trajectory, script)).partition(script + "\n")
    return shown


# The form of calls and results.


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("<bash>a</bash> <bash>\nb\n</bash>", "a\nb"),
        ("<bash></bash>", ""),
        ("```bash\na\n```", "a"),
        ("``` sh\na\n```", "a"),
        ("```\nshell\na\n```", "a"),
        ("```shell\na\n```\n```sh\nb\n```", "a\nb"),
        ("```terminal\na\n```", "a"),
        ("```terminal\na\n```\n```sh\nb\n```", "b"),
        ("```sh\na\n```<bash>b</bash>", "b"),
        ("```bash\nunfinished", None),
        ("```shellcheck\na\n```", None),
        ("<BASH>a</BASH>", None),
    ],
)
def test_commands_are_found_in_tags_or_else_in_fences(text, command):
    assert ShellForm().read(text) == (None if command is None else {"command": command})


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<bash>a</bash>```output", "\nR\n```\n"),
        ("<tool_call>a</tool_call>", "\n```output\nR\n```\n"),
        ("<bash>a</bash><o>", "\nR\n</o>\n"),
        ("<bash>a</bash>", "\n<o>\nR\n</o>\n"),
        ("<bash>a</bash>\n", "\n<o>\nR\n</o>\n"),
        ("```sh\na\n```<|calling system for feedback|>", "\n```output\nR\n```\n"),
        ("<bash>a<|calling system for feedback|>", "\n<o>\nR\n</o>\n"),
        ("a<|calling system for feedback|>", "\nR\n"),
        ("```bash\na\n```", "\n```output\nR\n```\n"),
        ("```bash\na\n```\n```", "output\nR\n```\n"),
        ("```terminal\na\n```", "\n```output\nR\n```\n"),
        ("``` bash\na\n``` then", "\nR\n"),
    ],
)
def test_the_result_is_wrapped_as_the_text_asks(text, answer):
    assert ShellForm().answer(text, "R") == answer


# Splitting scripts into commands.

COMPLETE = [
    "echo a",
    "",
    "   ",
    "# it's a comment (",
    "echo a; echo b & wait",
    'echo \'a\n(b\n\' "c\n$(echo "d\n")"',
    "echo a \\\n  b",
    "echo $'it\\'s\n' $\"x\n\" \\' \\\" \\(",
    "ls |\n  sort |\n\n  uniq",
    "true &&\n# between\n  echo yes ||\n  echo no",
    "for i in 1 2 3; do echo $i; done",
    "for i in 1 2 3\ndo\n  echo $i\ndone > f",
    "for x do echo; done",
    "for x\nin a b\ndo echo $x\ndone",
    "for ((i = 0; i < 3; i++)); do\n  echo $i\ndone",
    "for ((i = 0; i < 3; i++))\n{\n  echo $i\n}",
    "for in in in for do done; do echo $in; done",
    "while read -r line\ndo\n  echo $line\ndone < f",
    "until true\ndo break; done",
    "select x in a b; do break\ndone",
    "if true; then\n  echo if\nelif false\nthen echo\nelse\n  :\nfi",
    "if true; then if true; then :; fi fi",
    "echo if then; echo done; echo fi",
    "case $x in\n  a | b) echo 1 ;;\n  (c)\n    echo 2 ;&\n  *) for i in 1; do\n    :\n  done\nesac",
    "case esac in\n(esac) echo ;; esac",
    "case x in esac",
    "f() {\n  local x='}'\n  echo \"$x\"\n}",
    "f ( )\n{\n  :\n}",
    "function f\n{\n  :\n}",
    "function f() (\n  :\n)",
    "{ echo a\n  echo b; } 2>&1 | cat",
    "(\n  cd /\n  ls\n) > /dev/null",
    "x=$(\n  echo ')'\n  # comment with ' and )\n  case a in a) ;; esac\n)",
    'echo `echo "\n"`',
    'echo ${x:-\'}\n\'} "${y:-"a\n"}" ${#z} ${z#\\}}',
    "a=(1 2\n  # three\n  '3)'\n)",
    "a+=([x]=1\n)",
    "(( a = (1\n  + 2) << 3 ))",
    "echo $((1 + (2\n<< 3)))",
    "((echo a); echo b\n)",
    "[[ -f x &&\n  a < b ]]",
    "[[ $x =~ ^(a|b)$ ]] && echo $(( 1 ))",
    "cat <<EOF\nit's $(open \" (\n EOF\nEOF",
    "cat <<'E F' > f\n\\\nE F",
    "cat <<-EOF\n\ta\n\tEOF",
    "cat <<EOF\na\\\nEOF\nEOF",
    'cat <<A - <<"B"\n1\nA\n2\nB',
    "if true; then cat <<EOF\nfi\nEOF\nfi",
    "x=$(cat <<'EOF'\n)\nEOF\n)",
    "cat <<EOF |\nx\nEOF\n  tr x y",
    "cat <<< 'a\nb'",
    "diff <(echo a\n) <(ls)",
    "tee >(cat\n) < f",
    "! true",
    "time ls",
    "echo a#b 'c'#d",
    "python3 - <<'PY'\nprint('''\n\"\n''')\nPY",
    "awk '\n{ print $1 }\n' f",
    "while :; do break; do\\\nne; i\\\nf :; then :; fi",
    "echo é → \N{GRINNING FACE}",
]


@pytest.mark.parametrize("command", COMPLETE)
def test_a_command_is_one_whatever_stands_around_it(command):
    assert commands(f"echo before\n{command}\necho after") == ["echo before", command, "echo after"]


def needs_more(script: str) -> bool:
    """Whether bash says that the script ends too early."""
    done = subprocess.run(["bash", "-n"], check=False, input=script, text=True, capture_output=True)
    return any(sign in done.stderr for sign in ("end of file", "unexpected EOF", "by end-of-file", "`EOF'"))


@pytest.mark.parametrize("command", [command for command in COMPLETE if "\n" in command])
def test_bash_agrees_that_it_is_one_command(command):
    assert not needs_more(command + "\n")
    lines = command.split("\n")
    for count in range(1, len(lines)):
        begun = "\n".join(lines[:count]) + "\n"
        assert needs_more(begun) or begun.endswith("\\\n")


def test_scripts_put_together_at_random_fall_apart_into_what_they_were_made_of():
    dice = random.Random(4)
    frames = [
        "if true\nthen\n{}\nfi",
        "for i in 1\ndo\n{}\ndone",
        "(\n{}\n)",
        "f() {{\n{}\n}}",
        "x=$(\n{}\n)",
        "{{\n{}\n}} |\ncat",
    ]
    for _ in range(300):
        parts = dice.choices(COMPLETE, k=dice.randint(1, 5))
        for at in range(len(parts)):
            while dice.random() < 0.5:
                body = [command for command in dice.choices(COMPLETE, k=3) if command.strip() and command[0] != "#"]
                parts[at] = dice.choice(frames).format("\n".join([parts[at], *body, ":"]))
        assert commands("\n".join([*parts, "echo end"])) == [*parts, "echo end"]


@pytest.mark.parametrize(
    ("script", "parts"),
    [
        ("fi\necho a", ["fi", "echo a"]),
        ("if true; then\n)\necho a", ["if true; then\n)", "echo a"]),
        ("echo (a)\necho b", ["echo (a)", "echo b"]),
        ("done; echo 'a\necho b", ["done; echo 'a", "echo b"]),
        ("for i in 1; do\n}\ndone", ["for i in 1; do\n}", "done"]),
        ("echo 'open\necho b\n", ["echo 'open\necho b"]),
        ("cat <<EOF\na\nb", ["cat <<EOF\na\nb"]),
        ("echo a &&\n", ["echo a &&"]),
        ("", [""]),
        ("\n\n", ["", ""]),
    ],
)
def test_what_is_wrong_ends_with_its_line_and_what_is_open_with_the_script(script, parts):
    assert commands(script) == parts


@pytest.mark.parametrize(
    "script",
    [
        "${" * 50_000 + "\n",
        "$((" * 20_000 + ") " * 40_000 + "\nls",
        "((" * 20_000 + ") " * 40_000 + "\nls",
        '"$(' * 30_000 + "\n",
        "if x\n" * 20_000,
        "a=(\n" * 20_000,
        "`" * 99_999 + "\n",
        "<(\n" * 20_000,
        "cat <<A\n" * 2_000,
        "'\n" * 50_001,
    ],
)
def test_no_script_takes_long_to_take_apart(script):
    began = time.process_time()
    assert "".join(f"{command}\n" for command in commands(script)).rstrip("\n") == script.rstrip("\n")
    assert time.process_time() - began < 2


# The shell.


async def test_88_a_command_is_shown_after_its_prompt_with_what_it_wrote(trainer):
    seen = await trainer.act("88", "<bash>echo 'Hello from Bash!'</bash>")
    shown = "\n<o>\nuser@bash-session:~$ echo 'Hello from Bash!'\nHello from Bash!\n</o>\n"
    assert seen == Observed(shown, done=False, valid=True)
    await trainer.finish("88")


async def test_89_variables_last_until_the_trajectory_is_over(trainer, server):
    for end in ("finish", "is_last_step"):
        await typed(trainer, end, "export X=value\nY=too")
        assert await output(trainer, end, "echo $X $Y") == "value too"
        assert await output(trainer, "another", "echo $X") == ""
        if end == "finish":
            await trainer.finish(end)
        else:
            await trainer.act(end, "<bash>echo $X</bash>", is_last_step=[True])
        assert f"verl:{end}" not in server.server.runtime.sessions
        assert await output(trainer, end, "echo $X") == ""
        await trainer.finish(end, "another")
    await until(lambda: not server.server.runtime.sessions)


async def test_90_the_prompt_shows_the_directory_which_is_kept(trainer, trajectory):
    assert await typed(trainer, trajectory, "mkdir -p d/e\ncd d") == f"{PROMPT}mkdir -p d/e\n{PROMPT}cd d"
    shown = await typed(trainer, trajectory, "pwd\ncd e && cd /usr\ncd ~")
    assert shown == (
        "user@bash-session:~/d$ pwd\n/home/work/d\nuser@bash-session:~/d$ cd e && cd /usr\nuser@bash-session:/usr$ cd ~"
    )
    await typed(trainer, trajectory, "HOME=~/d; cd ~/dd 2>/dev/null || mkdir ~/../dd && cd ~/../dd")
    assert await typed(trainer, trajectory, "# here") == "user@bash-session:/home/work/dd$ # here"


async def test_91_a_loop_is_one_command(trainer, trajectory):
    loop = "for i in 1 2\ndo\n  echo $i\ndone"
    assert await typed(trainer, trajectory, f"{loop}\necho end") == f"{PROMPT}{loop}\n1\n2\n{PROMPT}echo end\nend"


async def test_92_exit_codes_are_shown_and_known_to_the_next_command(trainer, trajectory):
    shown = await typed(trainer, trajectory, "false\necho $?\necho $?\n(exit 7)")
    assert shown == (
        f"{PROMPT}false\nCommand exited with code 1\n{PROMPT}echo $?\n1\n{PROMPT}echo $?\n0\n"
        f"{PROMPT}(exit 7)\nCommand exited with code 7"
    )
    assert await output(trainer, trajectory, "echo $?") == "7"
    assert await output(trainer, trajectory, "ls /none") == "ls: cannot access '/none': No such file or directory"


async def test_here_documents_quotes_functions_and_aliases_work_and_are_kept(trainer, trajectory):
    script = "cat <<EOF > f\nit's $HOME\nEOF\nf() {\n  echo \"f of $1\"\n}\nalias e='echo aliased'\ne\n"
    await typed(trainer, trajectory, script)
    assert await output(trainer, trajectory, "cat f; f x; e") == "it's /home/work\nf of x\naliased"
    assert await output(trainer, trajectory, "echo 'two\n  lines' \\\n  \\\\ \"'\" é") == "two\n  lines \\ ' é"
    assert (await typed(trainer, trajectory, "a=(1\n2\n3)\necho ${a[2]}")).endswith("$ echo ${a[2]}\n3")


async def test_bash_speaks_as_in_a_terminal(trainer, trajectory):
    assert await output(trainer, trajectory, "nosuchprogram") == "bash: nosuchprogram: command not found"
    assert (await output(trainer, trajectory, "fi")).startswith("bash: syntax error near unexpected token `fi'")
    assert "unexpected EOF" in await output(trainer, trajectory, "echo 'open")
    assert await output(trainer, trajectory, "echo 'closed'") == "closed"


async def test_output_is_shown_as_it_is_and_standard_input_is_empty(trainer, trajectory):
    shown = await typed(trainer, trajectory, "printf 'no end'\nprintf '\\n a \\n\\n'\necho o; echo e >&2\ncat\nread x")
    assert shown == (
        f"{PROMPT}printf 'no end'\nno end\n{PROMPT}printf '\\n a \\n\\n'\n\n a\n"
        f"{PROMPT}echo o; echo e >&2\no\ne\n{PROMPT}cat\n{PROMPT}read x\nCommand exited with code 1"
    )
    assert await output(trainer, trajectory, "printf 'a\\0b\\377'") == "a\0b\N{REPLACEMENT CHARACTER}"


async def test_blank_lines_comments_and_windows_line_ends(trainer, trajectory):
    assert await typed(trainer, trajectory, "echo a\n\n# note\necho b") == (
        f"{PROMPT}echo a\na\n{PROMPT}\n{PROMPT}# note\n{PROMPT}echo b\nb"
    )
    assert await typed(trainer, trajectory, "echo a\r\nif true; then\r\n  echo b\r\nfi\r\n") == (
        f"{PROMPT}echo a\na\n{PROMPT}if true; then\n  echo b\nfi\nb"
    )
    assert await typed(trainer, trajectory, "") == ""
    assert await typed(trainer, trajectory, " \n ") == ""


async def test_output_is_cut_to_100_000_characters(trainer, trajectory):
    shown = await typed(trainer, trajectory, "head -c 200000 /dev/zero | tr '\\0' a")
    assert len(shown) == 100_000
    assert await output(trainer, trajectory, "echo still here") == "still here"


async def test_a_command_that_writes_without_end_is_stopped_and_the_shell_goes_on(trainer, trajectory):
    await typed(trainer, trajectory, "X=kept; mkdir d; cd d")
    assert "Process" not in await typed(trainer, trajectory, "yes | head -c 3000000")
    assert await typed(trainer, trajectory, "echo $X") == "user@bash-session:~/d$ echo $X\nkept"


async def test_what_a_command_does_to_its_shell_does_not_spoil_the_transcript(trainer, trajectory):
    await typed(trainer, trajectory, "exec > /dev/null 2>&1")
    assert await output(trainer, trajectory, "echo seen; echo too >&2") == "seen\ntoo"
    await typed(trainer, trajectory, "set -x")
    assert (await output(trainer, trajectory, "echo traced")).splitlines()[0] == "traced"
    assert (await output(trainer, trajectory, "set +x")).count("\n") == 0
    await typed(trainer, trajectory, "trap 'echo trapped' DEBUG")
    assert await output(trainer, trajectory, "echo a") == "trapped\na"
    await typed(trainer, trajectory, "trap - DEBUG; PS1=x; IFS=,; set -f; shopt -s nullglob; cd() { builtin cd /; }")
    assert await output(trainer, trajectory, "echo $?; echo *") == "0\n*"


async def test_exit_ends_the_shell_and_the_next_one_has_what_was_exported(trainer, trajectory):
    await typed(trainer, trajectory, "export X=kept; Y=lost; f() { echo f; }; alias e='echo e'; mkdir 'a b'; cd 'a b'")
    shown = f"Command exited with code 3\n{ENDED}\nNot run: the commands that follow."
    place = "user@bash-session:~/a b$ "
    assert await typed(trainer, trajectory, "exit 3\necho never") == f"{place}exit 3\n{shown}"
    assert await output(trainer, trajectory, "echo $X,$Y; f; e; pwd; ls -A ~") == "kept,\nf\ne\n/home/work/a b\na b"
    await typed(trainer, trajectory, "export HOME=/usr; rmdir '../a b'")
    assert (await typed(trainer, trajectory, "exit")).endswith(f"exit\n{ENDED}")
    assert await output(trainer, trajectory, "pwd; ls -A /home/work") == "/usr"


async def test_on_a_backend_without_a_file_system_of_its_own_the_shell_is_the_same():
    with running([], tools="bash_terminal", sandbox="subprocess", min_isolation="L0") as server:
        async with Trainer(server.url) as trainer:
            await typed(trainer, "t", "export X=kept; mkdir d; cd d\nexit")
            assert await typed(trainer, "t", "echo $X") == "user@bash-session:~/d$ echo $X\nkept"


async def test_a_failure_under_set_e_ends_the_shell_before_it_does_harm(trainer, trajectory):
    shown = await typed(trainer, trajectory, "touch keep\nset -e\nfalse && true\nfalse || true\ncd nowhere\nrm keep")
    assert shown.endswith(f"bash: cd: nowhere: No such file or directory\n{ENDED}\nNot run: the commands that follow.")
    assert await output(trainer, trajectory, "ls; false") == "keep\nCommand exited with code 1"


@pytest.mark.parametrize(
    ("command", "shown"),
    [("exec ls -d /", "/\n"), ("kill -KILL $$", "Command exited with code 137\n"), ("exec true", "")],
)
async def test_a_shell_that_is_replaced_or_killed_is_lost_and_that_is_said(trainer, trajectory, command, shown):
    await typed(trainer, trajectory, "export X=lost; touch kept")
    assert await output(trainer, trajectory, command) == shown + LOST
    assert await output(trainer, trajectory, "echo x$X; ls; pwd") == "x\nkept\n/home/work"


async def test_background_jobs_do_not_hold_up_the_prompt(trainer, trajectory):
    began = time.monotonic()
    shown = await typed(trainer, trajectory, "sleep 30 &\necho next\nkill %1\nwait")
    assert f"{PROMPT}echo next\nnext\n" in shown
    assert time.monotonic() - began < 8


@pytest.mark.thorough
async def test_a_command_has_ten_seconds_is_ended_whole_and_the_next_ones_run(trainer):
    over = "Process timed out after 10 seconds"
    slow, stuck = "echo a; sleep 30; echo rest", "while :; do :; done; echo rest"
    function, subshell = "f() { sleep 30; echo rest; }; f; echo rest", "(sleep 30); echo rest"
    commands = slow, stuck, function, subshell
    names = [f"ended-{number}" for number in range(len(commands))]
    began = time.monotonic()
    seen = await trainer.batch(names, [f"<bash>X=kept\n{command}\necho $X</bash>" for command in commands])
    assert 9.9 < time.monotonic() - began < 16
    kept, lost = f"{PROMPT}echo $X\nkept", f"{LOST}\nNot run: the commands that follow."
    endings = f"a\n{over}\n{kept}", f"{over}\n{kept}", f"{over}\n{lost}", f"{over}\n{lost}"
    for command, one, after in zip(commands, seen, endings, strict=True):
        assert one.text == f"\n<o>\n{PROMPT}X=kept\n{PROMPT}{command}\n{after}\n</o>\n"
    await trainer.finish(*names)


async def test_what_is_no_text_is_refused_in_words(trainer, trajectory):
    assert "null character" in await typed(trainer, trajectory, "echo \0")
    assert await output(trainer, trajectory, "echo fine") == "fine"


async def test_many_trajectories_at_once_have_their_own_shells(trainer):
    names = [f"many {n}" for n in range(16)]
    for script in ("mkdir d{0}; cd d{0}; X={0}", "X=$((X + 1)); touch f$X", "ls; pwd"):
        seen = await trainer.batch(names, [f"<bash>{script.format(n)}</bash>" for n in range(16)])
    for n, one in enumerate(seen):
        assert one.text == f"\n<o>\nuser@bash-session:~/d{n}$ ls; pwd\nf{n + 1}\n/home/work/d{n}\n</o>\n"
    await trainer.finish(*names)


def running_with(argument: str) -> list[int]:
    """Processes of this machine that were started with this argument."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if argument.encode() in (process / "cmdline").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


def sandbox_of(pid: int) -> int:
    """Process 1 of the sandbox, seen from the host."""
    status = Path(f"/proc/{pid}/status").read_text()
    parent = int(status.partition("\nPPid:")[2].split()[0])
    above = Path(f"/proc/{parent}/status").read_text().partition("\nNSpid:")[2].splitlines()[0].split()
    return pid if len(above) == 1 else sandbox_of(parent)


async def test_nothing_of_a_trajectory_is_left_when_it_is_over(trainer):
    for number, end in enumerate(({"finish": [True]}, {"is_last_step": [True]})):
        seconds = f"98765.{os.getpid()}{number}"
        await typed(trainer, "left", f"nohup sleep {seconds} &")
        await until(lambda seconds=seconds: running_with(seconds))
        await trainer.act("left", "<bash>echo bye</bash>", **end)
        await until(lambda seconds=seconds: not running_with(seconds))


async def test_a_sandbox_that_is_killed_costs_only_its_own_trajectory_which_is_told(trainer):
    seconds = f"98764.{os.getpid()}"
    await typed(trainer, "lucky", "X=kept")
    dying = asyncio.ensure_future(trainer.act("dying", f"<bash>sleep {seconds}</bash>"))
    await until(lambda: running_with(seconds))
    os.kill(sandbox_of(running_with(seconds)[0]), signal.SIGKILL)
    lost = await dying
    assert (lost.done, lost.valid) == (True, False)
    assert "the sandbox is gone" in lost.observation["error"]
    assert lost.observation["reward"] is None
    assert await output(trainer, "lucky", "echo $X") == "kept"
    await trainer.finish("dying", "lucky")
    assert await output(trainer, "dying", "echo new") == "new"
    await trainer.finish("dying")


async def test_94_the_tool_that_is_named_first_gets_the_text():
    text = "<bash>echo from bash</bash><python>print('from Python')</python>"
    for tools, said in [("python_code,bash_terminal", "from Python"), ("bash_terminal,python_code", "from bash")]:
        with running([], tools=tools) as server:
            async with Trainer(server.url) as trainer:
                assert said in (await trainer.act("t", text)).text.splitlines()


async def test_a_call_as_json_is_answered_in_a_fence(trainer, trajectory):
    call = {"name": "bash_terminal", "arguments": {"command": "echo a"}}
    seen = await trainer.act(trajectory, f"<tool_call>{json.dumps(call)}</tool_call>")
    assert seen.text == f"\n```output\n{PROMPT}echo a\na\n```\n"


def test_over_ors_it_is_a_tool_like_any_other(server):
    with Client(server.url) as client, client.environment("toolbox").session({}) as session:
        (spec,) = session.list_tools()
        assert (spec.name, list(spec.input_schema["properties"])) == ("bash_terminal", ["command"])
        session.call_tool("bash_terminal", {"command": "X=5"})
        done = session.call_tool("bash_terminal", {"command": "echo $X; false"})
        assert done.blocks[0].text == f"{PROMPT}echo $X; false\n5\nCommand exited with code 1"
        assert done.metadata["exit_code"] == 1
        assert session.call_tool("bash_terminal", {"command": "exit"}).metadata["state_lost"] is True


async def test_calls_of_one_session_run_one_after_the_other(server):
    async with Trainer(server.url) as wire:
        sid = await wire.open(env_name="toolbox")
        call = {"command": "n=$((n + 1)); m=$n; sleep 0.05; echo $((n - m))"}
        calls = [wire.call(sid, "bash_terminal", call, env="toolbox") for _ in range(5)]
        for answer in await asyncio.gather(*calls):
            assert answer.text.endswith("\n0")
        await wire.end(sid)


# verl-tool's list of words.


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("rm -rf /", "rm -rf /"),
        ("cd x; rm -rf /*", "rm -rf /*"),
        ("rm -fr --no-preserve-root /", "rm -fr --no-preserve-root /"),
        ("rm -r /etc", "rm -r /etc"),
        ("sudo ls", "sudo"),
        ("ls && /usr/bin/sudo ls", "sudo"),
        ("echo $(service x)", "service"),
        ("if true; then\n  mkfs.ext4 x\nfi", "mkfs.ext4"),
        ("dd if=/dev/zero of=x", "dd if="),
        ("curl -s http://x", "curl -s http"),
        ("kill -9 1", "kill -9"),
        ("chmod 777 x", "chmod 777"),
        ("echo x > /dev/sda", "> /dev/"),
        ("echo x >> /etc/passwd", "> /etc/"),
        ("find / -name x -exec rm {} +", "find / -name x -exec"),
        ("source /etc/profile", "source /"),
        ("echo microservice", ""),
        ("ls > /dev/null 2>/dev/stderr", ""),
        ("head -c 9 < /dev/urandom", ""),
        ("rm -rf build /tmp/x", ""),
        ("rm -rf ./etc", ""),
        ("echo mount su sudo batch", ""),
        ("grep passwd f; git mount", ""),
        ("cat amount; ./service", ""),
        ("kill -15 1; chmod 755 x; curl file", ""),
        ("for batch in 1 2; do echo $batch; done", ""),
    ],
)
def test_words_are_found_where_they_would_be_run(command, found):
    assert blocked(command) == found


@pytest.mark.parametrize("word", ["r", "r -", " -r", ";dd a ", ";/a"])
def test_a_command_that_is_made_to_be_slow_to_look_at_holds_nobody_up(word):
    assert blocked("rm -" + word * 200_000) == ""  # this once took hours


async def test_93_words_are_refused_only_where_the_list_is_on(trainer, trajectory):
    text = (
        "\n<o>\nExecution blocked: Command contains potentially dangerous operations. "
        "Forbidden commands detected: rm -rf /\n</o>\n"
    )
    with running([toolbox(named_toolsets("bash_terminal"), block_lists=True)]) as dropin:
        async with Trainer(dropin.url) as other:
            assert await other.act("t", "<bash>rm -rf /</bash>") == Observed(text, done=False, valid=True)
            assert (await other.act("t", "<bash>echo microservice</bash>")).text.endswith("\nmicroservice\n</o>\n")
    assert "rm: it is dangerous" in await output(trainer, trajectory, "rm -rf /")
