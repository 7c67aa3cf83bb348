"""Additions of the OpenReward dialect to ORS: terminal tools, messages, group scores, toolsets by name."""

from __future__ import annotations

import asyncio
from collections import Counter

import anyio
import pytest

from tests.wires.wire import Answer, H, Wire, call_body
from tests.worlds import MathEnv
from toolyard import Environment, TextBlock, ToolOutput, Toolset, terminal, tool
from toolyard.testing import running
from toolyard.types import GroupScore, Message, ReasoningBlock, ToolCallBlock, ToolResultBlock

pytestmark = pytest.mark.anyio


def text(text: str, detail: object = None) -> dict:
    return {"text": text, "detail": detail, "type": "text"}


class Chat(Environment):
    """A conversation as prompt, a terminal tool, and scores for a group."""

    scored: Counter[str] = Counter()

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return []

    def get_messages(self):
        return [
            Message(role="system", blocks=[TextBlock(text="be kind")]),
            Message(role="user", blocks=[TextBlock(text="hello")], detail={"from": "a test"}),
            Message(
                role="assistant",
                blocks=[ReasoningBlock(text="hm"), ToolCallBlock(id="c1", name="look", input={"at": 1})],
            ),
            Message(role="user", blocks=[ToolResultBlock(tool_call_id="c1", blocks=[TextBlock(text="a cat")])]),
        ]

    async def score_group(self, candidates):
        how = self.task_spec.get("how", "length")
        self.scored[self.task_spec.get("key", "")] += 1
        await asyncio.sleep(self.task_spec.get("seconds", 0))
        if how == "boom":
            raise ValueError("nobody can\njudge that")
        if how == "few":
            return [1.0]
        if how == "nan":
            return [float("nan") for _ in candidates]
        words = [candidate.messages[-1].blocks[0].text for candidate in candidates]
        return [GroupScore(reward=len(words[0]), metadata={"words": words}), *(len(word) for word in words[1:])]

    @tool
    def look(self, at: int) -> str:
        """Look."""
        return f"nothing at {at}"

    @tool
    @terminal
    def answer(self, message: str) -> ToolOutput:
        """Take the last message."""
        return ToolOutput(blocks=[TextBlock(text=f"got {message}")], reward=1.0, finished=True)


class Farewell(Environment):
    """A terminal tool that takes no text, and a plain prompt."""

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return []

    def get_prompt(self):
        return "hello"

    @tool
    async def look(self) -> str:
        """Look."""
        return "nothing"

    @tool
    @terminal
    async def bye(self) -> ToolOutput:
        """End it."""
        return ToolOutput(finished=True)


# Terminal tools.

TERMINAL = {"name": "answer", "arg": "message", "description": "Take the last message."}


async def test_a_terminal_tool_is_described_but_not_listed():
    with running([Chat, Farewell]) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open(task_spec={})
            listed = (await wire.get("/chat/tools")).json()
            assert [spec["name"] for spec in listed["tools"]] == ["look"]
            assert listed["terminal_tool"] == TERMINAL
            assert listed["supports_score_group"] is True
            assert (await wire.get("/chat/task_tools", headers=H(sid))).json() == listed
            other = (await wire.get("/farewell/tools")).json()
            assert other["terminal_tool"] == {"name": "bye", "arg": None, "description": "End it."}
            assert other["supports_score_group"] is False


async def test_a_terminal_tool_is_called_like_any_other_and_ends_the_episode():
    with running([Chat, Farewell]) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open(task_spec={})
            answer = await wire.call(sid, "answer", {"message": "42"}, env="chat")
            assert (answer.text, answer.output["reward"], answer.output["finished"]) == ("got 42", 1.0, True)
            assert (await wire.call(sid, "look", {"at": 1}, env="chat")).failure["reason"] == "episode_finished"
            sid = await wire.open(env_name="farewell", task_spec={})
            assert (await wire.call(sid, "bye", env="farewell")).output["finished"] is True


# Messages.


async def test_messages_are_the_prompt_of_the_user_when_the_author_wrote_none():
    with running([Farewell]) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open()
            response = await wire.get("/farewell/messages", headers=H(sid))
            assert (response.status_code, response.json()) == (
                200,
                [{"role": "user", "blocks": [text("hello")], "detail": None}],
            )


