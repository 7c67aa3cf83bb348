"""Whole episodes on the examples, with evaluation and training tools built on openreward's client."""

from __future__ import annotations

import json
import random

import pytest

from examples.arithmetic import Arithmetic
from examples.exam import Exam
from examples.maze import STEPS, Maze, carve, distances, neighbour
from tests.peers.worlds import DoorEnv
from toolyard.testing import running

pytestmark = pytest.mark.thorough

WRONG = "Tool 'enter' failed: 99 does not open the door; the code has four digits that follow each other"
OPENED = "open"
BUILDER = {"answer": "Ada Brandt"}


@pytest.fixture(scope="module")
def examples():
    with running([Arithmetic, Exam, Maze, DoorEnv], placement="process") as server:
        yield server


def way_out(task):
    """The moves that lead out of a maze."""
    passages = carve(task["size"], random.Random(task["seed"]))
    left = distances(passages, (task["size"] - 1, task["size"] - 1))
    room, moves = (0, 0), []
    while left[room]:
        nearer = min(passages[room], key=left.__getitem__)
        moves.append(["move", {"direction": next(step for step in STEPS if neighbour(room, step) == nearer)}])
        room = nearer
    return moves


def played():
    answer = Arithmetic.list_tasks("train")[3]["answer"]
    return [
        {"env": "arithmetic", "index": 3, "calls": [["submit", {"answer": answer}]]},
        {"env": "arithmetic", "index": 3, "calls": [["submit", {"answer": "no idea"}]]},
        {
            "env": "exam",
            "index": 2,
            "calls": [["search", {"query": "lighthouse"}], ["submit_answer", {"answer": "Ada Brandt"}]],
        },
        {"env": "maze", "index": 0, "calls": way_out(Maze.list_tasks("train")[0])},
        {"env": "doorenv", "index": 0, "calls": [["enter", {"code": "99"}], ["draw", {}], ["enter", {"code": "1234"}]]},
        {"env": "doorenv", "index": 0, "calls": [["burn", {}], ["enter", {"code": "1234"}]]},
    ]


def as_text(call):
    return f"I shall.\n<tool_call>\n{json.dumps({'name': call[0], 'arguments': call[1]})}\n</tool_call>"


def test_inspect_evaluates_whole_episodes_and_no_failure_of_ours_is_a_score(client, examples):
    mistaken = {"env": "exam", "index": 0, "calls": [["select_option", {}], ["select_option", {"option": "B"}]]}
    seen = client("inspect", "inspect_episodes", url=examples.url, played=[*played(), mistaken])
    right, wrong, book, maze, door, burnt, option = seen
    assert [one["status"] for one in seen] == ["success"] * 5 + ["error", "success"]
    assert (right["read"], right["scores"], right["finished"]) == (["Correct."], [1.0], True)
    assert (wrong["read"], wrong["scores"], wrong["finished"]) == (["There is no number in that answer."], [0.0], True)
    assert right["prompt"].startswith(Arithmetic.list_tasks("train")[3]["question"])
    assert "Ada Brandt" in book["read"][0]
    assert book["scores"] == [1.0]
    assert maze["read"][-1] == "You found the exit."
    assert maze["finished"]
    assert door["read"] == [WRONG, "[an image: image/png]", OPENED], "the agent reads what was wrong, and goes on"
    assert door["scores"] == [1.0]
    assert "'option'" in option["read"][0], "Inspect itself checks the arguments, and names the one that is missing"
    assert (option["read"][1:], option["scores"]) == (["Correct."], [1.0])
    assert burnt["scores"] == [], "a session that was lost is an error of its sample, not a score of 0"
    assert "its process ended by signal SIGKILL" in burnt["error"]


def test_the_loop_of_slimes_recipe_trains_on_the_examples(client, examples):
    told = [{**one, "said": [as_text(call) for call in one.pop("calls")]} for one in played()]
    told[0]["said"].insert(0, "Let me think.")
    odd = [as_text(call) for call in (["knock", {"times": 3}], ["knob", {}], ["knock", {"times": 2}])]
    told.append({"env": "doorenv", "index": 0, "said": [*odd, as_text(["enter", {"code": "1234"}])]})
    right, wrong, book, maze, door, burnt, corrected = client(
        "openreward", "slime_rollouts", url=examples.url, played=told
    )
    assert right["read"] == ["no tool call", "Correct."]
    assert [one["stop"] for one in (right, wrong, book, maze, door, corrected)] == ["reached_terminal_state"] * 6
    assert [one["reward"] for one in (right, wrong, book, door, corrected)] == [1.0, 0.0, 1.0, 1.0, 1.0]
    assert maze["reward"] == pytest.approx(1)
    assert book["tools"] == ["submit_answer", "search"]
    assert (door["read"], door["failed"]) == ([WRONG, "[an image: image/png]", OPENED], 0)
    assert corrected["failed"] == 2
    assert corrected["read"][0].startswith("Error: input_validation: Tool input validation error")
    assert "the number must be even" in corrected["read"][0]
    assert corrected["read"][1].startswith("Error: not_found")
    assert corrected["read"][2:] == ["who is there?", OPENED]
    assert (burnt["stop"], burnt["rewards"], burnt["read"]) == ("error: ToolFailed", [], [])
