"""Whole episodes against a real server, plain and awaited."""

from __future__ import annotations

import asyncio
import base64
import functools
import pickle
import threading
from contextlib import ExitStack

import anyio
import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from tests.client.waiting import eventually_async
from tests.worlds import MathEnv, OtherEnv, torn_down
from toolyard import (
    AsyncClient,
    Client,
    Environment,
    ImageBlock,
    TextBlock,
    ToolOutput,
    Toolset,
    ToolSpec,
    terminal,
    tool,
)
from toolyard.client import (
    AuthenticationFailed,
    ConnectionLost,
    InfrastructureError,
    RequestRefused,
    ServerBusy,
    ServerFailed,
    Task,
    ToolCallFailed,
    ToolLost,
)
from toolyard.testing import running
from toolyard.types import GroupCandidate, GroupScore, Message, ReasoningBlock

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40).decode()


class RichEnv(Environment):
    """Everything that MathEnv does not have."""

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{"n": n} for n in range(3)]

    def get_messages(self):
        return [
            Message(role="system", blocks=[TextBlock(text="Be brief.")]),
            Message(role="user", blocks=[TextBlock(text="Look."), ImageBlock(data=PNG, mimeType="image/png")]),
            Message(role="assistant", blocks=[ReasoningBlock(text="hm", signature="s")], detail={"a": 1}),
        ]

    @tool
    def look(self) -> list:
        """Look at it."""
        return [TextBlock(text="here", detail={"x": [1]}), ImageBlock(data=PNG, mimeType="image/png")]

    @tool
    async def measure(self, value: float | None = None) -> ToolOutput:
        """Measure."""
        return ToolOutput(metadata={"nested": {"a": [1, 2.5, None, "é"]}}, reward=value)

    @tool
    async def echo(self, value: str) -> str:
        """Say it again."""
        return value

    @terminal
    @tool
    def grade(self, answer: str) -> ToolOutput:
        """Grade the last message."""
        return ToolOutput(reward=float(len(answer)), finished=True)

    def score_group(self, candidates):
        return [GroupScore(reward=len(candidate.messages), metadata=candidate.metadata) for candidate in candidates]


class Extra(Toolset):
    @tool
    def more(self) -> str:
        """More."""
        return "more"


class SlowStart(Environment):
    """Takes its time in the constructor and in teardown()."""

    building = threading.Event()

    def __init__(self, task_spec={}, secrets={}):
        super().__init__(task_spec, secrets)
        if task_spec.get("slow"):
            SlowStart.building.set()
            threading.Event().wait(0.5)
        if task_spec.get("fails"):
            raise ValueError("cannot be built")

    def teardown(self):
        threading.Event().wait(0.3)
        torn_down.append(self.task_spec["key"])

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return []

    def get_prompt(self):
        if self.task_spec.get("broken"):
            raise ValueError("no prompt today")
        return "go"

    @tool
    def go(self) -> str:
        """Go."""
        return "gone"


def slow_starts(server):
    return [s for s in server.server.runtime.sessions.values() if s.spec.environment is SlowStart]


@pytest.fixture(scope="module")
def rich():
    with running([RichEnv, SlowStart], toolsets=[Extra]) as server:
        yield server


@pytest.fixture
def client(served):
    with Client(served.url) as client:
        yield client


def test_a_whole_episode(client, served):
    assert client.environments.list() == ["mathenv", "otherenv", "manyenv"]
    environment = client.environments.get(name="MathEnv")
    assert environment.name == "MathEnv"
    assert environment.list_splits() == ["train", "custom", "test"]
    assert environment.num_tasks("train") == 5
    assert environment.list_tasks("custom") == []
    assert environment.list_tasks("test") == [Task("MathEnv", {"q": "0", "a": "0"})]
    assert environment.get_task("train", -1) == Task("MathEnv", {"q": "4", "a": "4"})
    assert [task.task_spec["q"] for task in environment.get_task_range("train", 1, 3)] == ["1", "2"]
    assert len(environment.get_task_range("train")) == 5
    shared = environment.list_tools()
    assert all(isinstance(spec, ToolSpec) for spec in shared)
    with environment.session(split="train", index=2) as session:
        assert session.get_prompt() == [TextBlock(text="2")]
        assert [message.role for message in session.get_messages()] == ["user"]
        assert {spec.name for spec in session.list_tools()} - {spec.name for spec in shared} == {"hidden"}
        assert session.call_tool("noparam").text == "nothing"
        assert session.call_tool("half", {"number": "42"}).text == "21.0"
        output = session.call_tool("submit", {"answer": "2"})
        assert output == ToolOutput(blocks=[TextBlock(text="ok 2")], reward=1.0, finished=True)
        sid = session.sid
        assert sid in served.server.runtime.sessions
    assert sid not in served.server.runtime.sessions
    assert session.sid == ""


