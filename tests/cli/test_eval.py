"""`toolyard eval`: it accounts for every attempt, its numbers are right, and an interruption loses nothing."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.agents.models import Body, in_turn, model, refused, said
from tests.agents.worlds import Broken, Guess
from tests.command import TOOLYARD, Command
from toolyard.agents.attempts import Attempt, chosen, planned
from toolyard.agents.evaluation import About, Evaluation
from toolyard.cli import main
from toolyard.client import Task
from toolyard.episodes.store import Filter, Store
from toolyard.testing import running

KEYS = [
    *("model", "environment", "split", "tasks", "repeat", "n", "scored", "unscored", "mean_return", "ci95"),
    *("pass@1", "pass@k", "pass^k", "mean_turns", "tokens", "failures", "episodes"),
]
WORLDS = str(Path(__file__).parents[1] / "agents" / "worlds.py")
GUESS = f"{WORLDS}:Guess"
AGENTS = """
import asyncio

async def right(session, task):
    await session.call_tool("say", {"number": task.task_spec["n"]})

async def odd(session, task):
    await session.call_tool("say", {"number": task.task_spec["n"] // 2 * 2 + 1})

async def clumsy(session, task):
    raise KeyError(task.task_spec["n"])

async def slow(session, task):
    await asyncio.sleep(0.2)
    await right(session, task)
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The working directory of the command, with agents in it."""
    (tmp_path / "my_agents.py").write_text(AGENTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def evaluate(out: Path, *words: str, code: int = 0) -> dict[str, Any]:
    assert main(["eval", *words, "--json", str(out)]) == code
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def right(body: Body) -> bytes:
    number = int(body["messages"][0]["content"].removeprefix("Say ").removesuffix("."))
    return said(None, ("say", {"number": number}))


# Tasks and agents.


def test_the_random_agent_plays_a_file(here, capsys):
    found = evaluate(here / "out.json", GUESS, "--agent", "random", "--tasks", "0:3", "--repeat", "2")
    assert list(found) == KEYS
    assert (found["model"], found["environment"], found["split"]) == ("random", "guess", "test")
    assert (found["tasks"], found["repeat"], found["n"], found["scored"], found["unscored"]) == (3, 2, 6, 6, 0)
    assert all(list(one) == ["id", "index", "try", "return", "outcome", "turns"] for one in found["episodes"])
    tries = [(one["try"], one["index"]) for one in found["episodes"]]
    assert tries == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert "random on guess, split test: 3 tasks, 2 tries each" in capsys.readouterr().out


def test_the_same_seed_gives_the_same_result(here):
    words = (GUESS, "--agent", "random", "--repeat", "2", "--seed", "3")
    first, second = (evaluate(here / f"{n}.json", *words) for n in range(2))
    assert first == second


def test_a_function_of_ones_own_plays_against_a_url(here):
    with running([Guess, Broken]) as server:
        words = (server.url, "--environment", "Guess", "--agent", "my_agents:right", "--split", "train")
        found = evaluate(here / "out.json", *words)
    assert (found["model"], found["split"], found["mean_return"]) == ("my_agents:right", "train", 1.0)


def test_a_model_plays_and_its_tokens_are_counted(here, capsys):
    with model(right) as asked:
        words = (GUESS, "--model", "m", "--base-url", asked.url, "--temperature", "0.7", "--body", '{"top_k": 5}')
        found = evaluate(here / "out.json", *words, "--prompt-price", "1", "--completion-price", "2")
    assert (found["mean_return"], found["mean_turns"]) == (1.0, 1.0)
    assert found["tokens"] == {"prompt": 40, "completion": 20, "cached": 16, "reasoning": 8}
    assert {(body["temperature"], body["top_k"]) for body in asked.bodies} == {(0.7, 5)}
    assert "8e-05" in capsys.readouterr().out  # 40 tokens at 1 and 20 at 2 a million


def test_named_rewards_have_a_mean_each(here, capsys):
    found = evaluate(here / "out.json", f"{WORLDS}:Styled", "--agent", "my_agents:right", "--tasks", "0:4")
    assert found["rewards"] == {"correct": 1.0, "even": 0.5}
    assert found["mean_return"] == 1.25, "even counts half"
    assert "rewards: correct 1, even 0.5" in capsys.readouterr().out


def test_the_episodes_are_recorded_with_run_and_labels_and_kept_as_those_of_an_evaluation(here):
    store = here / "runs.db"
    words = (GUESS, "--agent", "my_agents:right", "--record", str(store), "--run", "first", "--tasks", ":2")
    found = evaluate(here / "out.json", *words)
    with Store([store]) as read:
        episodes = list(read.episodes(Filter(run="first")))
    assert sorted(one.labels["attempt"] for one in episodes) == sorted(one["id"] for one in found["episodes"])
    assert {(one.labels["eval"], one.labels["agent"], one.labels["model"]) for one in episodes} == {
        ("1", "my_agents:right", "my_agents:right")
    }
    assert {(one.split, one.outcome, one.total) for one in episodes} == {("test", "finished", 1.0)}


# Numbers.


def test_half_of_the_tasks_are_right(here):
    found = evaluate(here / "out.json", GUESS, "--agent", "my_agents:odd", "--repeat", "3")
    assert numbers(found) == (0.5, 0.5, 0.5, 0.5)
    assert found["ci95"] == pytest.approx([0.06759, 0.93241], abs=1e-4)  # Clopper and Pearson's for 2 of 4


def summed(*returns: list[float | None], pass_at: float = 1.0) -> dict[str, Any]:
    """The result of an evaluation with these returns of each task's attempts. None was not scored."""
    tasks = chosen([Task("e", {"n": n}) for n in range(len(returns))], 0)
    found = Evaluation(About("m", "e", "s", "r"), planned(tasks, len(returns[0])), pass_at)
    for one in found.planned:
        total = returns[one.of.index][one.number]
        outcome, blamed = ("finished", None) if total is not None else ("endpoint_failed", "endpoint")
        found.take(Attempt(one.id, one.of.index, one.number, total, outcome, 2, failed_by=blamed))
    return found.as_json()


def numbers(found: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(found[name] for name in ("mean_return", "pass@1", "pass@k", "pass^k"))


def test_all_right_and_all_wrong_have_an_interval_that_is_no_point():
    found = summed([1.0, 1.0], [1.0, 1.0], [1.0, 1.0])
    assert numbers(found) == (1.0, 1.0, 1.0, 1.0)
    assert found["ci95"] == pytest.approx([0.025 ** (1 / 3), 1.0])  # Clopper and Pearson's for 3 of 3
    found = summed([0.0, 0.0], [0.0, 0.0], [0.0, 0.0])
    assert numbers(found) == (0.0, 0.0, 0.0, 0.0)
    assert found["ci95"] == pytest.approx([0.0, 1 - 0.025 ** (1 / 3)])


def test_tries_are_averaged_for_each_task_first():
    found = summed([1.0, 1.0], [1.0, 0.0], [0.0, 0.0], [0.0, 0.0])
    assert numbers(found) == (0.375, 0.375, 0.5, 0.25)
    deviation = math.sqrt(((1 - 0.375) ** 2 + (0.5 - 0.375) ** 2 + 2 * 0.375**2) / 3)
    half = 3.182446305 * deviation / 2  # Student's t with 3 degrees of freedom
    assert found["ci95"] == pytest.approx([0.375 - half, 0.375 + half])


def test_one_task_has_a_mean_and_no_interval_unless_it_is_of_ones_and_zeros():
    found = summed([0.5, 0.25])
    assert (found["mean_return"], found["ci95"]) == (0.375, None)
    assert summed([1.0])["ci95"] == pytest.approx([0.025, 1.0])


def test_what_was_not_scored_is_left_out_and_is_no_zero():
    found = summed([1.0, None], [1.0, 1.0], [None, None])
    assert (found["n"], found["scored"], found["unscored"]) == (6, 3, 3)
    assert numbers(found) == (1.0, 1.0, 1.0, 1.0)  # pass@2 and pass^2 are of the one task with two scores
    assert found["failures"] == {"infrastructure": 0, "endpoint": 3, "agent": 0}
    nothing = summed([None], [None])
    assert numbers(nothing) == (None, None, None, None)
    assert (nothing["ci95"], nothing["mean_turns"]) == (None, None)


def test_passing_may_take_less_than_1():
    assert numbers(summed([0.5, 0.0], [0.4, 0.0], pass_at=0.5))[1:] == (0.25, 0.5, 0.0)
    assert summed([sum([0.1] * 10)])["pass@1"] == 1.0  # a little less than 1


# Failures.


def test_failures_of_ours_of_the_endpoint_and_of_the_agent_are_three_things(here, capsys):
    """Tasks 1 and 3 cannot be set up; for 0 and 2 the model answers nonsense, and its endpoint nothing at all."""

    def reply(body: Body) -> bytes:
        return refused("401 Unauthorized", "who are you") if "Say 0." in str(body) else said("Well.")

    with model(reply) as asked:
        words = (f"{WORLDS}:Broken", "--model", "m", "--base-url", asked.url)
        found = evaluate(here / "out.json", *words)
    assert found["failures"] == {"infrastructure": 2, "endpoint": 1, "agent": 1}
    assert (found["n"], found["scored"], found["unscored"], found["mean_return"]) == (4, 1, 3, 0.0)
    outcomes = [one["outcome"] for one in found["episodes"]]
    assert outcomes == ["endpoint_failed", "infrastructure_failed", "no_tool_call", "infrastructure_failed"]
    assert "who are you" in capsys.readouterr().out


def test_an_endpoint_that_is_slow_busy_and_breaks_off_costs_no_episode(here):
    asked_so_often = Counter[str]()

    def reply(body: Body) -> bytes | None:
        prompt = body["messages"][0]["content"]
        asked_so_often[prompt] += 1
        match asked_so_often[prompt]:
            case 1:
                return refused("429 Too Many Requests", "slow down", "Retry-After: 1")
            case 2:
                return None
            case 3:
                return said(None, ("look", {}), ("say", '{"number":'))
            case _:
                time.sleep(0.1)
                return right(body)

    with model(reply) as asked:
        found = evaluate(here / "out.json", GUESS, "--model", "m", "--base-url", asked.url)
    assert (found["n"], found["scored"], found["mean_return"], found["mean_turns"]) == (4, 4, 1.0, 2.0)


def test_an_agent_that_raises_has_no_return(here):
    found = evaluate(here / "out.json", GUESS, "--agent", "my_agents:clumsy")
    assert (found["scored"], found["unscored"], found["failures"]["agent"]) == (0, 4, 4)


def test_the_cost_is_a_limit_for_all(here, capsys):
    with model(right) as asked:
        words = (GUESS, "--model", "m", "--base-url", asked.url, "--concurrency", "1", "--max-cost", "0.00002")
        found = evaluate(here / "out.json", *words, "--completion-price", "2")
    assert 1 <= found["n"] <= 2
    assert "--max-cost 2e-05 is spent" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--tasks", "a:b", "--agent", "random"), "--tasks is 'a:b'"),
        ((), "say who plays"),
        (("--agent", "nobody"), "module:function"),
        (("--agent", "no_such_module:f"), "no_such_module"),
        (("--agent", "my_agents:nobody"), "no function 'nobody'"),
        (("--agent", "random", "--split", "tset"), "tset"),
        (("--agent", "random", "--tasks", "90:"), "has no tasks 90:"),
        (("--agent", "random", "--environment", "other"), "no environment 'other'"),
        (("--agent", "random", "--resume"), "--resume needs --json"),
        (("--agent", "random", "--repeat", "0"), "--repeat is 0"),
        (("--agent", "random", "--json", "no_such_folder/out.json"), "cannot be written"),
        (("--model", "m", "--system", "no_such_file"), "--system no_such_file cannot be read"),
        (("--model", "m", "--body", "[]"), "--body must be a JSON object"),
        (("--model", "m", "--max-cost", "1"), "--max-cost needs"),
        (("--agent", "random", "--secret", "key"), "--secret is 'key'; it has the form NAME=VALUE"),
    ],
)
def test_what_makes_no_sense_is_said_in_a_sentence(here, capsys, words, why):
    assert main(["eval", GUESS, *words]) == 2
    assert why in " ".join(capsys.readouterr().err.split())


def test_without_the_extra_a_model_is_asked_for_by_the_name_of_what_is_missing(here):
    script = f"import sys; sys.modules['openai'] = None; import toolyard.cli; toolyard.cli.main({['eval', GUESS]!r}"
    script += " + sys.argv[1:])"
    argv = [sys.executable, "-c", script, "--model", "m"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert "pip install 'toolyard[eval]'" in done.stderr
    done = subprocess.run([*argv[:3], "--agent", "random"], capture_output=True, text=True, check=False)
    assert "random on guess" in done.stdout, done.stderr


def test_a_server_that_is_not_there_is_named(here, capsys):
    assert main(["eval", "http://127.0.0.1:9", "--agent", "random"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert said.startswith("toolyard eval: there is no answer from http://127.0.0.1:9 (no connection to the server")
    assert said.endswith("To start a server: toolyard serve")


# Stopping and resuming.


def test_ctrl_c_keeps_what_was_made_and_resume_loses_and_repeats_nothing(here):
    out, store = here / "out.json", here / "runs.db"
    argv = [TOOLYARD, "eval", GUESS, "--agent", "my_agents:slow", "--repeat", "5", "--concurrency", "2"]
    argv += ["--json", str(out), "--record", str(store)]
    command = Command(argv, env={"PYTHONPATH": str(here)}, cwd=here)
    journal = here / "out.json.journal"
    wait_for(lambda: journal.exists() and journal.read_text().count("\n") >= 4)
    os.kill(command.process.pid, signal.SIGINT)
    assert command.wait() == 130
    assert "--resume goes on" in command.output
    before = json.loads(out.read_text())
    assert 3 <= before["n"] < 20
    assert before["scored"] == before["n"]

    assert (
        main(["eval", GUESS, "--agent", "my_agents:slow", "--repeat", "5", "--json", str(out)]) == 2
    )  # not by mistake
    command = Command([*argv, "--resume"], env={"PYTHONPATH": str(here)}, cwd=here)
    assert command.wait(60) == 0
    after = json.loads(out.read_text())
    assert (after["n"], after["scored"], after["mean_return"]) == (20, 20, 1.0)
    assert len({one["id"] for one in after["episodes"]}) == 20
    assert len(journal.read_text().splitlines()) == 21  # no attempt ran twice
    assert [one for one in after["episodes"] if one in before["episodes"]] == before["episodes"]
    with Store([store]) as read:
        ended = Counter(one.labels["attempt"] for one in read.episodes(Filter(outcome="finished")))
    assert ended == Counter(one["id"] for one in after["episodes"])


def test_killed_at_once_it_has_lost_nothing_that_had_ended(here):
    out, journal = here / "out.json", here / "out.json.journal"
    argv = [TOOLYARD, "eval", GUESS, "--agent", "my_agents:slow", "--repeat", "3", "--concurrency", "2"]
    command = Command([*argv, "--json", str(out)], env={"PYTHONPATH": str(here)}, cwd=here)
    wait_for(lambda: journal.exists() and journal.read_text().count("\n") >= 4)
    command.process.kill()
    command.wait()
    before = journal.read_text()
    found = evaluate(out, GUESS, "--agent", "my_agents:right", "--model", "my_agents:slow", "--repeat", "3", "--resume")
    assert (found["n"], found["scored"]) == (12, 12)
    assert journal.read_text().startswith(before[: before.rindex("\n") + 1])
    assert len(journal.read_text().splitlines()) == 13


def test_resume_tries_again_what_others_broke_and_keeps_the_failure_as_history(here):
    out = here / "out.json"
    with model(in_turn(refused("401 Unauthorized"))) as asked:
        first = evaluate(out, GUESS, "--model", "m", "--base-url", asked.url, "--tasks", "0:2")
    assert first["failures"]["endpoint"] == 2
    with model(right) as asked:
        found = evaluate(out, GUESS, "--model", "m", "--base-url", asked.url, "--tasks", "0:2", "--resume")
    assert (found["n"], found["scored"], found["mean_return"]) == (2, 2, 1.0)
    assert [one["id"] for one in found["episodes"]] == [one["id"] for one in first["episodes"]]
    lines = [json.loads(line) for line in (here / "out.json.journal").read_text().splitlines()[1:]]
    assert [line["outcome"] for line in lines] == ["endpoint_failed"] * 2 + ["finished"] * 2


def test_resume_can_go_further_and_survives_half_a_line(here):
    out, journal = here / "out.json", here / "out.json.journal"
    first = evaluate(out, GUESS, "--agent", "my_agents:right", "--tasks", "0:2")
    with journal.open("a") as file:
        file.write('{"id": "abc", "ind')
    found = evaluate(out, GUESS, "--agent", "my_agents:right", "--repeat", "2", "--resume")
    assert (found["n"], found["mean_return"]) == (8, 1.0)
    assert [one for one in found["episodes"] if one in first["episodes"]] == first["episodes"]
    assert all(json.loads(line) for line in journal.read_text().splitlines())
    assert len(journal.read_text().splitlines()) == 9


def test_resume_of_something_else_is_refused(here, capsys):
    out = here / "out.json"
    evaluate(out, GUESS, "--agent", "my_agents:right")
    assert main(["eval", GUESS, "--agent", "random", "--json", str(out), "--resume"]) == 2
    assert "is of the model 'my_agents:right', and not 'random'" in " ".join(capsys.readouterr().err.split())


def wait_for(condition, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.02)


def test_an_attempt_is_named_for_its_task_and_not_for_its_place():
    tasks = [Task("e", {"n": n}) for n in (1, 2, 1)]
    one, two, same = chosen(tasks, 0)
    assert len({one.key, two.key, same.key}) == 3
    assert [found.key for found in chosen(tasks[1:], 1)] == [two.key, one.key]


def test_what_the_model_wrote_beside_its_calls_is_recorded_with_them(here):
    thought = "Größe? 100 % sure.\nSo: " + "é" * 20_000

    def reply(body: Body) -> bytes:
        number = int(body["messages"][0]["content"][4:-1])
        return said(thought[:24] if number else thought, ("hint", {}), ("say", {"number": number}), reasoning="Hm.")

    store = here / "runs.db"
    with model(reply) as asked:
        words = (GUESS, "--model", "m", "--base-url", asked.url, "--tasks", ":2", "--record", str(store))
        evaluate(here / "out.json", *words)
    with Store([store]) as read:
        long, short = (
            [step.said for step in read.steps(one)]
            for one in sorted(read.episodes(Filter()), key=lambda one: one.index or 0)
        )
    assert short == [f"<think>Hm.</think>\n{thought[:24]}", None]
    assert long[0].startswith(f"<think>Hm.</think>\n{thought[:1000]}")
    assert long[0].endswith("é…")  # a header's length is limited
