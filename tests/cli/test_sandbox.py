"""`toolyard sandbox` and the sandbox of `toolyard serve`, for people."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from tests import warm
from tests.tiers import first, thorough
from toolyard.loading import builtin_examples
from toolyard.protocols import PROTOCOLS
from toolyard.sandboxes import BACKENDS

COMMAND = [sys.executable, "-m", "toolyard"]
(EXAMPLE,) = (str(path) for path in builtin_examples() if path.stem == "code_runner")


def toolyard(*args: str, stdin: bytes = b"", cwd: Path | None = None, **variables: str) -> subprocess.CompletedProcess:
    return warm.toolyard(*args, stdin=stdin, cwd=cwd, env={**os.environ, **variables}, text=False)


def words(output: bytes) -> str:
    return " ".join(output.decode().split())


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(textwrap.dedent(text))
    return name


# run


def test_a_python_file_runs_with_its_arguments_its_input_and_its_exit_code(tmp_path):
    name = write(
        tmp_path,
        "program.py",
        """
        import os, sys
        sys.stdout.buffer.write(sys.stdin.buffer.read()[::-1])
        print(sys.argv, os.getcwd(), os.getuid(), os.listdir())
        print("to the other stream", file=sys.stderr)
        sys.exit(7)
        """,
    )
    done = toolyard("sandbox", "run", name, "-x", "--seconds", "two words", stdin=b"\xffabc\n", cwd=tmp_path)
    assert done.stdout == (
        b"\ncba\xff['./program.py', '-x', '--seconds', 'two words'] /home/work 1000 ['program.py']\n"
    )
    assert done.stderr == b"to the other stream\n"
    assert done.returncode == 7


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("#!/bin/bash\necho ${BASH_VERSION:+bash} $0 $1\n", b"bash ./tool given\n"),
        ("echo plain $1\n", b"plain given\n"),
        thorough(("#! /usr/bin/env -S python3 -O\nimport sys; print(sys.flags.optimize, sys.argv[1])\n", b"1 given\n")),
    ],
)
def test_another_file_runs_as_its_first_line_says_or_with_sh(tmp_path, text, said):
    write(tmp_path, "tool", text)
    done = toolyard("sandbox", "run", "tool", "given", cwd=tmp_path)
    assert (done.stdout, done.stderr, done.returncode) == (said, b"", 0)


def test_it_cannot_see_this_machine(tmp_path):
    (tmp_path / "secret").write_text("s")
    write(tmp_path, "look.py", f"import os; print(os.path.exists({str(tmp_path)!r}), os.environ.get('SECRET'))")
    done = toolyard("sandbox", "run", "look.py", cwd=tmp_path, SECRET="s")
    assert done.stdout == b"False None\n"


@pytest.mark.parametrize(
    ("code", "flags", "said", "exit_code"),
    first(
        [
            ("while True: pass", ["--seconds", "0.3"], "s: it took longer than it may", 124),
            (
                "a = bytearray(200 * 2**20)",
                ["--memory-bytes", str(100 * 2**20)],
                "it needed more memory than it may",
                137,
            ),
            (
                "print('x' * 5000)",
                ["--output-bytes", "1000"],
                "it wrote more output than it may, and the rest is not shown",
                137,
            ),
        ],
        1,
    ),
)
def test_the_limit_that_ends_a_program_is_told_and_the_exit_code_is_that_of_a_shell(
    tmp_path, code, flags, said, exit_code
):
    write(tmp_path, "program.py", f"print('begins', flush=True)\n{code}\n")
    done = toolyard("sandbox", "run", *flags, "program.py", cwd=tmp_path)
    assert done.returncode == exit_code
    assert done.stdout.startswith(b"begins\n")
    assert len(done.stdout) <= 1000
    assert said in words(done.stderr)


@pytest.mark.thorough
def test_limits_come_from_variables_too_and_the_flag_wins(tmp_path):
    write(tmp_path, "program.py", "import time; time.sleep(0.6)")
    variables = {"TOOLYARD_SANDBOX_SECONDS": "0.2"}
    assert toolyard("sandbox", "run", "program.py", cwd=tmp_path, **variables).returncode == 124
    assert toolyard("sandbox", "run", "--seconds", "5", "program.py", cwd=tmp_path, **variables).returncode == 0


def test_output_that_nobody_reads_any_more_is_not_missed(tmp_path):
    write(tmp_path, "much.py", "print('x' * 60_000); raise SystemExit(3)")
    shown = subprocess.Popen(
        [*COMMAND, "sandbox", "run", "much.py"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
    )
    shown.stdout.close()
    assert shown.stderr.read() == b""
    shown.stderr.close()
    assert shown.wait(60) == 3


def closed(fd: int) -> list[str]:
    """A command that starts another one without this file."""
    return [sys.executable, "-c", f"import os, sys; os.close({fd}); os.execv(sys.argv[1], sys.argv[1:])"]


def test_output_that_was_closed_is_not_missed_either(tmp_path):
    write(tmp_path, "program.py", "print('x'); raise SystemExit(3)")
    argv = [*closed(1), *COMMAND, "sandbox", "run", "program.py"]
    ran = subprocess.run(argv, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=tmp_path, timeout=60, check=False)
    assert (ran.returncode, ran.stderr) == (3, b"")


def test_a_signal_is_an_exit_code_as_in_a_shell(tmp_path):
    write(tmp_path, "tool", "kill -TERM $$")
    assert toolyard("sandbox", "run", "tool", cwd=tmp_path).returncode == 128 + signal.SIGTERM


def test_a_file_that_is_not_there_is_said_so(tmp_path):
    done = toolyard("sandbox", "run", "none.py", cwd=tmp_path)
    assert done.returncode == 2
    assert words(done.stderr) == "toolyard sandbox: none.py cannot be read: No such file or directory"


def test_below_the_minimum_nothing_is_run_and_the_exit_code_is_125(tmp_path):
    write(tmp_path, "program.py", "print('ran')")
    done = toolyard("sandbox", "run", "--min-isolation", "L4", "program.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (125, b"")
    for backend in ("native: it reaches L3", "bubblewrap: ", "docker: ", "podman: "):
        assert backend in words(done.stderr)
    assert b"Traceback" not in done.stderr
    assert max(map(len, done.stderr.decode().splitlines())) <= 100


@pytest.mark.parametrize(
    "flags", first([["--backend", "docker"], ["--backend", "subprocess"], ["--backend", "jail"]], 1)
)
def test_a_backend_that_is_named_is_used_or_refused(tmp_path, flags):
    write(tmp_path, "program.py", "print('ran')")
    done = toolyard("sandbox", "run", *flags, "program.py", cwd=tmp_path, DOCKER_HOST="unix:///nowhere")
    assert (done.returncode, done.stdout) == (125, b"")
    assert flags[1] in words(done.stderr)
    assert b"native: " not in done.stderr


def test_without_isolation_it_runs_for_who_says_so_twice(tmp_path):
    write(tmp_path, "program.py", "print('ran')")
    done = toolyard("sandbox", "run", "--backend", "subprocess", "--min-isolation", "L0", "program.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, b"ran\n")


# shell


def test_commands_from_a_file_keep_their_state_and_the_last_one_gives_the_exit_code():
    done = toolyard("sandbox", "shell", stdin=b"cd /tmp; x=5\n\npwd; echo $x\necho no >&2; (exit 3)\n")
    assert done.stdout == b"/tmp\n5\n"
    assert done.stderr == b"no\n"
    assert done.returncode == 3


def test_commands_that_are_no_text_reach_the_shell_as_they_are():
    env = {**os.environ, "PYTHONIOENCODING": "utf-8:strict"}
    shell = [*COMMAND, "sandbox", "shell"]
    ran = subprocess.run(shell, input=b"printf '\xff\xe9'\n", capture_output=True, env=env, timeout=60, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"\xff\xe9", b"")


def test_a_shell_whose_input_was_closed_has_nothing_to_do():
    ran = subprocess.run([*closed(0), *COMMAND, "sandbox", "shell"], capture_output=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"", b"")


def test_exit_ends_the_shell_with_its_number():
    done = toolyard("sandbox", "shell", stdin=b"echo a\nexit 4\necho b\n")
    assert (done.stdout, done.returncode) == (b"a\n", 4)


def test_a_command_that_is_stopped_does_not_end_the_shell():
    done = toolyard("sandbox", "shell", "--seconds", "0.3", stdin=b"sleep 9\necho goes on\n")
    assert (done.stdout, done.returncode) == (b"goes on\n", 0)
    assert "it took longer than it may" in words(done.stderr)


class Terminal:
    """A user at a terminal."""

    def __init__(self, *args: str) -> None:
        self.fd, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [*COMMAND, *args], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def until(self, text: str, seconds: float = 30) -> None:
        end = time.monotonic() + seconds
        while text not in self.seen:
            left = end - time.monotonic()
            assert left > 0, f"{text!r} did not come in {self.seen!r}"
            if select.select([self.fd], [], [], left)[0]:
                with contextlib.suppress(OSError):  # the other end is closed
                    self.seen += os.read(self.fd, 4096).decode()
        self.seen = self.seen.partition(text)[2]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.fd)


def runs(*argv: str) -> bool:
    wanted = "\0".join(argv).encode() + b"\0"
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            if file.read_bytes() == wanted:
                return True
    return False


def until(true: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_at_a_terminal_it_greets_prompts_and_can_be_interrupted():
    terminal = Terminal("sandbox", "shell")
    try:
        terminal.until("A shell in a sandbox (native, isolation L3")
        terminal.until("sandbox$ ")
        terminal.type("echo $((6 * 7)); false\n")
        terminal.until("\n42\r\n")
        terminal.until("[exit code 1]")
        terminal.until("sandbox$ ")
        terminal.type("sleep 61.25\n")
        until(lambda: runs("sleep", "61.25"))
        os.killpg(terminal.process.pid, signal.SIGINT)
        terminal.until("sandbox$ ")
        until(lambda: not runs("sleep", "61.25"))
        terminal.type("echo go''es on\n")
        terminal.until("goes on")
        terminal.until("sandbox$ ")
        terminal.type("\x04")
        assert terminal.process.wait(30) == 0
    finally:
        terminal.close()


# report


def test_the_report_tells_of_every_backend_what_it_isolates_and_what_would_help():
    done = toolyard("sandbox", "report", DOCKER_HOST="unix:///nowhere")
    text = done.stdout.decode()
    assert (done.returncode, done.stderr) == (0, b"")
    for name in BACKENDS:
        assert f"\n{name} " in f"\n{text}"
    assert "\n  network              network namespace\n" in text
    assert "docker        not available\n" in text
    assert "subprocess    L0\n" in text
    assert "  plain       available\n" in text
    assert "A server on this host uses native (--min-isolation is L3-nolimit)." in text
    assert max(map(len, text.splitlines())) <= 120


def test_the_report_as_json_has_all_of_it():
    done = toolyard("sandbox", "report", "--json", DOCKER_HOST="unix:///nowhere")
    report = json.loads(done.stdout)
    assert report["backend"] == "native"
    assert report["min_isolation"] == "L3-nolimit"
    backends = {each["backend"]: each for each in report["backends"]}
    assert list(backends) == list(BACKENDS)
    assert backends["native"]["level"].startswith("L3")
    assert backends["native"]["layers"]["network"] == "network namespace"
    assert (backends["docker"]["available"], backends["docker"]["level"]) == (False, None)
    assert backends["docker"]["problem"]
    assert backends["subprocess"]["missing"][0]["fix"]
    assert report["profiles"]["plain"] == {"available": True, "missing": ""}


def test_where_no_server_could_start_the_report_fails():
    done = toolyard("sandbox", "report", "--backend", "native", "--min-isolation", "L4")
    assert done.returncode == 1
    assert b"No sandbox here reaches L4" in done.stdout
    assert b"bubblewrap" not in done.stdout


@pytest.mark.thorough
def test_one_that_isolates_nothing_is_not_what_a_server_uses_by_itself():
    done = toolyard("sandbox", "report", "--json", "--min-isolation", "L0", TOOLYARD_SANDBOX="subprocess")
    assert json.loads(done.stdout)["backend"] == "subprocess"
    done = toolyard("sandbox", "report", "--json", "--min-isolation", "L0")
    assert json.loads(done.stdout)["backend"] == "native"


# serve


def descendants(pid: int) -> list[int]:
    children = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return [one for child in children for one in (child, *descendants(child))]


def test_serving_code_shows_the_isolation_and_stopping_leaves_nothing(tmp_path):
    log = tmp_path / "log"
    with log.open("w") as file:
        process = subprocess.Popen(
            [*COMMAND, "serve", EXAMPLE, "--port", "0"], stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        until(lambda: "Stop with Ctrl-C" in log.read_text())
        said = log.read_text()
        assert f"\n  protocols: {', '.join(PROTOCOLS)}\n  sandboxes: native, isolation L3" in said
        (line,) = [line for line in said.splitlines() if "toolyard.sandbox: sandboxes: native, isolation L3" in line]
        assert "network: network namespace" in line
        url = said.partition(" on http")[2].split()[0]
        assert httpx2.get(f"http{url}/health").json()["isolation"]["backend"] == "native"
        started = descendants(process.pid)
        assert len(started) >= 2
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        assert not any(Path(f"/proc/{pid}").exists() for pid in started)
        assert "Traceback" not in log.read_text()
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("args", "variables", "said"),
    first(
        [
            (["--min-isolation", "L4"], {}, ["native: it reaches L3", "bubblewrap: ", "docker: ", "podman: "]),
            (["--sandbox", "docker"], {}, ["docker: "]),
            (["--sandbox", "subprocess"], {}, ["subprocess: it reaches L0 here"]),
            (["--sandbox", "jail"], {}, ["there is no sandbox 'jail'; there are auto, native"]),
            ([], {"TOOLYARD_MIN_ISOLATION": "L4"}, ["native: it reaches L3"]),
            (
                [],
                {"TOOLYARD_MIN_ISOLATION": "high"},
                ["TOOLYARD_MIN_ISOLATION is 'high'; it must be one of L0, L1, L2"],
            ),
        ],
        1,
    ),
)
def test_serving_code_below_the_minimum_is_refused_in_one_paragraph(args, variables, said):
    done = toolyard("serve", EXAMPLE, "--port", "0", *args, DOCKER_HOST="unix:///nowhere", **variables)
    assert done.returncode == 2
    for part in said:
        assert part in words(done.stderr)
    assert b"Traceback" not in done.stderr
    assert b"serving" not in done.stdout


def test_serving_what_needs_no_sandbox_is_not_refused_and_starts_none(tmp_path):
    example = EXAMPLE.replace("code_runner", "arithmetic")
    process = subprocess.Popen(
        [*COMMAND, "serve", example, "--port", "0", "--min-isolation", "L4"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        shown = ""
        while "Stop with Ctrl-C" not in shown:
            line = process.stdout.readline()
            assert line, shown
            shown += line
        assert "sandbox" not in shown
        assert descendants(process.pid) == []
    finally:
        process.kill()
        process.communicate()