async def test_messages_are_what_the_author_wrote():
    with running([Chat]) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open()
            assert (await wire.get("/chat/messages", headers=H(sid))).json() == [
                {"role": "system", "blocks": [text("be kind")], "detail": None},
                {"role": "user", "blocks": [text("hello")], "detail": {"from": "a test"}},
                {
                    "role": "assistant",
                    "blocks": [
                        {"text": "hm", "signature": None, "detail": None, "type": "reasoning"},
                        {"id": "c1", "name": "look", "input": {"at": 1}, "detail": None, "type": "tool_call"},
                    ],
                    "detail": None,
                },
                {
                    "role": "user",
                    "blocks": [
                        {
                            "tool_call_id": "c1",
                            "blocks": [text("a cat")],
                            "is_error": False,
                            "detail": None,
                            "type": "tool_result",
                        }
                    ],
                    "detail": None,
                },
            ]


async def test_a_prompt_that_is_only_messages_is_flattened_into_plain_blocks():
    with running([Chat]) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open()
            response = await wire.get("/chat/prompt", headers=H(sid))
            assert response.status_code == 200
            assert [block["text"] for block in response.json()] == [
                "[system]",
                "be kind",
                "[user]",
                "hello",
                "[assistant]",
                "<think>hm</think>",
                '[tool_call look] {"at": 1}',
                "[user]",
                "[tool_result]",
                "a cat",
            ]
            assert {block["type"] for block in response.json()} == {"text"}


# Group scores.


def candidates(*texts: str) -> dict:
    said = [[{"role": "assistant", "blocks": [{"type": "text", "text": text}]}] for text in texts]
    return {"candidates": [{"messages": messages} for messages in said]}


async def test_a_group_is_scored_with_one_score_each():
    with running([Chat]) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open()
            response = await wire.post("/chat/score_group", headers=H(sid), json=candidates("a", "bcd"))
            answer = Answer.of(response)
            assert answer.names == ["task_id", "end"]
            assert answer.result == {
                "scores": [{"reward": 1.0, "metadata": {"words": ["a", "bcd"]}}, {"reward": 3.0, "metadata": None}]
            }


async def test_bare_score_group_arrives_through_its_redirect():
    with running([Chat]) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open()
            body = candidates("ab")
            response = await wire.post("/score_group", headers=H(sid), json=body, follow_redirects=True)
            assert Answer.of(response).result["scores"][0]["reward"] == 2.0


async def test_an_environment_that_scores_no_groups_says_404_before_any_stream():
    with running([Farewell]) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open()
            for path in ("/farewell/score_group", "/score_group"):
                response = await wire.post(path, headers=H(sid), json=candidates("a"), follow_redirects=True)
                assert (response.status_code, response.headers["content-type"]) == (404, "application/json")


async def test_a_dropped_group_is_found_again_and_scored_once():
    with running([Chat], ping_seconds=0.1) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open(task_spec={"seconds": 0.5, "key": "dropped"})
            body = candidates("abc") | {"task_id": "group-1"}
            with anyio.move_on_after(0.2):
                await wire.post("/chat/score_group", headers=H(sid), json=body)
            for _ in range(2):
                answer = Answer.of(await wire.post("/chat/score_group", headers=H(sid), json=body))
                assert (answer.id, answer.result["scores"][0]["reward"]) == ("group-1", 3.0)
            assert Chat.scored["dropped"] == 1
            body["task_id"] = "t-" + "0" * 32
            unknown = Answer.of(await wire.post("/chat/score_group", headers=H(sid), json=body))
            assert [(event.name, event.data) for event in unknown.events] == [("error", "unknown task_id")]


@pytest.mark.parametrize(
    ("how", "error"),
    [
        ("few", "score_group returned 1 scores for 2 candidates"),
        ("boom", "nobody can\njudge that"),
        ("nan", "score_group returned a reward of nan: a reward is a finite number"),
    ],
)
async def test_scores_that_cannot_be_given_are_an_error_event(how: str, error: str):
    with running([Chat]) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open(task_spec={"how": how})
            answer = Answer.of(await wire.post("/chat/score_group", headers=H(sid), json=candidates("a", "b")))
            assert answer.error == error
            assert (await wire.call(sid, "look", {"at": 1}, env="chat")).text == "nothing at 1"


async def test_a_group_can_be_scored_after_the_end_of_the_episode():
    with running([Chat]) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open()
            await wire.call(sid, "answer", {"message": "42"}, env="chat")
            answer = Answer.of(await wire.post("/chat/score_group", headers=H(sid), json=candidates("ab")))
            assert answer.result["scores"][0]["reward"] == 2.0