@pytest.mark.anyio
async def test_a_whole_episode_awaited(served):
    async with AsyncClient(served.url) as client:
        assert await client.environments.list() == ["mathenv", "otherenv", "manyenv"]
        environment = client.environments.get("mathenv")
        assert await environment.list_splits() == ["train", "custom", "test"]
        assert await environment.num_tasks("train") == 5
        assert await environment.list_tasks("custom") == []
        task = await environment.get_task("train", 3)
        assert [task] == await environment.get_task_range("train", 3, 4)
        shared = await environment.list_tools()
        async with environment.session(task) as session:
            assert await session.get_prompt() == [TextBlock(text="3")]
            assert [message.role for message in await session.get_messages()] == ["user"]
            assert len(await session.list_tools("openai")) == len(shared) + 1
            assert await session.terminal_tool() is None
            output = await session.call_tool("submit", {"answer": "2"})
            assert (output.text, output.reward, output.finished) == ("ok 2", 1.0, True)
            with pytest.raises(ToolCallFailed) as caught:
                await session.call_tool("submit", {"answer": "2"})
            assert caught.value.reason == "episode_finished"
            sid = session.sid
        assert sid not in served.server.runtime.sessions


@pytest.mark.thorough
@pytest.mark.anyio
async def test_two_hundred_sessions_at_once(served):
    texts = []

    async def episode(client: AsyncClient, number: int) -> None:
        async with client.environment("mathenv").session({"q": f"task {number}"}) as session:
            prompt = (await session.get_prompt())[0].text
            slept = await session.call_tool("slow", {"seconds": 0.2})
            output = await session.call_tool("submit", {"answer": prompt})
            texts.append((slept.text, output.text, output.reward))

    async with AsyncClient(served.url) as client, anyio.create_task_group() as group:
        for number in range(200):
            group.start_soon(episode, client, number)
    assert sorted(texts) == sorted(("slept 0.2", f"ok task {n}", 1.0) for n in range(200))
    assert not served.server.runtime.sessions


