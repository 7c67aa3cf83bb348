"""ORS, from opening a session to its end: cases 20-39, and what the specification says beyond them."""

from __future__ import annotations

import base64
import json
import threading
import time
import uuid
from collections import Counter

import anyio
import pytest

from tests.wires.wire import Answer, H, Wire, call_body, read_events, request_bytes, talk, until
from tests.worlds import MathEnv, OtherEnv, torn_down
from toolyard import Environment, tool
from toolyard.testing import Running, running

pytestmark = pytest.mark.anyio

NOT_BOTH = "Provide either task_spec or both split and index, not both/neither"


def unique(name: str) -> str:
    return f"{name} {uuid.uuid4()}"


def secrets_header(secrets: object) -> dict[str, str]:
    return {"X-Secrets": base64.b64encode(json.dumps(secrets).encode()).decode()}


async def test_E20_create_session_answers_json_by_default(wire: Wire):
    response = await wire.post("/create_session", headers={"Accept": "*/*"})
    assert (response.status_code, response.headers["content-type"]) == (200, "application/json")
    assert response.json().keys() == {"sid"}
    sid = uuid.UUID(response.json()["sid"])
    assert sid.version == 4
    assert str(sid) == response.json()["sid"]


async def test_E21_create_session_answers_events_when_they_are_accepted(wire: Wire):
    response = await wire.post("/create_session", json={}, headers={"Accept": "text/event-stream"})
    named, end = Answer.of(response).events
    assert (named.name, end.name) == ("task_id", "end")
    assert uuid.UUID(named.data).version == 4
    assert json.loads(end.data) == {"sid": named.data}


async def test_E22_create_session_only_hands_out_ids(wire: Wire):
    first, second = [(await wire.post("/create_session")).json()["sid"] for _ in range(2)]
    assert first != second
    response = await wire.post("/ping", headers=H(first))
    assert (response.status_code, response.json()["detail"]) == (404, "Active environment not found")


@pytest.mark.parametrize("headers", [{}, H(""), H("   ")], ids=["missing", "empty", "blank"])
def test_E23_create_without_a_session_id_is_400(pair: Running, headers: dict):
    answer = talk(pair.url, request_bytes("POST", "/create", headers, b'{"task_spec":{}}'))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"detail":"X-Session-ID header is required"' in answer


@pytest.mark.parametrize("body", [{}, {"split": "train"}, {"task_spec": {}, "split": "train", "index": 0}])
async def test_E24_create_wants_one_source_of_the_task(wire: Wire, body: dict):
    response = await wire.post("/create", headers=H(unique("E24")), json=body)
    assert response.status_code == 422
    assert NOT_BOTH in response.json()["detail"][0]["msg"]


async def test_E25_a_failed_create_leaves_the_id_free(wire: Wire):
    sid = unique("E25")
    response = await wire.post("/create", headers=H(sid), json={"split": "train", "index": 99})
    assert (response.status_code, response.json()["detail"]) == (400, "Invalid index")
    response = await wire.post("/create", headers=H(sid), json={"split": "train", "index": 0})
    assert (response.status_code, response.json()) == (200, {"sid": sid})


async def test_E26_create_in_an_unknown_environment_is_404(wire: Wire):
    response = await wire.post("/create", headers=H(unique("E26")), json={"env_name": "zip", "task_spec": {}})
    assert (response.status_code, response.json()["detail"]) == (404, "unknown environment 'zip'")


async def test_E27_secrets_in_the_body_reach_the_environment(wire: Wire):
    sid = unique("E27")
    body = {"env_name": "MATHENV", "task_spec": {"q": "hi"}, "secrets": {"k": "v"}}
    response = await wire.post("/create", headers=H(sid), json=body)
    assert (response.status_code, response.json()) == (200, {"sid": sid})
    assert (await wire.call(sid, "secret", {"answer": "k"})).text == "v"


async def test_E28_secrets_in_the_header_reach_the_environment(wire: Wire):
    sid = unique("E28")
    headers = H(sid) | secrets_header({"k": {"value": "v"}})
    response = await wire.post("/create", headers=headers, json={"env_name": "MATHENV", "task_spec": {"q": "hi"}})
    assert response.status_code == 200
    assert (await wire.call(sid, "secret", {"answer": "k"})).text == "v"


