"""`toolyard play`: a session by hand, typed at a terminal or read from a pipe."""

from __future__ import annotations

import os
import pty
import subprocess
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command import TOOLYARD
from tests.warm import toolyard
from tests.worlds import OneTask
from toolyard import ImageBlock, TextBlock, ToolOutput, terminal, tool
from toolyard.cli import main
from toolyard.testing import Running, running

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


class Desk(OneTask):
    """A desk with a counter."""

    replayable = True

    @classmethod
    def list_tasks(cls, split):
        return [{"start": 3}, {"start": 30}]

    def setup(self):
        self.count = self.task_spec["start"]

    def get_prompt(self):
        return f"Count from {self.count}."

    @tool
    def add(self, number: int, note: str = "") -> ToolOutput:
        """Add to the count.

        Args:
            number: How much.
            note: Any text.
        """
        self.count += number
        return ToolOutput(blocks=[TextBlock(text=f"{self.count} {note}".strip())], reward=0.5)

    @tool
    def draw(self) -> ToolOutput:
        """Draw."""
        return ToolOutput(blocks=[ImageBlock(data=PIXEL, mimeType="image/png")])

    @terminal
    @tool
    def answer(self, text: str) -> ToolOutput:
        """Answer."""
        return ToolOutput(blocks=[TextBlock(text=f"heard {text}")], reward=1.0, finished=True)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running([Desk, type("Other", (Desk,), {})]) as server:
        yield server


def play(typed: str, *words: str, cwd: Path | None = None) -> tuple[int, list[str]]:
    """The exit code, and the lines that are shown, without those that are empty."""
    done = toolyard("play", *words, stdin=textwrap.dedent(typed), cwd=cwd)
    return done.returncode, [line.strip() for line in (done.stdout + done.stderr).splitlines() if line.strip()]


def test_a_session_is_played_from_a_pipe(server, tmp_path):
    typed = """
        add number=4 note="two words"
        add {"number": 1}
        add number=x
        ad
        hepl
        fork
        add number=100
        back
        draw
        add number=1
        task
        say goodbye
        add number=1
        restart
        quit
    """
    code, lines = play(typed, server.url, "desk", "--index", "1", "--images", "pictures", cwd=tmp_path)
    assert code == 0
    assert lines == [
        "Count from 30.",
        "tools: add, draw, say (for answer); `help` says what else can be typed",
        '> add number=4 note="two words"',
        "34 two words",
        "reward 0.5",
        '> add {"number": 1}',
        "35",
        "reward 0.5",
        "> add number=x",
        "no, bad_arguments: Tool input validation error: 'number' must be a whole number (given: \"x\").",
        "> ad",
        "no, no_such_tool: 'ad' is not a valid tool. Did you mean 'add'? The tools are: add, draw.",
        "> hepl",
        "'hepl' is no tool, and no word that is known here; did you mean 'help'?",
        "> fork",
        "this is copy 1 now; `back` returns to where it was made",
        "> add number=100",
        "135",
        "reward 0.5",
        "> back",
        "back where the copy was made",
        "> draw",
        f"[image/png, 72 bytes, saved as {Path('pictures/image-1.png')}]",
        "> add number=1",
        "36",
        "reward 0.5",
        "> task",
        "task train[1]",
        '{"start": 30}',
        "> say goodbye",
        "heard goodbye",
        "reward 1",
        "the episode is finished",
        "5 calls, return 2.5",
        "`restart` begins the task anew, `quit` ends",
        "> add number=1",
        "no, episode_finished: 'add' was not run: the episode has finished (a tool returned finished=True), so no "
        "further tool calls are accepted.",
        "> restart",
        "Count from 30.",
        "tools: add, draw, say (for answer); `help` says what else can be typed",
        "> quit",
        "0 calls, no reward",
    ]
    assert (tmp_path / "pictures" / "image-1.png").read_bytes().startswith(b"\x89PNG")
    assert not server.server.runtime.sessions


def test_without_a_call_the_prompt_the_task_and_the_terminal_tool_are_shown(server):
    done = toolyard("call", server.url, "desk")
    lines = [" ".join(line.split()) for line in done.stdout.splitlines() if line.strip()]
    assert lines == [
        "desk",
        "splits train (2 tasks)",
        "add",
        "Add to the count.",
        "number integer, required How much.",
        'note string, default "" Any text.',
        "draw",
        "Draw.",
        "answer",
        "Terminal: it takes the agent's last message, as text.",
        "Answer.",
        "task train[0]",
        '{"start": 3}',
        "prompt",
        "Count from 3.",
    ]
    assert not server.server.runtime.sessions


def test_which_environment_is_meant_must_be_said_where_there_are_several(server, capsys):
    assert main(["play", server.url]) == 2
    said = "toolyard play: name the environment to play after the target; there are desk, other"
    assert capsys.readouterr().err == f"{said}\n"


def test_a_file_is_served_for_as_long_as_it_is_played_at_a_terminal(tmp_path):
    (tmp_path / "tiny.py").write_text(
        textwrap.dedent(
            """
            from toolyard import Environment, tool

            class Tiny(Environment):
                @classmethod
                def list_splits(cls): return ["train"]
                @classmethod
                def list_tasks(cls, split): return [{}]
                def get_prompt(self): return "Go."
                def teardown(self): print("torn down", flush=True)
                @tool
                def look(self) -> str: return "seen"
            """
        )
    )
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [TOOLYARD, "play", "tiny.py"], cwd=tmp_path, stdin=theirs, stdout=theirs, stderr=theirs
    ) as one:
        os.close(theirs)
        os.write(ours, b"look\nfork\n\x04")  # the last is Ctrl-D
        shown = b""
        while True:
            try:
                shown += os.read(ours, 4096)
            except OSError:  # of a terminal that its last program has left
                break
        assert one.wait(30) == 0
    os.close(ours)
    text = shown.decode()
    for said in ("Go.", "> ", "seen", "A server with --placement process can copy every session", "torn down"):
        assert said in text, text
    assert "Traceback" not in text