def test_threads_may_share_a_client(client):
    outputs = []

    def episode(number: int) -> None:
        with client.environment("mathenv").session({"q": str(number)}) as session:
            outputs.append(session.call_tool("submit", {"answer": session.get_prompt()[0].text}).text)

    threads = [threading.Thread(target=episode, args=(n,)) for n in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(outputs) == sorted(f"ok {n}" for n in range(20))


def test_an_async_client_works_in_one_loop_after_the_other(served):
    client = AsyncClient(served.url)

    async def ask() -> list[str]:
        names = await client.environments.list()
        await client.aclose()
        return names

    assert anyio.run(ask) == anyio.run(ask)


@pytest.mark.anyio
async def test_calls_in_one_session_overlap(served):
    async with AsyncClient(served.url) as client, client.environment("mathenv").session({"q": "x"}) as session:
        with anyio.fail_after(5):
            async with anyio.create_task_group() as group:
                for _ in range(20):
                    group.start_soon(session.call_tool, "slow", {"seconds": 1})


# What is said arrives.


def test_images_metadata_and_details_arrive(rich):
    with Client(rich.url) as client, client.environment("richenv").session(split="train", index=0) as session:
        assert session.call_tool("look").blocks == [
            TextBlock(text="here", detail={"x": [1]}),
            ImageBlock(data=PNG, mimeType="image/png"),
        ]
        assert session.call_tool("measure").metadata == {"nested": {"a": [1, 2.5, None, "é"]}}
        assert session.call_tool("measure").reward is None
        assert session.call_tool("measure", {"value": -0.25}).reward == -0.25


def test_a_conversation_arrives_with_all_its_blocks(rich):
    with Client(rich.url) as client, client.environment("richenv").session(split="train", index=0) as session:
        assert session.get_messages() == RichEnv.get_messages(None)


@settings(max_examples=60, deadline=None)
@given(
    text=st.text(st.characters(codec=None, exclude_categories=()), max_size=50), times=st.sampled_from([1, 97, 4096])
)
def test_any_text_arrives_as_it_is(rich_session, text, times):
    assert rich_session.call_tool("echo", {"value": text * times}).text == text * times


@pytest.fixture(scope="module")
def rich_session(rich):
    with Client(rich.url) as client, client.environment("richenv").session(split="train", index=0) as session:
        yield session


@pytest.mark.parametrize("fill", [" ", "a ", "　é😀", "\n", "\\u0020", "\x00\x1f\x7f\u2028", '"', "\r\ndata: x\n\n"])
def test_a_mebibyte_of_anything_arrives_as_it_is(rich_session, fill):
    text = (fill * 2**20)[: 2**20]
    assert rich_session.call_tool("echo", {"value": text}).text == text


def test_arguments_may_be_anything_that_is_json(rich_session):
    class Value(BaseModel):
        value: str = "of a model"

    assert rich_session.call_tool("echo", Value().model_dump()).text == "of a model"
    with pytest.raises(ToolCallFailed, match="validation error"):
        rich_session.call_tool("echo", {"value": {"a": float("nan")}})


# The richer dialect.


def test_the_last_message_goes_to_the_terminal_tool(rich):
    with Client(rich.url) as client, client.environment("richenv").session(split="train", index=0) as session:
        assert session.terminal_tool().name == "grade"
        assert "grade" not in [spec.name for spec in session.list_tools()]
        output = session.call_terminal_tool("twelve chars")
        assert (output.reward, output.finished) == (12.0, True)


@pytest.mark.anyio
async def test_candidates_are_compared(rich):
    message = Message(role="assistant", blocks=[TextBlock(text="é"), ReasoningBlock(text="hm")])
    candidates = [GroupCandidate(messages=[message] * n, metadata={"n": n}) for n in (3, 1)]
    async with (
        AsyncClient(rich.url) as client,
        client.environment("richenv").session(split="train", index=0) as session,
    ):
        scores = await session.score_group(candidates)
        assert await session.call_terminal_tool() == ToolOutput(reward=0.0, finished=True)
    assert scores == [GroupScore(reward=3, metadata={"n": 3}), GroupScore(reward=1, metadata={"n": 1})]


def test_an_environment_that_compares_nothing_says_so(client):
    with client.environment("mathenv").session({}) as session:
        with pytest.raises(RequestRefused, match="does not compare"):
            session.score_group([])
        with pytest.raises(RequestRefused, match="no terminal tool"):
            session.call_terminal_tool("bye")


def test_a_toolset_can_be_asked_for(rich):
    with Client(rich.url) as client:
        environment = client.environment("richenv")
        with environment.session(split="train", index=0, toolset="Extra") as session:
            assert session.call_tool("more").text == "more"
        with (
            pytest.raises(RequestRefused, match="valid options are \\['Extra'\\]"),
            environment.session(split="train", index=0, toolset="Nope"),
        ):
            pass


def test_secrets_arrive(client):
    with client.environment("mathenv").session({}, secrets={"k": "välue"}) as session:
        assert session.call_tool("secret", {"answer": "k"}).text == "välue"


@pytest.mark.parametrize("format", ["openai", "anthropic", "google", "openrouter"])
def test_tools_come_in_the_format_of_a_models_api(client, format):
    tools = client.environment("mathenv").list_tools(format)
    assert all(isinstance(spec, dict) for spec in tools)
    assert len(tools) == len(client.environment("mathenv").list_tools())


# Refusals.


def test_an_unknown_environment_is_named(client):
    for ask in (
        client.environment("zip").list_tools,
        client.environment("zip").session({}).__enter__,
    ):
        with pytest.raises(RequestRefused, match="unknown environment 'zip'") as caught:
            ask()
        assert caught.value.status == 404


def test_a_bad_split_or_index_says_what_there_is(client):
    environment = client.environment("mathenv")
    with pytest.raises(RequestRefused, match="no split 'tset'; there are 'train', 'custom', 'test'"):
        environment.list_tasks("tset")
    with pytest.raises(RequestRefused, match="has 5 tasks, no number 5"):
        environment.get_task("train", 5)
    with pytest.raises(RequestRefused, match="has 5 tasks, no number 99"):
        environment.session(split="train", index=99).__enter__()
    with pytest.raises(RequestRefused, match="index-based"):
        client.environment("manyenv").list_tasks("train")


def test_what_the_agent_did_is_told_apart_by_its_reason(client):
    with client.environment("mathenv").session({}) as session:
        for name, arguments, reason in (
            ("nope", {}, "no_such_tool"),
            ("setup", {}, "no_such_tool"),
            ("half", {"number": "x"}, "bad_arguments"),
            ("read_file", {"path": "x"}, "tool_failed"),
            ("boom", {}, "tool_raised"),
        ):
            with pytest.raises(ToolCallFailed) as caught:
                session.call_tool(name, arguments)
            assert caught.value.reason == reason
        assert caught.value.message == "line1\nline2 é"
        assert session.call_tool("noparam").text == "nothing"


def test_a_setup_that_fails_is_the_servers_failure_and_no_reward(client):
    with client.environment("mathenv").session({"setup_boom": True}) as session:
        with pytest.raises(ServerFailed, match="setup boom"):
            session.get_prompt()
        with pytest.raises(InfrastructureError, match="setup boom"):
            session.call_tool("noparam")


def test_a_setup_that_fails_during_a_call_loses_the_call(client):
    episode = client.environment("mathenv").session({"setup_seconds": 0.3, "setup_boom": True})
    with episode as session, pytest.raises(ToolLost, match="setup boom"):
        session.call_tool("noparam")


def test_a_prompt_that_breaks_is_the_servers_failure(rich):
    with ExitStack() as stack:
        client = stack.enter_context(Client(rich.url))
        session = stack.enter_context(client.environment("slowstart").session({"key": "", "broken": 1}))
        with pytest.raises(ServerFailed, match="no prompt today"):
            session.get_prompt()


def test_a_wrong_key_is_refused_and_a_right_one_taken(monkeypatch):
    with running([OtherEnv], api_key="right") as server:
        for wrong in (None, "wrong"):
            with Client(server.url, api_key=wrong) as client, pytest.raises(AuthenticationFailed, match="api_key="):
                client.environments.list()
        with Client(server.url, api_key="right") as client:
            assert client.environments.list() == ["otherenv"]
        monkeypatch.setenv("TOOLYARD_API_KEY", "right")
        with Client(server.url) as client, client.environment("otherenv").session(split="train", index=0) as session:
            assert session.call_tool("other").text == "the other one"


def test_a_full_server_is_busy():
    with running([OtherEnv], max_sessions=1) as server, Client(server.url, patience=2) as client:
        environment = client.environment("otherenv")
        with environment.session({"q": "a"}), pytest.raises(ServerBusy, match="all 1 sessions"):
            environment.session({"q": "b"}).__enter__()
        with environment.session({"q": "b"}) as session:
            assert session.get_prompt()[0].text == "b"


def test_a_full_server_is_waited_for():
    with running([OtherEnv], max_sessions=1) as server, Client(server.url) as client:
        environment = client.environment("otherenv")
        first = environment.session({"q": "a"})
        first.__enter__()
        leaving = threading.Timer(0.3, first.__exit__, (None, None, None))
        leaving.start()
        with environment.session({"q": "b"}) as session:
            assert session.get_prompt()[0].text == "b"
        leaving.join()


def test_a_server_that_is_not_there_is_said_so():
    with Client("http://127.0.0.1:9", patience=0.2) as client, pytest.raises(ConnectionLost, match="no connection"):
        client.environments.list()


@pytest.mark.parametrize("url", ["", "ftp://x", "http://", "http://[", "127.0.0.1:x"])
def test_a_url_that_is_none_is_refused_at_once(url):
    with pytest.raises(ValueError, match="URL"):
        Client(url)


def test_the_scheme_and_the_last_slash_may_be_left_to_us(served):
    for url in (served.url.removeprefix("http://"), f"{served.url}/", f" {served.url}"):
        with Client(url) as client:
            assert client.base_url == served.url
            assert client.environments.list()


def test_errors_survive_being_sent_to_another_process():
    for error in (
        ToolCallFailed("no_such_tool", "x"),
        ToolLost("lost", "x"),
        RequestRefused("x", 404),
        ServerBusy("x"),
    ):
        again = pickle.loads(pickle.dumps(error))
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


# From open to close.


def test_a_session_ends_when_its_block_raises(client, served):
    class Unexpected(Exception):
        pass

    with pytest.raises(Unexpected), client.environment("mathenv").session({"q": "raises"}):
        raise Unexpected
    assert torn_down[-1] == "raises"
    assert not served.server.runtime.sessions


def test_a_session_can_be_opened_again_but_not_twice(client):
    session = client.environment("mathenv").session({"q": "again"})
    with session:
        first = session.sid
        with pytest.raises(RuntimeError, match="open already"):
            session.__enter__()
        assert session.get_prompt()[0].text == "again"
    with pytest.raises(RuntimeError, match="not open"):
        session.get_prompt()
    with session:
        assert session.sid != first


@pytest.mark.anyio
@pytest.mark.parametrize("times", [1, 3])
async def test_a_cancelled_session_is_closed_however_often_it_is_cancelled(rich, times):
    key = f"cancelled {times}"
    opened = asyncio.Event()

    async def episode() -> None:
        async with AsyncClient(rich.url) as client, client.environment("slowstart").session({"key": key}):
            opened.set()
            await asyncio.sleep(60)

    task = asyncio.create_task(episode())
    await opened.wait()
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0.05)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert key in torn_down
    assert not slow_starts(rich)