async def test_E29_a_session_is_created_once(wire: Wire):
    sid = await wire.open(task_spec={"q": "first"})
    response = await wire.post("/create", headers=H(sid), json={"task_spec": {"q": "first"}})
    assert (response.status_code, response.json()["detail"]) == (400, "Session already exists")
    assert (await wire.get("/mathenv/prompt", headers=H(sid))).json()[0]["text"] == "first"


async def test_E30_create_without_a_name_means_the_first_environment(wire: Wire):
    sid = await wire.open(split="train", index=2)
    response = await wire.get("/mathenv/prompt", headers=H(sid))
    assert response.json() == [{"text": "2", "detail": None, "type": "text"}]


async def test_E31_the_prompt_is_a_bare_array_of_blocks(wire: Wire):
    sid = await wire.open(task_spec={"q": "hi"})
    response = await wire.get("/mathenv/prompt", headers=H(sid))
    assert (response.status_code, response.json()) == (200, [{"text": "hi", "detail": None, "type": "text"}])


async def test_E32_setup_goes_on_in_the_background(wire: Wire):
    started = time.monotonic()
    sid = await wire.open(task_spec={"q": "slow", "setup_seconds": 3})
    assert time.monotonic() - started < 0.5
    asked = anyio.Event()

    async def ping() -> None:
        await asked.wait()
        for _ in range(10):
            before = time.monotonic()
            assert await wire.alive(sid)
            assert time.monotonic() - before < 0.5

    async with anyio.create_task_group() as group:
        group.start_soon(ping)
        asked.set()
        assert (await wire.get("/mathenv/prompt", headers=H(sid))).json()[0]["text"] == "slow"
    assert 2.9 < time.monotonic() - started < 5


async def test_E33_a_failed_setup_is_500_wherever_the_environment_is_needed(wire: Wire):
    sid = await wire.open(task_spec={"setup_boom": True})
    for ask in (
        wire.get("/mathenv/prompt", headers=H(sid)),
        wire.get("/mathenv/task_tools", headers=H(sid)),
        wire.get("/mathenv/messages", headers=H(sid)),
        wire.post("/mathenv/call", headers=H(sid), json=call_body("noparam")),
    ):
        response = await ask
        assert (response.status_code, response.json()["detail"]) == (500, "ValueError: setup boom")
    assert await wire.alive(sid)


async def test_E34_who_waits_for_setup_of_a_deleted_session_gets_410(wire: Wire, pair: Running):
    sid = await wire.open(task_spec={"setup_seconds": 30})
    answers = []

    async def wait_for(path: str) -> None:
        answers.append(await wire.get(f"/mathenv/{path}", headers=H(sid)))

    async with anyio.create_task_group() as group:
        for path in ("prompt", "task_tools", "messages"):
            group.start_soon(wait_for, path)
        await anyio.sleep(0.2)  # nothing visible here shows that they wait
        await wire.end(sid)
    assert [(r.status_code, r.json()["detail"]) for r in answers] == [(410, "Session deleted")] * 3


async def test_E35_delete_is_idempotent_and_tears_down_once(wire: Wire):
    await wire.end(unique("never created"))
    question = unique("E35")
    sid = await wire.open(task_spec={"q": question})
    await wire.end(sid)
    await wire.end(sid)
    assert torn_down.count(question) == 1
    assert not await wire.alive(sid)


async def test_E36_a_deleted_id_can_be_created_again(wire: Wire):
    sid = await wire.open(task_spec={"q": "first"})
    await wire.end(sid)
    await wire.open(sid, task_spec={"q": "second"})
    assert (await wire.get("/mathenv/prompt", headers=H(sid))).json()[0]["text"] == "second"


