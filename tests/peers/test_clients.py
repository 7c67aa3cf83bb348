"""The real clients, with everything that they can do. Numbers refer to the conformance cases."""

from __future__ import annotations

import pytest

from tests.peers.worlds import CountEnv, DoorEnv, GravEnv
from tests.worlds import MathEnv
from toolyard import __version__
from toolyard.testing import running

pytestmark = pytest.mark.thorough

both = pytest.mark.parametrize("sdk", ["ors", "openreward"])
sync_and_async = pytest.mark.parametrize("mode", ["sync", "async"])

SHARED = ["submit", "big", "slow", "block", "boom", "noparam", "half", "read_file", "secret"]

WRONG = "99 does not open the door; the code has four digits that follow each other"


def text(value):
    return [{"text": value, "detail": None, "type": "text"}]


def output(value, *, reward=None, finished=False, metadata=None):
    return {"blocks": text(value), "metadata": metadata, "reward": reward, "finished": finished}


@both
@sync_and_async
def test_a_client_can_do_all_that_its_documents_say(client, yard, sdk, mode):
    """Case 65."""
    seen = client(sdk, "tour", sdk=sdk, mode=mode, url=yard.url)
    assert seen["splits"] == ["train", "custom", "test"]
    assert seen["tasks"] == [{"q": str(n), "a": str(n)} for n in range(5)]
    assert seen["num_tasks"] == 5
    assert seen["task"] == {"q": "4", "a": "4"}
    assert seen["range"] == ["3", "4"]
    assert seen["slice"] == ["1", "2"]
    assert seen["tools"] == SHARED
    assert [tool["name"] for tool in seen["formats"]["openai"]] == SHARED
    assert seen["formats"]["anthropic"][0]["input_schema"]["required"] == ["answer"]
    assert [len(tools) for tools in seen["formats"].values()] == [len(SHARED)] * 4

    assert seen["prompt"] == text("2")
    assert seen["session_tools"] == [*SHARED, "hidden"]
    assert set(seen["session_formats"].values()) == {len(SHARED) + 1}
    assert seen["secret"] == output("v é")
    assert seen["nothing"] == output("nothing")
    assert seen["half"] == output("21.0")
    assert seen["hidden"] == output("found")
    assert seen["submit"] == output("ok 4", reward=1.0, finished=True)
    assert seen["from_task"] == text("0")
    assert seen["other_prompt"] == text("other 1")
    assert seen["other"] == output("the other one")
    assert seen["chat_tools"] == ["think"]
    assert [block["text"] for block in seen["chat_prompt"]][:4] == ["[system]", "be brief", "[user]", "2+2?"]


@sync_and_async
def test_openrewards_client_can_do_all_that_only_it_can(client, yard, mode):
    """Case 65, the rest of it."""
    seen = client("openreward", "tour", sdk="openreward", mode=mode, url=yard.url)
    assert seen["version"] == {"version": __version__, "build_sha": None}
    assert seen["messages"] == [{"role": "user", "blocks": text("2"), "detail": None}]
    assert seen["scoring"] is False
    assert seen["score_error"]["type"] == "ScoreGroupUnsupported"
    assert seen["terminal"] is None

    assert [message["role"] for message in seen["chat_messages"]] == ["system", "user", "assistant", "user"]
    assert [block["type"] for block in seen["chat_messages"][2]["blocks"]] == ["reasoning", "tool_call"]
    assert seen["chat_messages"][3]["blocks"][0]["blocks"] == text("done")
    assert seen["chat_formats"] == ["list", "dict"]
    assert seen["chat_scoring"] is True
    assert seen["scores"] == [{"reward": 3.0, "metadata": {"n": 1}}, {"reward": 1.0, "metadata": None}]
    assert seen["score_failure"]["type"] == "ScoreGroupFailed"
    assert "nobody to compare" in seen["score_failure"]["text"]
    assert seen["chat_terminal"] == {"name": "answer", "arg": "message", "description": "Grade the last message."}
    assert seen["final"] is True
    assert seen["answered"] == {"blocks": [], "metadata": None, "reward": 1.0, "finished": True}
    assert seen["after_the_end"]["reason"] == "episode_finished"

    assert seen["bare_tools"] == SHARED
    assert seen["bare_task"]["environment_name"] == "mathenv"
    assert seen["bare_task"]["task_spec"] == {"q": "1", "a": "1"}
    assert seen["named_prompt"] == text("other 0")
    assert seen["namespaced_tools"] == ["other"]
    assert seen["env_terminal"]["name"] == "answer"
    assert seen["env_scoring"] is True
    assert "shell" in seen["toolset_tools"]
    assert seen["toolset_call"] == output("task 1")
    assert seen["bare_submit"]["reward"] == 1.0


@both
def test_two_hundred_sessions_at_once_each_earn_their_own_reward(client, yard, sdk):
    episodes = client(sdk, "episodes", sdk=sdk, url=yard.url, count=200)
    assert episodes == [
        {
            "prompt": f"start at {start}",
            "tools": ["add", "finish"],
            "rewards": [0.1, 0.2, 0.3],
            "text": f"sum {start + 6}",
            "reward": start + 6,
            "finished": True,
        }
        for start in range(200)
    ]
    assert not yard.server.runtime.sessions