@pytest.mark.anyio
async def test_a_session_is_closed_when_a_scope_is_cancelled(rich):
    with anyio.move_on_after(0.3) as scope:
        async with AsyncClient(rich.url) as client, client.environment("slowstart").session({"key": "scope"}):
            await anyio.sleep(60)
    assert scope.cancelled_caught
    assert "scope" in torn_down


@pytest.mark.anyio
async def test_who_waits_for_a_session_that_cannot_be_built_is_told_so(rich):
    SlowStart.building.clear()
    headers = {"X-Session-ID": "cannot be built"}
    body = {"env_name": "slowstart", "task_spec": {"slow": 1, "fails": 1}}
    client = httpx2.AsyncClient(base_url=rich.url, headers=headers, timeout=10)
    async with client as http, anyio.create_task_group() as group:
        group.start_soon(functools.partial(http.post, "/create", json=body))
        await eventually_async(SlowStart.building.is_set)
        answer = await http.get("/slowstart/prompt")
    assert answer.status_code == 500
    assert "cannot be built" in answer.text


@pytest.mark.anyio
async def test_a_session_that_is_cancelled_while_it_opens_does_not_stay(rich):
    SlowStart.building.clear()

    async def episode() -> None:
        async with AsyncClient(rich.url) as client, client.environment("slowstart").session({"key": "o", "slow": 1}):
            raise AssertionError("it was cancelled before")

    async with anyio.create_task_group() as group:
        group.start_soon(episode)
        await eventually_async(SlowStart.building.is_set)
        group.cancel_scope.cancel()
    await eventually_async(lambda: not slow_starts(rich))


@pytest.mark.anyio
async def test_a_body_that_is_too_large_is_said_so_and_the_session_goes_on():
    with running([MathEnv], body_bytes=100_000) as small:
        async with (
            AsyncClient(small.url) as client,
            client.environment("mathenv").session(split="train", index=0) as session,
        ):
            with pytest.raises(RequestRefused, match="larger than 100000 bytes"):
                await session.call_tool("submit", {"answer": "x" * 20_000_000})
            assert (await session.call_tool("noparam")).text == "nothing"