async def test_E37_an_idle_session_is_closed_but_never_under_a_running_call():
    with running([MathEnv, OtherEnv], idle_seconds=1, sweep_seconds=0.05) as server:
        async with Wire(server.url) as wire:
            idle, busy, pinged = unique("idle"), unique("busy"), unique("pinged")
            idle_sid = await wire.open(task_spec={"q": idle})
            pinged_sid = await wire.open(task_spec={"q": pinged})
            busy_sid = await wire.open(task_spec={"q": busy})
            async with wire.follow(busy_sid, "slow", {"seconds": 4}) as stream:
                await stream.event()
                with anyio.fail_after(20):
                    while idle not in torn_down:
                        assert await wire.alive(pinged_sid)
                        await anyio.sleep(0.05)
                assert not await wire.alive(idle_sid)
                assert busy not in torn_down
            # The reader has gone, the call still runs for about three seconds.
            await anyio.sleep(1.3)
            assert busy not in torn_down
            assert await wire.alive(busy_sid)
            await until(lambda: busy in torn_down, 20)
            assert not await wire.alive(busy_sid)
            assert torn_down.count(idle) == torn_down.count(busy) == 1


async def test_E38_task_tools_are_shared_then_hidden_then_dynamic_each_once(wire: Wire):
    shared = [spec["name"] for spec in (await wire.get("/mathenv/tools")).json()["tools"]]
    sid = await wire.open(task_spec={"extra": True})
    response = await wire.get("/mathenv/task_tools", headers=H(sid))
    assert response.status_code == 200
    assert [spec["name"] for spec in response.json()["tools"]] == [*shared, "hidden", "dyn"]
    assert all(spec.keys() == {"name", "description", "input_schema"} for spec in response.json()["tools"])


async def test_E39_task_tools_of_an_unknown_session_are_404(wire: Wire):
    response = await wire.get("/mathenv/task_tools", headers=H(unique("E39")))
    assert (response.status_code, response.json()["detail"]) == (404, "Active environment not found")


# Beyond the cases: opening.


@pytest.mark.parametrize("accept", ["application/json", "text/html", "application/json;q=0.9, */*"])
async def test_who_does_not_name_events_gets_json(wire: Wire, accept: str):
    response = await wire.post("/create_session", headers={"Accept": accept})
    assert response.json().keys() == {"sid"}


async def test_events_may_be_one_of_several_accepted_types(wire: Wire):
    response = await wire.post("/create_session", headers={"Accept": "application/json, text/event-stream"})
    assert read_events(response.content)[0].name == "task_id"


@pytest.mark.parametrize("content", [b"", b"{}", b'{"env":{"A":"b"}}', b'{"task_id":"x"}', b"not json", b"\xff"])
async def test_create_session_ignores_its_body(wire: Wire, content: bytes):
    response = await wire.post("/create_session", content=content)
    assert response.status_code == 200
    assert uuid.UUID(response.json()["sid"]).version == 4


async def test_any_text_is_a_session_id_and_its_edges_are_trimmed(wire: Wire, pair: Running):
    name = unique("any text, 100% ok? <é>")
    answer = talk(pair.url, request_bytes("POST", "/create", H(f"  {name}\t "), b'{"task_spec":{}}'))
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(json.dumps({"sid": name}, ensure_ascii=False, separators=(",", ":")).encode())
    assert (await wire.post("/ping", headers={"X-Session-ID": name.encode("latin-1")})).status_code == 200


async def test_create_checks_in_the_order_that_clients_rely_on(wire: Wire):
    taken = await wire.open()

    async def status(sid: str, **body: object) -> tuple[int, object]:
        response = await wire.post("/create", headers=H(sid), json=body)
        return response.status_code, response.json()["detail"]

    everything_wrong = {"env_name": "zip", "split": "nope", "index": 99}
    assert (await wire.post("/create", json={"bad": 1})).status_code == 400
    assert (await status(taken, bad=1))[0] == 422
    assert await status(taken, **everything_wrong) == (400, "Session already exists")
    assert await status("fresh", **everything_wrong) == (404, "unknown environment 'zip'")
    assert await status("fresh", env_name="mathenv", split="nope", index=99) == (400, "Invalid split")
    assert await status("fresh", env_name="mathenv", split="train", index=99) == (400, "Invalid index")
    assert not await wire.alive("fresh")


async def test_body_secrets_win_over_the_header(wire: Wire):
    sid = unique("secrets")
    header = {"k": {"value": "header", "allowed_domains": ["example.com"]}, "only": {"value": "header only"}}
    body = {"task_spec": {}, "secrets": {"k": "body"}}
    assert (await wire.post("/create", headers=H(sid) | secrets_header(header), json=body)).status_code == 200
    assert (await wire.call(sid, "secret", {"answer": "k"})).text == "body"
    assert (await wire.call(sid, "secret", {"answer": "only"})).text == "header only"


