"""ORS, calling tools: cases 40-64, and what the specification says beyond them."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
import uuid
from collections.abc import Iterator
from itertools import pairwise
from statistics import median

import anyio
import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from tests.wires.wire import Answer, H, Wire, call_body, connect, request_bytes, strict_json, until
from tests.worlds import MathEnv, OneTask, ran
from toolyard import Environment, ImageBlock, TextBlock, ToolError, ToolOutput, tool
from toolyard.server import Server
from toolyard.settings import Settings
from toolyard.testing import Running, running

pytestmark = pytest.mark.anyio


def key() -> str:
    """A key for `ran`, which counts how often just this call ran."""
    return f"key-{uuid.uuid4()}"


@pytest.fixture
async def sid(wire: Wire) -> str:
    return await wire.open(env_name="mathenv", task_spec={"q": "calls"})


async def test_E40_a_call_is_a_task_id_and_an_end(wire: Wire, sid: str):
    answer = await wire.call(sid, "submit", {"answer": "4"})
    assert answer.names == ["task_id", "end"]
    assert answer.result == {
        "ok": True,
        "output": {
            "blocks": [{"text": "ok 4", "detail": None, "type": "text"}],
            "metadata": None,
            "reward": 1.0,
            "finished": True,
        },
    }


@pytest.mark.parametrize("body", [{}, {"input": None}, {"input": []}, {"input": "4"}], ids=str)
async def test_E41_input_must_be_an_object(wire: Wire, sid: str, body: dict):
    before = ran["submit"]
    response = await wire.post("/mathenv/call", headers=H(sid), json={"name": "submit", **body})
    assert response.status_code == 422
    assert response.json()["detail"][0]["loc"] == ["body", "input"]
    assert ran["submit"] == before


async def test_E42_an_unknown_tool_is_a_failure_not_an_error(wire: Wire, sid: str):
    answer = await wire.call(sid, "nope")
    assert answer.names == ["task_id", "end"]
    assert (answer.failure["reason"], answer.failure.keys()) == ("not_found", {"ok", "error", "reason", "metadata"})
    assert answer.failure["error"].startswith("'nope' is not a valid tool. The tools are: submit, big, ")


async def test_E43_wrong_input_is_a_failure_that_says_what_is_wrong(wire: Wire, sid: str):
    failure = (await wire.call(sid, "submit", {})).failure
    assert failure["error"].startswith("Tool input validation error: ")
    assert "answer" in failure["error"]
    assert failure["reason"] == "input_validation"


async def test_E44_a_number_may_come_as_text(wire: Wire, sid: str):
    assert (await wire.call(sid, "half", {"number": "42"})).text == "21.0"


async def test_E45_a_tool_without_parameters_ignores_its_input(wire: Wire, sid: str):
    assert (await wire.call(sid, "noparam", {"whatever": 1})).text == "nothing"


@pytest.mark.parametrize("name", ["setup", "_call_tool", "get_prompt", "teardown", "__init__", "call_task_tool", ""])
async def test_E46_a_method_that_is_no_tool_cannot_be_called(wire: Wire, sid: str, name: str):
    assert (await wire.call(sid, name)).failure["error"].startswith(f"{name!r} is not a valid tool")


async def test_E47_an_exception_is_an_error_event_line_by_line(wire: Wire, sid: str):
    response = await wire.post("/mathenv/call", headers=H(sid), json=call_body("boom"))
    assert Answer.of(response).names == ["task_id", "error"]
    assert Answer.of(response).error == "line1\nline2 é"
    assert response.content.endswith("event: error\ndata: line1\ndata: line2 é\n\n".encode())


async def test_E48_a_tool_that_says_it_failed_is_a_failure(wire: Wire, sid: str):
    answer = await wire.call(sid, "read_file", {"path": "x"})
    assert answer.failure == {"ok": False, "error": "Tool 'read_file' failed: File not found"}


async def test_E49_a_long_result_comes_in_chunks(wire: Wire, sid: str):
    answer = await wire.call(sid, "big", {"n": 5000})
    assert answer.names == ["task_id", "chunk", "end"]
    assert answer.text == "x" * 5000


@pytest.mark.parametrize("n", [3000, 4096, 5000, 50_000])
async def test_E50_spaces_survive_every_cut(wire: Wire, sid: str, n: int):
    assert (await wire.call(sid, "big", {"n": n, "fill": " a"})).text == " a" * n


@pytest.mark.parametrize("n", [1, 1000, 5000])
async def test_E51_unicode_survives_every_cut(wire: Wire, sid: str, n: int):
    assert (await wire.call(sid, "big", {"n": n, "fill": "\u3000é😀"})).text == "\u3000é😀" * n


async def test_E51_so_do_twenty_thousand_spaces(wire: Wire, sid: str):
    assert (await wire.call(sid, "big", {"n": 20_000, "fill": " "})).text == " " * 20_000


async def test_a_mebibyte_of_text_arrives_whole(wire: Wire, sid: str):
    text = " \u2028\t\r\nä\\\"'" * 100_000
    assert (await wire.call(sid, "big", {"n": 1, "fill": text})).text == text


class Text(BaseModel):
    text: str


class Echo(Environment):
    """Echoes its input, in every possible way."""

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return []

    def get_prompt(self):
        return "?"

    @tool
    async def say(self, params: Text) -> ToolOutput:
        """Say it."""
        return ToolOutput(blocks=[TextBlock(text=params.text, detail={params.text: params.text})])

    @tool
    async def fail(self, params: Text) -> ToolOutput:
        """Fail with it."""
        raise ToolError(params.text)

    @tool
    async def crash(self, params: Text) -> ToolOutput:
        """Crash with it."""
        raise RuntimeError(params.text)

    @tool
    async def count(self, number: int) -> str:
        """Spell a number."""
        return str(number)


@pytest.fixture(scope="module")
def echo() -> Iterator[httpx2.Client]:
    with running([Echo]) as server, httpx2.Client(base_url=server.url, trust_env=False) as client:
        client.post("/create", headers=H("s"), json={"task_spec": {}})
        yield client


def said(echo: httpx2.Client, name: str, text: str) -> Answer:
    content = json.dumps(call_body(name, {"text": text}))  # ASCII, as a broken character has no UTF-8
    return Answer.of(echo.post("/echo/call", headers=H("s"), content=content))


any_text = st.text(st.characters(exclude_categories=()), max_size=40)
"""Every code point, surrogates and control characters included."""

texts = st.builds(
    lambda lead, text, times: lead + text * times,
    st.integers(0, 4200).map(lambda n: "x" * n),
    any_text | st.text(' \t\n\r\u3000\u2028\x85\\"a', max_size=5),
    st.sampled_from([1, 2, 100, 2000]),
)

examples = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@examples
@given(text=texts)
def test_E52_no_piece_has_white_space_at_its_edges_and_any_text_arrives(echo: httpx2.Client, text: str):
    output = said(echo, "say", text).output  # reading it checks each piece
    assert output["blocks"] == [{"text": text, "detail": {text: text}, "type": "text"}]


@examples
@given(text=any_text)
def test_the_text_of_a_failure_arrives_whatever_it_is(echo: httpx2.Client, text: str):
    assert said(echo, "fail", text).failure["error"] == f"Tool 'fail' failed: {text}"


@examples
@given(text=any_text)
def test_the_text_of_an_error_is_one_event_whatever_it_is(echo: httpx2.Client, text: str):
    answer = said(echo, "crash", text)
    assert answer.names == ["task_id", "error"]
    shown = re.sub("\r\n|[\r\v\f\x1c-\x1e\x85\u2028\u2029]", "\n", text or "RuntimeError")
    assert answer.error == shown.encode(errors="replace").decode()


@pytest.mark.parametrize("number", [2**63, 2**64, -(2**70), 10**400])
def test_an_integer_arrives_exactly_however_long(echo: httpx2.Client, number: int):
    answer = Answer.of(echo.post("/echo/call", headers=H("s"), json=call_body("count", {"number": number})))
    assert answer.text == str(number)


async def test_E53_a_slow_call_shows_signs_of_life(wire: Wire, sid: str):
    started = time.monotonic()
    async with wire.follow(sid, "slow", {"seconds": 2}) as stream:
        await stream.event()
        end = await stream.event()
        assert end.name == "end"
    assert len(stream.pings) >= 8  # every 0.2 s here
    moments = [started, *stream.pings, time.monotonic()]
    assert max(later - earlier for earlier, later in pairwise(moments)) < 0.5


def test_E53_signs_of_life_come_at_least_every_ten_seconds_unless_told_otherwise():
    assert Settings().ping_seconds <= 10


async def test_E53_signs_of_life_are_comments(wire: Wire, sid: str):
    response = await wire.post("/mathenv/call", headers=H(sid), json=call_body("slow", {"seconds": 0.5}))
    comments = [line for line in response.text.split("\n") if line.startswith(":")]
    assert comments
    assert all(line.startswith(": ping - ") for line in comments)


@pytest.mark.parametrize("name", ["slow", "block"])
async def test_E54_the_first_event_does_not_wait_for_the_tool(wire: Wire, sid: str, name: str):
    waited = []
    for _ in range(3):
        started = time.monotonic()
        async with wire.follow(sid, name, {"seconds": 1}) as stream:
            assert (await stream.event()).name == "task_id"
            waited.append(time.monotonic() - started)
    assert max(waited) < 0.5


async def test_E55_a_dropped_call_goes_on_and_is_found_again(wire: Wire, sid: str):
    once = key()
    body = call_body("slow", {"seconds": 1, "key": once})
    async with wire.follow(sid, **body) as stream:
        first = await stream.event()
    await anyio.sleep(0.5)
    answer = await wire.call(sid, **body, task_id=first.data)
    assert (answer.id, answer.text) == (first.data, "slept 1.0")
    assert ran[once] == 1


async def test_E56_a_finished_call_is_replayed_any_number_of_times(wire: Wire, sid: str):
    once = key()
    first = await wire.call(sid, "slow", {"seconds": 0, "key": once})
    for _ in range(3):
        assert await wire.call(sid, "boom", {"ignored": True}, task_id=first.id) == first
    assert ran[once] == 1


async def test_E57_after_the_window_an_id_is_unknown_and_nothing_runs_again():
    with running([MathEnv], replay_seconds=0.3, sweep_seconds=0.05) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open()
            ours, theirs = key(), key()
            made = (await wire.call(sid, "slow", {"seconds": 0, "key": ours})).id
            await wire.call(sid, "slow", {"seconds": 0, "key": theirs}, task_id="chosen")
            await until(lambda: len(server.server.runtime.shared.replays) == 0)
            for call_id in (made, "chosen"):
                answer = await wire.call(sid, "slow", {"seconds": 0, "key": ours}, task_id=call_id)
                assert [(event.name, event.data) for event in answer.events] == [("error", "unknown task_id")]
            assert ran[ours] == ran[theirs] == 1
            assert (await wire.call(sid, "noparam")).text == "nothing"


async def test_E58_a_client_may_choose_the_id(wire: Wire, sid: str):
    once = key()
    first = await wire.call(sid, "slow", {"seconds": 0, "key": once}, task_id="call-001")
    assert (first.id, first.text) == ("call-001", "slept 0.0")
    assert await wire.call(sid, "slow", {"seconds": 0, "key": once}, task_id="call-001") == first
    assert ran[once] == 1


async def test_an_id_that_a_client_chose_names_one_call_and_no_other(wire: Wire, sid: str):
    once, other = key(), key()
    first = await wire.call(sid, "slow", {"seconds": 0, "key": once}, task_id="mine")
    for name, input_ in [("slow", {"seconds": 0, "key": other}), ("noparam", {}), ("noparam", {"seconds": 0})]:
        answer = await wire.call(sid, name, input_, task_id="mine")
        told = "task_id 'mine' names another call, with another tool or input; nothing ran"
        assert [(event.name, event.data) for event in answer.events] == [("error", told)]
    assert await wire.call(sid, "slow", {"key": once, "seconds": 0}, task_id="mine") == first, "the order says nothing"
    assert (ran[once], ran[other]) == (1, 0)


@pytest.mark.parametrize("call_id", ["t-" + "0" * 32, ""])
async def test_E59_an_id_that_could_be_ours_but_is_not_known_starts_nothing(wire: Wire, sid: str, call_id: str):
    once = key()
    answer = await wire.call(sid, "slow", {"seconds": 0, "key": once}, task_id=call_id)
    assert [(event.name, event.data) for event in answer.events] == [("error", "unknown task_id")]
    assert ran[once] == 0


async def test_E60_a_call_is_found_by_its_own_session_only(wire: Wire, sid: str):
    other = await wire.open(task_spec={"q": "B"})
    first, second = key(), key()
    made = (await wire.call(sid, "slow", {"seconds": 0, "key": first})).id
    assert (await wire.call(other, "slow", {"seconds": 0, "key": second}, task_id=made)).error == "unknown task_id"
    assert ran[second] == 0
    await wire.call(sid, "half", {"number": 2}, task_id="shared name")
    assert (await wire.call(other, "half", {"number": 4}, task_id="shared name")).text == "2.0"
    assert (await wire.call(sid, "half", {"number": 2}, task_id="shared name")).text == "1.0"


async def test_E61_a_call_made_while_setup_runs_is_executed_once(wire: Wire):
    sid, once = await wire.open(task_spec={"setup_seconds": 3}), key()
    body = call_body("slow", {"seconds": 0, "key": once})
    waited, told = [], {}
    for _ in range(3):
        started = time.monotonic()
        async with wire.follow(sid, **body, **told) as stream:
            first = await stream.event()
            told = {"task_id": first.data}
            waited.append(time.monotonic() - started)
            with anyio.move_on_after(0.6):  # the client gives up
                await stream.event()
            assert stream.pings
    assert max(waited) < 0.5
    assert ran[once] == 0
    for _ in range(2):
        answer = await wire.call(sid, **body, task_id=first.data)
        assert (answer.id, answer.text) == (first.data, "slept 0.0")
    assert ran[once] == 1


async def test_a_setup_that_fails_under_a_waiting_call_is_its_error(wire: Wire):
    sid = await wire.open(task_spec={"setup_seconds": 0.3, "setup_boom": True})
    assert (await wire.call(sid, "noparam")).error == "ValueError: setup boom"


async def test_E62_nothing_runs_after_the_end_of_the_episode(wire: Wire, sid: str):
    once, before = key(), ran["submit"]
    await wire.call(sid, "submit", {"answer": "4"})
    for name, arguments in (("submit", {"answer": "5"}), ("slow", {"seconds": 0, "key": once}), ("hidden", {})):
        assert (await wire.call(sid, name, arguments)).failure == {
            "ok": False,
            "error": f"{name!r} was not run: the episode has finished (a tool returned finished=True), so no further "
            "tool calls are accepted.",
            "reason": "episode_finished",
        }
    assert (await wire.call(sid, "nope")).failure["reason"] == "not_found"
    assert (ran["submit"], ran[once]) == (before + 1, 0)
    assert await wire.alive(sid)


async def test_E62_the_end_can_be_left_to_the_client():
    with running([MathEnv], latch_finished=False) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open()
            for answer in ("4", "5"):
                assert (await wire.call(sid, "submit", {"answer": answer})).text == f"ok {answer}"


async def test_E63_calls_of_different_tools_overlap_and_a_blocking_one_delays_no_ping(wire: Wire, sid: str):
    pings = []

    async def call(name: str) -> None:
        assert "ok" in (await wire.call(sid, name, {"seconds": 2})).result

    started = time.monotonic()
    async with anyio.create_task_group() as group:
        group.start_soon(call, "block")
        group.start_soon(call, "slow")
        while time.monotonic() - started < 1.8:
            before = time.monotonic()
            assert await wire.alive(sid)
            pings.append(time.monotonic() - before)
            await anyio.sleep(0.02)
    assert time.monotonic() - started < 3.5
    assert median(pings) < 0.05
    assert max(pings) < 0.25


async def test_E64_a_call_in_an_unknown_session_is_404_and_json(wire: Wire):
    response = await wire.post("/mathenv/call", headers=H(f"unknown {uuid.uuid4()}"), json=call_body("noparam"))
    assert (response.status_code, response.headers["content-type"]) == (404, "application/json")
    assert response.json()["detail"] == "Active environment not found"


# Beyond the cases: ids and readers.


async def test_a_dropped_stream_runs_the_tool_once_wherever_it_is_cut(wire: Wire, sid: str, pair: Running):
    body = json.dumps(call_body("big", {"n": 9000, "fill": " é"}, task_id="whole")).encode()
    whole = (await wire.post("/mathenv/call", headers=H(sid), content=body)).content
    assert len(whole) > 20_000
    for cut in [*range(0, 400, 25), *range(400, len(whole), 2500), len(whole) - 1]:
        once = key()
        given = call_body("slow", {"seconds": 0.02, "key": once}, task_id=f"cut at {cut}")
        if cut >= 400:
            given = call_body("big", {"n": 9000, "fill": " é", "key": once}, task_id=f"cut at {cut}")
        with connect(pair.url) as sock:
            sock.sendall(request_bytes("POST", "/mathenv/call", H(sid), json.dumps(given).encode()))
            left = cut
            while left and (piece := sock.recv(left)):
                left -= len(piece)
        answer = await wire.call(sid, **given)
        assert answer.id == f"cut at {cut}"
        assert answer.text == ("slept 0.02" if cut < 400 else " é" * 9000)
        assert ran[once] == 1


async def test_many_may_follow_one_call(wire: Wire, sid: str):
    once, answers = key(), []

    async def follow() -> None:
        answers.append(await wire.call(sid, "slow", {"seconds": 0.4, "key": once}, task_id="followed"))

    async with anyio.create_task_group() as group:
        for _ in range(10):
            group.start_soon(follow)
    assert [answer.text for answer in answers] == ["slept 0.4"] * 10
    assert ran[once] == 1


async def test_an_error_is_replayed_too(wire: Wire, sid: str):
    first = await wire.call(sid, "boom")
    assert await wire.call(sid, "noparam", task_id=first.id) == first


async def test_a_deleted_session_takes_its_results_with_it(wire: Wire, sid: str):
    made = (await wire.call(sid, "noparam")).id
    await wire.call(sid, "half", {"number": 2}, task_id="chosen")
    await wire.end(sid)
    await wire.open(sid)
    assert (await wire.call(sid, "noparam", task_id=made)).error == "unknown task_id"
    assert (await wire.call(sid, "half", {"number": 4}, task_id="chosen")).text == "2.0"


@pytest.mark.parametrize(
    "call_id",
    ["a\nevent: end\ndata: {}\n", "a\rb", " edge", "edge ", "\u2028", "\x00", "x" * 257, "\ud800"],
    ids=ascii,
)
async def test_an_id_that_would_break_the_stream_is_422_and_starts_nothing(wire: Wire, sid: str, call_id: str):
    once = key()
    content = json.dumps(call_body("slow", {"seconds": 0, "key": once}, task_id=call_id))
    response = await wire.post("/mathenv/call", headers=H(sid), content=content)
    assert response.status_code == 422
    assert response.json()["detail"][0]["loc"] == ["body", "task_id"]
    assert ran[once] == 0


# Beyond the cases: dynamic tools.


async def test_a_dynamic_tool_is_called_with_arguments_made_to_fit(wire: Wire):
    sid = await wire.open(task_spec={"extra": True})
    assert (await wire.call(sid, "dyn", {"x": "7"})).text == "dyn got 7"


@pytest.mark.parametrize("content", ["{}", '{"x":"seven"}', '{"x":NaN}', '{"x":1.5}', '{"x":[[]]}', '{"x":"\\ud800"}'])
async def test_wrong_input_for_a_dynamic_tool_is_a_failure(wire: Wire, content: str):
    sid = await wire.open(task_spec={"extra": True})
    body = f'{{"name":"dyn","input":{content}}}'
    failure = Answer.of(await wire.post("/mathenv/call", headers=H(sid), content=body)).failure
    assert failure["error"].startswith("Tool input validation error: ")
    assert failure["reason"] == "input_validation"


async def test_a_dynamic_tool_exists_only_in_its_task(wire: Wire, sid: str):
    assert (await wire.call(sid, "dyn", {"x": 1})).failure["error"].startswith("'dyn' is not a valid tool.")


# Beyond the cases: deadlines and limits.


class Guarded(OneTask):
    """Records what happened to its tools."""

    cancelled = threading.Event()
    refused_to_stop = threading.Event()

    @tool
    async def hang(self) -> str:
        """Wait for ever."""
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return "never"

    @tool
    def block(self, seconds: float) -> str:
        """Block a thread."""
        time.sleep(seconds)
        return "late"

    @tool
    async def quick(self) -> str:
        """Answer."""
        return "quick"

    @tool
    async def long(self, n: int) -> ToolOutput:
        """Say much."""
        return ToolOutput(blocks=[TextBlock(text="x" * n), TextBlock(text="last")], reward=0.5, metadata={"kept": 1})

    @tool
    async def picture(self, n: int) -> ToolOutput:
        """Show much."""
        return ToolOutput(blocks=[ImageBlock(data="A" * n, mimeType="image/png")])

    @tool
    async def complain(self, n: int, crash: bool) -> str:
        """Fail with many words."""
        raise (RuntimeError if crash else ToolError)("x" * n)


async def test_a_call_past_its_deadline_is_stopped_and_says_so():
    Guarded.cancelled.clear()
    with running([Guarded], call_seconds=0.3, sweep_seconds=0.05) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open()
            started = time.monotonic()
            answer = await wire.call(sid, "hang", env="guarded")
            assert time.monotonic() - started < 2
            assert answer.failure["reason"] == "timed_out"
            assert "'hang'" in answer.failure["error"]
            assert "0.3 s" in answer.failure["error"]
            assert Guarded.cancelled.wait(2)
            assert (await wire.call(sid, "quick", env="guarded")).text == "quick"
            assert await wire.call(sid, "hang", env="guarded", task_id=answer.id) == answer


async def test_a_blocking_tool_past_its_deadline_is_given_up():
    with running([Guarded], call_seconds=0.3, sweep_seconds=0.05) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open()
            answer = await wire.call(sid, "block", {"seconds": 1}, env="guarded")
            assert answer.failure["reason"] == "timed_out"
            assert (await wire.call(sid, "quick", env="guarded")).text == "quick"


async def test_a_session_deleted_under_a_running_call_stops_it_and_tells_its_reader():
    Guarded.cancelled.clear()
    with running([Guarded]) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open()
            async with wire.follow(sid, "hang", env="guarded") as stream:
                await stream.event()
                started = time.monotonic()
                await wire.end(sid)
                assert time.monotonic() - started < 2
                end = await stream.event()
            assert (end.name, "session ended" in end.data) == ("error", True)
            assert Guarded.cancelled.wait(2)
            await wire.open(sid)
            assert (await wire.call(sid, "quick", env="guarded")).text == "quick"


async def test_a_call_goes_on_where_another_asgi_server_cancels_what_it_was_asked_by():
    Guarded.cancelled.clear()
    server = Server([Guarded], settings=Settings())
    transport = httpx2.ASGITransport(app=server.app)
    async with server.runtime.running(), httpx2.AsyncClient(transport=transport, base_url="http://here") as client:
        await client.post("/create", headers=H("s"), json={"task_spec": {}})
        asked = client.post("/guarded/call", headers=H("s"), json=call_body("hang", task_id="mine"))
        asking = asyncio.ensure_future(asked)
        await until(lambda: server.runtime.calls == 1)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert not server.runtime.session("s").find("mine").done
        assert not Guarded.cancelled.is_set()
        await client.post("/delete", headers=H("s"))
        assert Guarded.cancelled.is_set()


async def test_long_output_is_cut_with_a_clear_mark():
    with running([Guarded], output_bytes=1000) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open()
            whole = await wire.call(sid, "long", {"n": 996}, env="guarded")
            assert whole.text == "x" * 996 + "last"
            answer = await wire.call(sid, "long", {"n": 5000}, env="guarded")
            first = answer.output["blocks"][0]["text"]
            assert first.startswith("x" * 1000 + "\n[cut here: 5,000 characters")
            assert len(first) < 1200
            assert answer.output["metadata"] == {"kept": 1, "cut_from": 5004}
            assert answer.output["reward"] == 0.5
            assert await wire.call(sid, "quick", env="guarded", task_id=answer.id) == answer
            blocks = (await wire.call(sid, "picture", {"n": 5000}, env="guarded")).output["blocks"]
            assert [block["type"] for block in blocks] == ["text"]
            assert "5,000" in blocks[0]["text"]


@pytest.mark.parametrize("crash", [False, True])
async def test_a_long_complaint_is_cut_too(crash: bool):
    with running([Guarded], output_bytes=1000) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open()
            answer = await wire.call(sid, "complain", {"n": 100_000, "crash": crash}, env="guarded")
            text = answer.error if crash else answer.failure["error"]
            assert "xxx" in text
            assert "[cut here: " in text
            assert len(text) < 1200
            assert (await wire.call(sid, "quick", env="guarded")).text == "quick"


async def test_wrong_input_is_quoted_but_not_at_any_length(wire: Wire, sid: str):
    failure = (await wire.call(sid, "half", {"number": "x" * 200_000})).failure
    assert failure["error"].startswith("Tool input validation error: ")
    assert failure["error"].endswith("… (200,000 characters)).")
    assert len(failure["error"]) < 300


class Odd(Environment):
    """Returns values that JSON cannot express."""

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return []

    def get_prompt(self):
        return "?"

    @tool
    async def at_once(self, what: str) -> ToolOutput:
        """Answer at once."""
        return odd_output(what)

    @tool
    async def later(self, what: str) -> ToolOutput:
        """Answer when the stream is open."""
        await asyncio.sleep(0.05)
        return odd_output(what)


class Array:
    def tolist(self):
        return [float("nan"), float("inf")]


class Score(BaseModel):
    value: float


def odd_output(what: str) -> ToolOutput:
    circle: list = []
    circle.append(circle)
    deep: list = []
    for _ in range(5000):
        deep = [deep]
    values = {
        "object": object(),
        "circle": circle,
        "deep": deep,
        "keys": {(1, 2): 3},
        "nan": [float("nan"), float("-inf")],
        "array": Array(),
        "model": Score(value=float("nan")),
        "set": {1},
        "bytes": b"abc",
        "int": 2**100,
    }
    return ToolOutput(blocks=[TextBlock(text="é")], metadata={"it": values[what]}, reward=0.5)


@pytest.mark.parametrize("when", ["at_once", "later"])
@pytest.mark.parametrize("what", ["object", "circle", "deep", "keys"])
async def test_output_that_cannot_be_written_is_an_error_and_the_session_goes_on(what: str, when: str):
    with running([Odd]) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open()
            assert "JSON" in (await wire.call(sid, when, {"what": what}, env="odd")).error
            assert (await wire.call(sid, when, {"what": "int"}, env="odd")).text == "é"


@pytest.mark.parametrize(
    ("what", "written"),
    [
        ("nan", [None, None]),
        ("array", [None, None]),
        ("model", {"value": None}),
        ("set", [1]),
        ("bytes", "abc"),
        ("int", 2**100),
    ],
)
async def test_E140_output_is_strict_json_whatever_the_author_put_into_it(what: str, written: object):
    with running([Odd]) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open()
            output = (await wire.call(sid, "at_once", {"what": what}, env="odd")).output
            assert output["metadata"] == {"it": written}
            assert output["reward"] == 0.5


async def test_a_reward_is_a_number_with_a_point(wire: Wire, sid: str):
    response = await wire.post("/mathenv/call", headers=H(sid), json=call_body("submit", {"answer": "4"}))
    assert b'"reward":1.0,' in response.content
    assert strict_json(response.content.split(b"data: ")[2])["output"]["reward"] == 1.0


async def test_bare_paths_carry_a_call_through_their_redirect(wire: Wire):
    sid = await wire.open(env_name="otherenv", task_spec={"q": "x"})
    headers = H(sid) | {"X-Deployment": "somebody/otherenv"}
    response = await wire.post("/call", headers=headers, json=call_body("other"), follow_redirects=True)
    assert Answer.of(response).text == "the other one"