async def test_a_group_that_takes_too_long_is_an_error_event():
    with running([Chat], call_seconds=0.2, sweep_seconds=0.05) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open(task_spec={"seconds": 60})
            answer = Answer.of(await wire.post("/chat/score_group", headers=H(sid), json=candidates("a")))
            assert "0.2 s" in answer.error
            assert await wire.alive(sid)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"candidates": None},
        {"candidates": [{}]},
        {"candidates": [{"messages": [{"role": "robot", "blocks": []}]}]},
        {"candidates": [{"messages": [{"role": "user", "blocks": [{"type": "smell"}]}]}]},
        {"candidates": [], "more": 1},
    ],
    ids=str,
)
async def test_wrong_candidates_are_422(body: dict):
    with running([Chat]) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open()
            assert (await wire.post("/chat/score_group", headers=H(sid), json=body)).status_code == 422
            assert (await wire.post("/chat/score_group", json=candidates())).status_code == 400
            assert (await wire.post("/chat/score_group", headers=H("nobody"), json=candidates())).status_code == 404


# Toolsets.


class Shelf(Toolset):
    """Tools that an environment lists, with one instance per session."""

    def __init__(self, env):
        super().__init__(env)
        self.looks = 0

    @tool
    async def look_again(self) -> str:
        """Count the looks."""
        self.looks += 1
        return f"{self.env.task_spec.get('q')} {self.looks}"


class Shelved(Farewell):
    toolsets = [Shelf]


class Extra(Toolset):
    """Tools that a client requests by name."""

    @tool
    async def look(self) -> str:
        """Look harder."""
        return f"everything in {self.env.task_spec.get('q')}"

    @tool(shared=False)
    def add(self, a: int, b: int) -> str:
        """Add."""
        return str(a + b)


class NeedsNothing:
    """A toolset without its environment, as ORS allows."""

    @tool
    def sing(self) -> str:
        """Sing."""
        return "la"


async def test_a_toolset_of_the_environment_has_one_instance_a_session():
    with running([Shelved]) as server:
        async with Wire(server.url) as wire:
            first, second = await wire.open(task_spec={"q": "A"}), await wire.open(task_spec={"q": "B"})
            names = [spec["name"] for spec in (await wire.get("/shelved/tools")).json()["tools"]]
            assert names == ["look", "look_again"]
            said = [(await wire.call(sid, "look_again", env="shelved")).text for sid in (first, first, second)]
            assert said == ["A 1", "A 2", "B 1"]


async def test_a_toolset_asked_for_by_name_comes_before_the_environment():
    with running([Farewell], toolsets=[Extra, NeedsNothing]) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open(task_spec={"q": "here"}, toolset_name="Extra")
            tools = (await wire.get("/farewell/task_tools", headers=H(sid))).json()["tools"]
            assert {spec["name"]: spec["description"] for spec in tools} == {"look": "Look harder.", "add": "Add."}
            assert (await wire.call(sid, "look", env="farewell")).text == "everything in here"
            assert (await wire.call(sid, "add", {"a": 1, "b": "2"}, env="farewell")).text == "3"
            sid = await wire.open(toolset_name="NeedsNothing")
            assert (await wire.call(sid, "sing", env="farewell")).text == "la"
            plain = await wire.open()
            assert (await wire.call(plain, "look", env="farewell")).text == "nothing"
            assert (await wire.call(plain, "sing", env="farewell")).failure["reason"] == "not_found"


@pytest.mark.parametrize(
    ("toolsets", "options"), [([], "[]"), ([NeedsNothing, Extra], "['Extra', 'NeedsNothing']")], ids=["none", "two"]
)
async def test_an_unknown_toolset_is_400_and_names_those_there_are(toolsets: list, options: str):
    with running([MathEnv], toolsets=toolsets) as server:
        async with Wire(server.url) as wire:
            body = {"task_spec": {}, "toolset_name": "x"}
            response = await wire.post("/create", headers=H("s"), json=body)
            assert response.status_code == 400
            assert response.json()["detail"] == f"unknown toolset 'x'; valid options are {options}"
            await wire.open("s")


class Demanding(Toolset):
    def __init__(self, env):
        raise ValueError("this environment has no sandbox")

    @tool
    def work(self) -> str:
        """Work."""
        return "done"


async def test_a_toolset_that_cannot_be_made_for_this_environment_leaves_the_id_free():
    with running([Farewell], toolsets=[Demanding]) as server:
        async with Wire(server.url) as wire:
            body = {"task_spec": {}, "toolset_name": "Demanding"}
            response = await wire.post("/create", headers=H("s"), json=body)
            assert (response.status_code, response.json()["detail"]) == (400, "this environment has no sandbox")
            await wire.open("s")
            answer = await wire.post("/farewell/call", headers=H("s"), json=call_body("look"))
            assert Answer.of(answer).text == "nothing"