@pytest.mark.parametrize(
    "header",
    [
        "%%%",
        "e30",  # the padding is missing
        base64.b64encode(b"not json").decode(),
        base64.b64encode(b"[]").decode(),
        base64.b64encode(b'{"k":"v"}').decode(),
        base64.b64encode(b'{"k":{}}').decode(),
        base64.b64encode(b'{"k":{"value":null}}').decode(),
        base64.b64encode(b'{"k":{"value":"\xff"}}').decode(),
        base64.b64encode(b"[" * 5000).decode(),
    ],
)
async def test_undecodable_secrets_are_400_and_the_id_stays_free(wire: Wire, header: str):
    sid = unique("bad secrets")
    response = await wire.post("/create", headers=H(sid) | {"X-Secrets": header}, json={"task_spec": {}})
    assert response.status_code == 400
    assert "X-Secrets" in response.json()["detail"]
    await wire.open(sid)


async def test_split_and_index_in_every_lenient_form(wire: Wire):
    sid = await wire.open(env_name="mathenv", split="train", index="-1", task_spec=None, secrets=None)
    assert (await wire.get("/mathenv/prompt", headers=H(sid))).json()[0]["text"] == "4"


async def test_delete_session_ends_the_session_too(wire: Wire):
    question = unique("delete_session")
    sid = await wire.open(task_spec={"q": question})
    for _ in range(2):
        response = await wire.post("/delete_session", headers=H(sid))
        assert (response.status_code, response.json()) == (200, {"sid": sid})
    assert torn_down.count(question) == 1


@pytest.mark.parametrize("path", ["/delete", "/delete_session", "/ping", "/create"])
async def test_session_endpoints_need_the_header(wire: Wire, path: str):
    response = await wire.post(path)
    assert (response.status_code, response.json()["detail"]) == (400, "X-Session-ID header is required")


@pytest.mark.parametrize("path", ["prompt", "task_tools", "messages"])
async def test_environment_endpoints_need_the_header_and_the_session(wire: Wire, path: str):
    response = await wire.get(f"/mathenv/{path}")
    assert (response.status_code, response.json()["detail"]) == (400, "X-Session-ID header is required")
    response = await wire.get(f"/mathenv/{path}", headers=H("nobody"))
    assert (response.status_code, response.json()["detail"]) == (404, "Active environment not found")


# Beyond the cases: which environment a session is in.


async def test_the_name_in_the_path_is_not_compared_when_the_session_has_named_its_own(wire: Wire):
    sid = await wire.open(env_name="mathenv", split="train", index=1)
    assert (await wire.get("/otherenv/prompt", headers=H(sid))).json()[0]["text"] == "1"
    assert (await wire.get("/nosuch/prompt", headers=H(sid))).status_code == 404


async def test_a_session_from_a_task_spec_stays_in_the_first_environment(wire: Wire):
    sid = await wire.open(task_spec={"q": "mine"})
    assert (await wire.get("/otherenv/prompt", headers=H(sid))).json()[0]["text"] == "mine"


async def test_D19_the_first_path_names_the_environment_of_a_session_opened_without_a_name(wire: Wire):
    before = torn_down.count("1")
    sid = await wire.open(split="train", index=1)
    assert (await wire.get("/otherenv/prompt", headers=H(sid))).json()[0]["text"] == "other 1"
    await until(lambda: torn_down.count("1") == before + 1)
    assert (await wire.call(sid, "other", env="otherenv")).text == "the other one"
    # The session is decided now: another name changes nothing.
    assert (await wire.get("/mathenv/prompt", headers=H(sid))).json()[0]["text"] == "other 1"


async def test_D19_the_default_is_kept_when_the_first_path_names_it(wire: Wire):
    sid = await wire.open(split="train", index=1)
    assert (await wire.call(sid, "noparam")).text == "nothing"
    assert (await wire.get("/otherenv/prompt", headers=H(sid))).json()[0]["text"] == "1"


async def test_D19_a_split_that_only_another_environment_has(wire: Wire):
    sid = await wire.open(split="only_here", index=0)
    assert (await wire.get("/otherenv/prompt", headers=H(sid))).json()[0]["text"] == "other 0"


