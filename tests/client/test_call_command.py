"""`toolyard call`, as it is typed."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.tiers import first
from tests.warm import toolyard
from tests.worlds import OtherEnv, ran
from toolyard import Environment, ImageBlock, ToolOutput, tool
from toolyard.testing import running


class Desk(Environment):
    """Parameters of all kinds."""

    @classmethod
    def list_splits(cls):
        return ["empty", "some"]

    @classmethod
    def list_tasks(cls, split):
        return [{"n": 1}] if split == "some" else []

    def get_prompt(self):
        return f"Task {json.dumps(dict(self.task_spec))}\nwith two lines"

    @tool
    def take(
        self, text: str, number: int = 3, items: list[int] | None = None, choice: str | None = None, flag: bool = False
    ) -> dict:
        """Take all kinds of things.

        Args:
            text: any text
        """
        return {"text": text, "number": number, "items": items, "choice": choice, "flag": flag}

    @tool
    def draw(self) -> ToolOutput:
        return ToolOutput(blocks=[ImageBlock(data="AAAA" * 100, mimeType="image/png")], metadata={"a": "é"}, reward=0.5)


@pytest.fixture(scope="module")
def desk():
    with running([Desk, OtherEnv], api_key="key") as server:
        yield server


def call(*words: str) -> subprocess.CompletedProcess:
    return toolyard("call", *words, env={"TOOLYARD_API_KEY": "key"})


def result_of(done) -> dict:
    assert done.returncode == 0, done.stderr
    return json.loads(json.loads(done.stdout.splitlines()[-1])["output"]["blocks"][0]["text"])


def test_a_url_shows_what_is_served(served):
    done = call(served.url)
    assert done.returncode == 0
    assert "serves 3 environments" in done.stdout
    assert "splits  train (5 tasks), custom (0 tasks), test (1 task)" in done.stdout
    assert "train (1,000,000 tasks)" in done.stdout
    assert "submit, big, slow" in done.stdout
    assert not done.stderr


def test_an_environment_shows_what_its_tools_take(desk):
    done = call(desk.url, "Desk")
    assert done.returncode == 0
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert "Take all kinds of things." in lines
    assert "text string, required any text" in lines
    assert "number integer, default 3" in lines
    assert "items list of integer | null, default null" in lines
    assert lines[lines.index("task some[0]") + 1 :][:4] == ['{"n": 1}', "", "prompt", 'Task {"n": 1}']


def test_calls_are_made_in_one_session(served):
    before = ran["submit"]
    done = call(served.url, "mathenv", "half", "number=5", "then", "submit", "answer=4")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "  0",
        "",
        '> half {"number": 5}',
        "  2.5",
        "",
        '> submit {"answer": "4"}',
        "  ok 4",
        "  reward 1",
        "  the episode is finished",
    ]
    assert ran["submit"] == before + 1
    assert not served.server.runtime.sessions


def test_a_double_dash_separates_calls_too(served):
    done = call(served.url, "mathenv", "noparam", "--", "noparam", "--index", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("> noparam") == 2
    assert done.stdout.startswith("  2\n")


@pytest.mark.parametrize(
    ("words", "taken"),
    first(
        [
            (["text=5"], {"text": "5"}),
            (["text=a=b c"], {"text": "a=b c"}),
            (["text="], {"text": ""}),
            (["text=x", "number=7"], {"number": 7}),
            (["text=x", "items=[1, 2]"], {"items": [1, 2]}),
            (["text=x", "choice=null"], {"choice": "null"}),
            (["text=x", "flag=true"], {"flag": True}),
            (["--json", '{"text": "é", "items": [3]}'], {"text": "é", "items": [3]}),
            (['--json={"text": "a", "number": 1}', "number=2"], {"text": "a", "number": 1}),
        ]
    ),
)
def test_values_are_read_as_the_tool_takes_them(desk, words, taken):
    assert result_of(call(desk.url, "desk", "take", *words, "--raw")).items() >= taken.items()


def test_the_first_split_that_has_tasks_is_used(desk):
    assert 'Task {"n": 1}\n  with two lines' in call(desk.url, "desk", "draw").stdout


def test_a_task_can_be_given(desk):
    done = call("--task", '{"mine": true}', desk.url, "desk", "draw")
    assert 'Task {"mine": true}' in done.stdout


def test_images_metadata_and_rewards_are_shown(desk):
    done = call(desk.url, "desk", "draw")
    assert "[image/png, 300 bytes]" in done.stdout
    assert 'metadata {"a": "é"}' in done.stdout
    assert "reward 0.5" in done.stdout
    assert "finished" not in done.stdout


def test_images_are_saved_where_a_folder_is_named(desk, tmp_path):
    done = call(desk.url, "desk", "draw", "--images", str(tmp_path / "pictures"))
    assert f"[image/png, 300 bytes, saved as {tmp_path}/pictures/image-1.png]" in done.stdout
    assert (tmp_path / "pictures" / "image-1.png").stat().st_size > 290


def test_secrets_are_handed_on(served):
    assert "  v=w\n" in call(served.url, "mathenv", "secret", "answer=k", "--secret", "k=v=w").stdout


def test_raw_output_is_json_line_by_line(served):
    done = call(served.url, "mathenv", "noparam", "then", "boom", "--raw")
    prompt, first, second = map(json.loads, done.stdout.splitlines())
    assert prompt["prompt"][0]["text"] == "0"
    assert first["output"]["blocks"][0]["text"] == "nothing"
    assert second == {
        "tool": "boom",
        "input": {},
        "ok": False,
        "reason": "tool_raised",
        "error": "line1\nline2 é",
    }


def test_a_tool_that_says_no_is_1_and_what_is_not_called_is_said(served):
    done = call(served.url, "mathenv", "read_file", "path=x", "then", "noparam", "then", "half", "number=1")
    assert done.returncode == 1
    assert "no, tool_failed: Tool 'read_file' failed: File not found" in done.stdout
    assert "nothing" not in done.stdout
    said = "toolyard call: not called after this failure: noparam, half. --go-on would call them"
    assert " ".join(done.stderr.split()) == said
    assert not served.server.runtime.sessions


def test_with_go_on_the_other_calls_are_made_too(served):
    done = call(served.url, "mathenv", "--go-on", "read_file", "path=x", "then", "noparam")
    assert done.returncode == 1
    assert "nothing" in done.stdout
    assert not done.stderr
    assert not served.server.runtime.sessions


@pytest.mark.parametrize(
    ("words", "problem"),
    first(
        [
            (["zip"], "there is no environment 'zip' on http://127.0.0.1:*; there are mathenv, otherenv, manyenv"),
            (["zip", "go"], "there is no environment 'zip'"),
            (["mathenv", "half", "5"], "'5' is not of the form key=value; another call begins with `then`"),
            (
                ["mathenv", "half", '{"number": 5}'],
                """'{"number": 5}' is not of the form key=value; JSON comes after""",
            ),
            (["mathenv", "then", "half"], "before and after each `then`"),
            (["mathenv", "half", "then"], "before and after each `then`"),
            (["mathenv", "half", "--number", "5"], "there is no option --number"),
            (["--nope"], "there is no option --nope"),
            (["mathenv", "half", "--json", "{"], "--json must be a JSON object, and '{' is not JSON"),
            (["mathenv", "half", "--json"], "--json must be a JSON object, and '' is not JSON"),
            (["mathenv", "half", "--json", "[1]"], "--json must be a JSON object, {…}, and not '[1]'"),
            (["mathenv", "half", "--task", "{}", "--split", "train"], "either --task, or --split and --index"),
            (["mathenv", "half", "--split", "tset"], "no split 'tset'; there are 'train', 'custom', 'test'"),
            (["mathenv", "half", "--index", "99"], "has 5 tasks, no number 99"),
            (["mathenv", "half", "--secret", "k"], "NAME=VALUE"),
        ]
    ),
)
def test_what_makes_no_sense_is_2_and_explained(served, words, problem):
    done = call(served.url, *words)
    said = " ".join(done.stderr.split()).replace(served.url, "http://127.0.0.1:*")
    assert done.returncode == 2
    assert problem in said
    assert "Traceback" not in said
    assert not done.stdout


def test_no_url_and_no_such_url_are_2():
    assert "URL" in call().stderr
    assert call().returncode == 2
    assert "not the URL of a server" in call("ftp://x").stderr
    assert call("ftp://x").returncode == 2


def test_a_path_behind_the_url_of_the_server_is_taken_for_what_it_is(desk):
    done = call(f"{desk.url}/desk")
    assert done.returncode == 2
    assert f"{desk.url}/desk is no server (Not Found). Is it {desk.url}?" in " ".join(done.stderr.split())


def test_a_server_that_is_not_there_is_3_and_how_to_start_one_is_said():
    done = call("127.0.0.1:9")
    assert done.returncode == 3
    assert "there is no answer from 127.0.0.1:9" in done.stderr
    assert "toolyard serve" in done.stderr


def test_a_wrong_key_is_3(desk):
    done = call(desk.url, "--api-key", "wrong")
    assert done.returncode == 3
    assert "AuthenticationFailed" in done.stderr
    assert call("--api-key", "key", desk.url).returncode == 0


def test_an_environment_that_breaks_is_3(served):
    done = call(served.url, "mathenv", "noparam", "--task", '{"setup_boom": true}')
    assert done.returncode == 3
    assert "setup boom" in done.stderr


@pytest.mark.parametrize("words", [["--help"], ["http://127.0.0.1:9", "--help"]])
def test_help_is_at_hand_wherever_it_is_asked_for(words):
    done = call(*words)
    assert done.returncode == 0
    assert "exit codes" in done.stdout
