"""The loop around a model: against endpoints that are slow, busy, broken or wrong, and models that are."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from tests.agents.models import USAGE, Body, Model, in_turn, model, refused, said, streamed
from tests.agents.worlds import PNG, Broken, Essay, Guess, Slow
from tests.client.scripted import answer
from toolyard.agents import ChatAgent, Endpoint, Rollout, play
from toolyard.agents.chat import ASK_ONCE_MORE
from toolyard.agents.endpoint import retry_after
from toolyard.client import AsyncClient
from toolyard.testing import Running, running

pytestmark = pytest.mark.anyio
RIGHT = said(None, ("say", {"number": 1}))


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running([Guess, Essay]) as found:
        yield found


async def played(
    server: Running, reply, environment: str = "guess", *, seconds: float | None = None, stream=False, **limits
) -> tuple[Rollout, Model]:
    """Number 1 of the list of tasks, and what the model was asked."""
    with model(reply) as asked:
        endpoint = Endpoint("m", asked.url, pause=0.01, stream=stream, options={"temperature": 0.5})
        async with AsyncClient(server.url) as client:
            found = client.environment(environment)
            task = (await found.list_tasks("train"))[-1]
            rollout = await play(found.session(task), ChatAgent(endpoint, **limits), task, seconds=seconds)
        await endpoint.aclose()
    return rollout, asked


async def test_a_model_gets_prompt_and_tools_and_its_calls_are_made_until_the_end(server):
    rollout, asked = await played(server, in_turn(said("Hm.", ("hint", {})), RIGHT), system="Be brief.")
    assert (rollout.outcome, rollout.total, rollout.turns) == ("finished", 1.25, 2)
    assert rollout.rewards == [0.25, 1.0]
    first, second = asked.bodies
    assert first["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say 1."}]
    assert (first["model"], first["temperature"]) == ("m", 0.5)
    assert [tool["function"]["name"] for tool in first["tools"]] == ["look", "say", "hint", "fail"]
    call, result = second["messages"][2:]
    assert (call["content"], call["tool_calls"][0]["function"]["name"]) == ("Hm.", "hint")
    assert result == {"role": "tool", "tool_call_id": "call_0", "content": "it is a number"}
    assert rollout.tokens.as_json() == {"prompt": 20, "completion": 10, "cached": 8, "reasoning": 4}
    assert [message["role"] for message in rollout.messages] == ["system", "user", *(2 * ["assistant", "tool"])]


async def test_several_calls_of_one_turn_are_made_in_order_and_none_after_the_end(server):
    reply = said(None, ("hint", {}), ("fail", {}), ("say", {"number": 1}), ("hint", {}))
    rollout, _ = await played(server, in_turn(reply))
    assert (rollout.outcome, rollout.total, rollout.turns) == ("finished", 1.25, 1)
    assert [call.failure for call in rollout.calls] == ["", "tool_failed", "", "episode_finished"]


async def test_images_in_results_are_shown_to_the_model(server):
    _, asked = await played(server, in_turn(said(None, ("look", {})), RIGHT))
    result, picture = asked.last[-2:]
    assert (result["role"], result["content"]) == ("tool", "a picture\n[an image: image/png]")
    assert picture["role"] == "user"
    assert picture["content"][-1] == {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}


@pytest.mark.parametrize("written", ['{"number": ', "[1]", "no json", '{"number": "one"}'])
async def test_a_malformed_call_is_given_back_to_the_model_as_an_error(server, written):
    rollout, asked = await played(server, in_turn(said(None, ("say", written)), RIGHT))
    assert (rollout.outcome, rollout.total) == ("finished", 1.0)
    assert [call.failure for call in rollout.calls] == ["bad_arguments", ""]
    assert asked.last[-1]["content"].startswith("Error: ")
    sent = asked.last[-2]["tool_calls"][0]["function"]["arguments"]
    assert isinstance(json.loads(sent), dict)  # what is no object is not sent back
    assert rollout.messages[1]["tool_calls"][0]["function"]["arguments"] == written  # but kept


async def test_a_call_of_no_tool_at_all_is_an_error_for_the_model(server):
    rollout, _ = await played(server, in_turn(said(None, ("", {})), said(None, ("dance", {})), RIGHT))
    assert [call.failure for call in rollout.calls] == ["no_such_tool", "no_such_tool", ""]
    assert rollout.total == 1.0


async def test_text_without_a_call_is_asked_about_once_and_then_ends_the_episode(server):
    rollout, asked = await played(server, in_turn(said(None, ("hint", {})), said("One.")))
    assert (rollout.outcome, rollout.failed_by, rollout.total, rollout.turns) == ("no_tool_call", "agent", 0.25, 3)
    assert asked.last[-1] == {"role": "user", "content": ASK_ONCE_MORE}


async def test_a_model_that_calls_a_tool_after_all_goes_on(server):
    rollout, _ = await played(server, in_turn(said("Hm."), said(None, ("hint", {})), said("Hm."), RIGHT))
    assert (rollout.outcome, rollout.total) == ("finished", 1.25)


async def test_where_the_last_message_is_the_answer_text_ends_the_episode_well(server):
    rollout, _ = await played(server, in_turn(said("12345")), "essay")
    assert (rollout.outcome, rollout.total) == ("finished", 5.0)


@pytest.mark.parametrize(
    ("reply", "limits", "outcome", "turns"),
    [
        (said(None, ("fail", {})), {"max_turns": 3}, "max_turns", 3),
        (said(None, ("fail", {})), {"max_tokens": 6}, "max_tokens", 2),
        (said("Well, ", finish="length"), {}, "length", 1),
        (said(None, ("say", '{"num'), finish="length"), {}, "length", 1),
        (refused("400 Bad Request", "too much", code="context_length_exceeded"), {}, "context_too_long", 0),
        (refused("400 Bad Request", "the maximum context length is 8 tokens"), {}, "context_too_long", 0),
    ],
)
async def test_a_model_that_comes_to_a_limit_has_earned_nothing_and_that_is_a_return(
    server, reply, limits, outcome, turns
):
    rollout, _ = await played(server, in_turn(reply), **limits)
    assert (rollout.outcome, rollout.failed_by, rollout.total, rollout.turns) == (outcome, "agent", 0.0, turns)


@pytest.mark.parametrize(
    "trouble",
    [
        None,
        refused("500 Internal Server Error"),
        refused("429 Too Many Requests"),
        refused("503 Service Unavailable", "busy", "Retry-After: 0"),
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100\r\nConnection: close\r\n\r\n{",
        answer(b"<html>"),
        answer(b'{"choices": []}'),
    ],
    ids=["hangs up", "500", "429", "503", "half an answer", "HTML", "no choice"],
)
async def test_trouble_of_the_endpoint_that_passes_is_no_trouble_of_the_episode(server, trouble):
    rollout, asked = await played(server, in_turn(trouble, trouble, RIGHT))
    assert (rollout.outcome, rollout.total, len(asked.bodies)) == ("finished", 1.0, 3)


@pytest.mark.parametrize("trouble", [None, refused("500 Internal Server Error"), refused("429 Too Many Requests")])
async def test_an_endpoint_that_never_answers_is_given_up_after_five_tries_and_nothing_is_scored(server, trouble):
    rollout, asked = await played(server, in_turn(said(None, ("hint", {})), trouble))
    assert (rollout.outcome, rollout.failed_by, rollout.total) == ("endpoint_failed", "endpoint", None)
    assert len(asked.bodies) == 6
    assert "5 tries" in rollout.error


@pytest.mark.parametrize("status", ["401 Unauthorized", "404 Not Found", "400 Bad Request"])
async def test_an_endpoint_that_refuses_is_asked_once(server, status):
    rollout, asked = await played(server, in_turn(refused(status, "who are you")))
    assert (rollout.outcome, len(asked.bodies)) == ("endpoint_failed", 1)
    assert "who are you" in rollout.error


async def test_waiting_as_told_is_neither_trying_nor_working_time(server):
    busy = refused("429 Too Many Requests", "slow down", "Retry-After: 1")
    began = time.monotonic()
    rollout, asked = await played(server, in_turn(busy, busy, RIGHT), seconds=1.5)
    assert rollout.outcome == "finished"
    assert len(asked.bodies) == 3
    assert time.monotonic() - began > 2


async def test_an_agent_has_so_much_time_and_no_more(server):
    def slow(body: Body) -> bytes:
        time.sleep(0.3)
        return said(None, ("hint", {}))

    rollout, _ = await played(server, slow, seconds=0.7, max_turns=100)
    assert (rollout.outcome, rollout.failed_by) == ("time_limit", "agent")
    assert rollout.total is not None
    assert rollout.total > 0  # what it had earned by then


async def test_reasoning_is_kept_and_sent_again(server):
    rollout, asked = await played(server, in_turn(said("", ("hint", {}), reasoning_content="I wonder."), RIGHT))
    assert asked.last[-2]["reasoning_content"] == "I wonder."
    assert rollout.messages[1]["reasoning_content"] == "I wonder."


async def test_an_answer_in_pieces_is_put_together_and_one_that_breaks_off_is_asked_for_again(server):
    def chunk(**delta) -> Body:
        return {"id": "x", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta}]}

    def call(**function) -> Body:
        return chunk(tool_calls=[{"index": 0, "id": "c1", "function": function}])

    last = {**chunk(), "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
    pieces = [chunk(content="He"), chunk(content="re."), call(name="say", arguments='{"num'), call(arguments='ber":1}')]
    whole = streamed(*pieces, last, {"id": "x", "choices": [], "usage": USAGE})
    rollout, asked = await played(server, in_turn(streamed(*pieces, ends=False), whole), stream=True)
    assert (rollout.outcome, rollout.total, rollout.turns) == ("finished", 1.0, 1)
    assert rollout.messages[1]["content"] == "Here."
    assert rollout.tokens.completion == 5
    assert (len(asked.bodies), asked.bodies[0]["stream"]) == (2, True)


async def test_a_tool_that_is_lost_ends_the_episode_without_a_return():
    with running([Slow], call_seconds=0.2) as server:
        rollout, _ = await played(server, in_turn(said(None, ("sleep", {}))), "slow")
    assert (rollout.outcome, rollout.failed_by, rollout.total) == ("infrastructure_failed", "infrastructure", None)


async def test_a_session_that_cannot_be_set_up_is_no_failure_of_the_agent():
    with running([Broken]) as server:
        rollout, _ = await played(server, in_turn(RIGHT), "broken")
    assert (rollout.outcome, rollout.total) == ("infrastructure_failed", None)
    assert "no disk" in rollout.error


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "2"}, 2.0),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({}, None),
    ],
)
async def test_an_endpoint_says_how_long_to_wait_in_three_ways(headers, seconds):
    assert retry_after(headers) == seconds


async def test_waiting_as_told_is_no_try_either_until_it_has_been_told_too_often(server):
    busy = refused("429 Too Many Requests", "slow down", "Retry-After-Ms: 10")
    rollout, _ = await played(server, in_turn(*[busy] * 9, RIGHT))
    assert rollout.outcome == "finished"
    rollout, asked = await played(server, in_turn(busy))
    assert (rollout.outcome, len(asked.bodies)) == ("endpoint_failed", 65)