async def test_D19_an_index_that_the_named_environment_has_not_is_400_and_the_session_lives_on(wire: Wire):
    sid = await wire.open(split="train", index=4)
    response = await wire.get("/otherenv/prompt", headers=H(sid))
    assert (response.status_code, response.json()["detail"]) == (400, "Invalid index")
    assert (await wire.get("/mathenv/prompt", headers=H(sid))).json()[0]["text"] == "4"


async def test_the_deployment_header_names_the_environment_of_a_new_session(wire: Wire):
    sid = unique("deployment")
    headers = H(sid) | {"X-Deployment": "somebody/OtherEnv"}
    assert (await wire.post("/create", headers=headers, json={"split": "train", "index": 0})).status_code == 200
    response = await wire.get("/prompt", headers=headers, follow_redirects=True)
    assert response.json()[0]["text"] == "other 0"


class Sluggish(OtherEnv):
    """Slow to build and to tear down, and counts both."""

    built: Counter[str] = Counter()
    torn: Counter[str] = Counter()
    torn_in_time = threading.Event()
    lock = threading.Lock()
    at_once = most_at_once = 0

    def __init__(self, task_spec, secrets):
        super().__init__(task_spec, secrets)
        with Sluggish.lock:
            Sluggish.at_once += 1
            Sluggish.most_at_once = max(Sluggish.at_once, Sluggish.most_at_once)
        time.sleep(task_spec.get("build_seconds", 0.4))
        with Sluggish.lock:
            Sluggish.at_once -= 1
        if boom := task_spec.get("build_boom"):
            raise RuntimeError(boom)
        self.built[task_spec["q"]] += 1

    @classmethod
    def list_tasks(cls, split):
        return [{"q": f"slow {n}"} for n in range(8)]

    def teardown(self):
        time.sleep(0.2)
        self.torn[self.task_spec["q"]] += 1


async def test_D19_nobody_loses_the_session_while_it_moves_to_its_environment():
    with running([Sluggish, OtherEnv, type("Slower", (Sluggish,), {})]) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open(split="train", index=1)
            answers: dict[str, list] = {"/slower/prompt": [], "/slower/task_tools": [], "/ping": []}

            async def ask(method: str, path: str) -> None:
                answers[path].append(await wire.request(method, path, headers=H(sid)))

            async with anyio.create_task_group() as group:
                for _ in range(3):
                    group.start_soon(ask, "GET", "/slower/prompt")
                    group.start_soon(ask, "GET", "/slower/task_tools")
                for _ in range(30):
                    await ask("POST", "/ping")
                    await anyio.sleep(0.02)
            assert {r.status_code for every in answers.values() for r in every} == {200}
            assert Sluggish.built["slow 1"] == 2  # once in each environment
            await until(lambda: Sluggish.torn["slow 1"] == 1)


async def test_D19_sessions_do_not_wait_for_each_other_to_move():
    Sluggish.most_at_once = 0
    with running([OtherEnv, Sluggish]) as server:
        async with Wire(server.url) as wire:
            sids = [await wire.open(split="train", index=n % 2) for n in range(8)]
            prompts = []

            async def ask(sid: str) -> None:
                prompts.append((await wire.get("/sluggish/prompt", headers=H(sid))).json()[0]["text"])

            async with anyio.create_task_group() as group:
                for sid in sids:
                    group.start_soon(ask, sid)
            assert Sluggish.most_at_once >= 4, "they were built one after the other"
            assert Counter(prompts) == {"slow 0": 4, "slow 1": 4}


# Beyond the cases: failing, waiting, ending.


async def test_a_constructor_that_raises_is_500_and_leaves_the_id_free():
    with running([Sluggish]) as server:
        async with Wire(server.url) as wire:
            body = {"task_spec": {"q": "boom", "build_seconds": 0, "build_boom": "out of paper"}}
            response = await wire.post("/create", headers=H("s"), json=body)
            assert (response.status_code, response.json()["detail"]) == (500, "RuntimeError: out of paper")
            assert not await wire.alive("s")
            assert server.server.runtime.sessions == {}
            await wire.open("s", task_spec={"q": "fine", "build_seconds": 0})


