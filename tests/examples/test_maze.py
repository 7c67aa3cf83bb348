"""The maze example: rewards for each step, and a position that belongs to one session."""

from __future__ import annotations

import re

import pytest

from toolyard import Client
from toolyard.client import Session, ToolCallFailed

TURNS = ["north", "east", "south", "west"]


def ways_in(text: str) -> list[str]:
    return re.findall("north|east|south|west", text.partition("There is a way")[2])


def walk_out(session: Session) -> list:
    """Keep a hand on the left wall: that leads out of any such maze."""
    outputs = []
    facing = 1
    ways = ways_in(session.get_prompt()[0].text)
    while not outputs or not outputs[-1].finished:
        facing = next(turn % 4 for turn in range(facing - 1, facing + 3) if TURNS[turn % 4] in ways)
        outputs.append(session.call_tool("move", {"direction": TURNS[facing]}))
        ways = ways_in(outputs[-1].text)
    return outputs


@pytest.mark.parametrize("index", range(4))
def test_the_rewards_of_an_episode_that_gets_out_add_up_to_one(client: Client, index: int):
    with client.environments.get("maze").session(split="train", index=index) as session:
        outputs = walk_out(session)
    assert outputs[-1].text == "You found the exit."
    assert all(output.reward for output in outputs)
    assert sum(output.reward for output in outputs) == pytest.approx(1)


def test_a_wall_costs_and_does_not_move_the_player(client: Client):
    with client.environments.get("maze").session(split="train", index=0) as session:
        output = session.call_tool("move", {"direction": "north"})
        assert output.text.startswith("There is a wall to the north. You are in column 1, row 1.")
    assert output.reward == -0.05
    assert not output.finished


def test_moves_run_out(client: Client):
    with client.environments.get("maze").session(split="train", index=0) as session:
        outputs = [session.call_tool("move", {"direction": "north"}) for _ in range(36)]
        assert [output.finished for output in outputs] == [False] * 35 + [True]
        assert outputs[-1].text.endswith("You have no moves left.")
        with pytest.raises(ToolCallFailed) as refused:
            session.call_tool("move", {"direction": "east"})
    assert refused.value.reason == "episode_finished"


def test_two_sessions_of_one_task_do_not_see_each_other(client: Client):
    maze = client.environments.get("maze")
    with maze.session(split="train", index=0) as first, maze.session(split="train", index=0) as second:
        before = second.call_tool("look_at_map").text
        first.call_tool("move", {"direction": "east"})
        assert second.call_tool("look_at_map").text == before
        assert first.call_tool("look_at_map").text != before


def test_the_map_shows_what_was_seen(client: Client):
    with client.environments.get("maze").session(split="train", index=0) as session:
        assert session.call_tool("look_at_map").text == "@ -\n\n\n\n        X"
        session.call_tool("move", {"direction": "east"})
        assert session.call_tool("look_at_map").text == "o - @\n    |\n\n\n        X"


def test_a_direction_that_is_none_is_refused(client: Client):
    with (
        client.environments.get("maze").session(split="train", index=0) as session,
        pytest.raises(ToolCallFailed) as refused,
    ):
        session.call_tool("move", {"direction": "up"})
    assert refused.value.reason == "bad_arguments"