@pytest.mark.parametrize(("sdk", "mode"), [("ors", "async"), ("openreward", "sync"), ("openreward", "async")])
def test_what_goes_wrong_is_told_apart(client, sdk, mode):
    with running([MathEnv], api_key="right") as locked, running([MathEnv, GravEnv], call_seconds=1.5) as server:
        seen = client(sdk, "failures", sdk=sdk, mode=mode, url=server.url, locked_url=locked.url)
    refused = "ToolCallError"
    for what, words in {
        "unknown_tool": "'nope' is not a valid tool",
        "not_a_tool": "'setup' is not a valid tool",
        "bad_arguments": "Tool input validation error: ",
        "after_finished": "'noparam' was not run: the episode has finished",
    }.items():
        assert seen[what]["type"] == refused, what
        assert words in seen[what]["text"]
    assert seen["still_alive"] == output("ok yes", reward=1.0, finished=True)
    assert "line1\nline2 é" in seen["raised"]["text"]
    assert "ValueError: setup boom" in seen["setup_prompt"]["text"]
    assert "Invalid split" in seen["unknown_split"]["text"]
    assert "unknown environment 'nowhere'" in seen["unknown_environment"]["text"]
    assert seen["wrong_key"]["type"] == "AuthenticationError"
    assert "a valid API key is required" in seen["wrong_key"]["text"]
    assert seen["right_key"] == ["train", "custom", "test"]
    if sdk == "ors":
        assert seen["tool_error"]["type"] == refused
        assert "Tool 'read_file' failed: File not found" in seen["tool_error"]["text"]
        assert seen["raised"]["type"] == "RuntimeError"
        assert seen["after_raised"] == output("nothing"), "an exception in a tool does not end an ors-sdk session"
    else:
        said = output("Tool 'read_file' failed: File not found", metadata={"reason": "tool_failed"})
        assert seen["tool_error"] == said, "a reason that this client does not know would be not_found to it"
        assert seen["late"]["type"] == "ToolFailed", "what took too long is no mistake of the agent"
        assert "1.5 s" in seen["late"]["text"]
        assert seen["after_late"]["type"] == "SessionTerminatedError"
        assert [block["type"] for block in seen["image"]["blocks"]] == ["image", "text"]
        assert seen["image"]["blocks"][1] == text("[an image: image/png]")[0]
        assert seen["images"]["blocks"][2] == text("[2 images: image/png, image/png]")[0]
        assert seen["raised"]["type"] == "ToolFailed"
        assert seen["after_raised"] == "SessionTerminatedError"
        assert "setup boom" in seen["setup_call"]["text"]
        assert [seen[what]["reason"] for what in ("unknown_tool", "bad_arguments", "after_finished")] == [
            "not_found",
            "input_validation",
            "episode_finished",
        ]


@both
def test_a_text_of_any_content_and_length_arrives_as_it_was(client, yard, sdk):
    """Cases 50 and 51, and everything between them."""
    seen = client(sdk, "read_texts", sdk=sdk, url=yard.url, count=400)
    assert seen["different"] == []
    assert seen["characters"] > 4_000_000


def test_trl_trains_on_our_tasks_rewards_and_tools(client, yard):
    with running([CountEnv]) as server:
        seen = client("trl", "trl_rollouts", url=server.url, num_tasks=4)
        assert not server.server.runtime.sessions
    assert seen["columns"] == ["prompt", "task_index", "kind", "start"]
    assert [(row["task_index"], row["start"]) for row in seen["rows"]] == [(n, n) for n in range(4)]
    assert seen["prompts"] == [f"start at {n}" for n in range(4)]
    assert seen["answers"] == [["0", "sum 10"], ["2", "sum 12"], ["4", "sum 14"], ["6", ""]]
    assert seen["steps"][1:] == [[0.1, 1.0, 12.0], [0.2, 1.0, 14.0], [0.3, 1.0]]
    assert seen["metadata"] == [{"added": 1}, {"added": 10}, None]
    assert seen["again"]["refused"].startswith("Error: episode_finished")
    assert seen["again"]["reset"] == "start at 3"
    assert seen["again"]["reward"] is None
    assert seen["unknown"].startswith("Error: input_validation")
    assert seen["rewards"] == [None, 12.0, 14.0, 1.0]
    assert seen["finished"] == [False, True, True, False]
    assert seen["signature"] == "(self, number: int) -> str"
    assert seen["doc"] == "Add a number.\n\n    Args:\n        number: what to add"
    assert seen["heavy"] == []
    assert seen["indices"] == [4, 2]
    assert seen["whole"] == 300


def test_a_model_that_trl_trains_reads_what_was_wrong_and_goes_on(client):
    with running([DoorEnv]) as server:
        seen = client("trl", "trl_mistakes", url=server.url)
    assert seen["read"] == [f"Tool 'enter' failed: {WRONG}", "[an image: image/png]", "open"]
    assert seen["rewards"] == [None, None, 1.0]
    assert (seen["reward"], seen["finished"]) == (1.0, True)