async def test_a_session_deleted_while_it_is_built_is_torn_down_and_its_create_says_so():
    with running([Sluggish]) as server:
        async with Wire(server.url) as wire:
            created = []

            async def create() -> None:
                body = {"task_spec": {"q": "unwanted", "build_seconds": 0.6}}
                created.append(await wire.post("/create", headers=H("s"), json=body))

            async with anyio.create_task_group() as group:
                group.start_soon(create)
                await until(lambda: "s" in server.server.runtime.sessions)
                assert await wire.alive("s")
                response = await wire.post("/create", headers=H("s"), json={"task_spec": {}})
                assert response.json()["detail"] == "Session already exists"
                await wire.end("s")
            assert (created[0].status_code, created[0].json()["detail"]) == (410, "Session deleted")
            assert Sluggish.torn["unwanted"] == 1
            await wire.open("s", task_spec={"q": "again", "build_seconds": 0})


async def test_delete_cancels_a_running_setup_and_then_tears_down(wire: Wire):
    question = unique("cancelled setup")
    sid = await wire.open(task_spec={"q": question, "setup_seconds": 30})
    started = time.monotonic()
    await wire.end(sid)
    assert time.monotonic() - started < 2
    assert torn_down.count(question) == 1


async def test_a_failed_setup_is_torn_down_once(wire: Wire):
    question = unique("failed setup")
    sid = await wire.open(task_spec={"q": question, "setup_boom": True})
    await wire.get("/mathenv/prompt", headers=H(sid))
    await wire.end(sid)
    assert torn_down.count(question) == 1


class BadTeardown(OtherEnv):
    def teardown(self):
        raise RuntimeError("the rubbish bin is full")


async def test_a_teardown_that_raises_does_not_reach_the_client():
    with running([BadTeardown]) as server:
        async with Wire(server.url) as wire:
            await wire.open("s", task_spec={"q": "x"})
            await wire.end("s")
            assert not await wire.alive("s")


async def test_with_starting_seconds_a_slow_setup_is_503_and_worth_asking_again():
    with running([MathEnv], starting_seconds=0.2) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open(task_spec={"q": "late", "setup_seconds": 0.8})
            for path in ("prompt", "task_tools", "messages"):
                response = await wire.get(f"/mathenv/{path}", headers=H(sid))
                assert (response.status_code, response.json()["detail"]) == (503, "Environment still starting.")
                assert response.headers["x-backend-state"] == "starting"
                assert response.headers["retry-after"] == "2"
            assert (await wire.call(sid, "noparam")).text == "nothing"  # a call waits, with signs of life
            assert (await wire.get("/mathenv/prompt", headers=H(sid))).json()[0]["text"] == "late"


class Moody(Environment):
    """Breaks where its task says."""

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return []

    def __init__(self, task_spec, secrets):
        super().__init__(task_spec, secrets)
        if task_spec.get("build"):
            raise ValueError("in the constructor")

    def get_prompt(self):
        raise ValueError("in the prompt")

    @tool
    def look(self) -> str:
        """Look."""
        return "?"


@pytest.mark.parametrize(
    ("errors", "shown", "hidden"),
    [
        ("none", "Internal Server Error", "ValueError"),
        ("exception", "ValueError: in the prompt", "Traceback"),
        ("stacktrace", "Traceback (most recent call last)", "\r"),
    ],
)
async def test_errors_says_how_much_of_an_exception_is_shown(errors: str, shown: str, hidden: str):
    with running([Moody], errors=errors) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open()
            response = await wire.get("/moody/prompt", headers=H(sid))
            assert response.status_code == 500
            assert shown in response.json()["detail"]
            assert hidden not in response.text
            response = await wire.post("/create", headers=H("other"), json={"task_spec": {"build": True}})
            assert response.status_code == 500
            assert shown.replace("in the prompt", "in the constructor") in response.json()["detail"]
            assert hidden not in response.text
            assert await wire.alive(sid)


async def test_with_errors_none_the_words_of_setup_are_kept_back_too():
    with running([MathEnv], errors="none") as server:
        async with Wire(server.url) as wire:
            sid = await wire.open(task_spec={"setup_boom": True})
            response = await wire.get("/mathenv/prompt", headers=H(sid))
            assert (response.status_code, response.json()["detail"]) == (500, "Internal Server Error")
