"""What an agent can do with a token: read the prompt, list tools, call them. And what its trainer can do with it."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Iterator

import httpx2
import mcp
import pytest

from tests.tiers import thorough
from tests.wires.agent_wire import KEY, Agent, Trainer, agent_at, failure, is_shut
from tests.wires.vault import REWARD, Other, Vault
from tests.wires.wire import H, Wire, call_body, connect, strict_json, until
from toolyard import AsyncClient, Client
from toolyard.client import AgentUrl, SessionGone
from toolyard.core.errors import DefinitionError
from toolyard.settings import Settings, SettingsError
from toolyard.testing import Running, running

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running([Vault, Other], agent_port=0, api_key=KEY) as one:
        yield one


@pytest.fixture(params=["agent port", thorough("main port")])
def door(request: pytest.FixtureRequest, server: Running) -> str:
    """The door that the agent uses. It has no key at either."""
    return server.agent_url if request.param == "agent port" else server.url


# What an agent can do.


async def test_an_agent_reads_the_prompt_lists_the_tools_and_calls_them_without_a_key(server, door):
    async with Trainer(server.url) as trainer:
        sid = await trainer.opened()
        given = await trainer.token(sid)
        async with Agent(door, given["token"]) as agent:
            prompt = await agent.get("/prompt")
            assert (prompt.status_code, strict_json(prompt.content)) == (
                200,
                [{"type": "text", "text": "Open vault 0."}],
            )
            listed = strict_json((await agent.get("/tools")).content)
            assert listed.keys() == {"tools"}
            assert [tool["name"] for tool in listed["tools"]] == [
                "note",
                "guess",
                "judge",
                "look",
                "refuse",
                "boom",
                "lose",
                "wait",
            ]
            assert listed["tools"][0] == {
                "name": "note",
                "description": "Write something down; all of it so far.",
                "input_schema": listed["tools"][0]["input_schema"],
            }
            assert listed["tools"][0]["input_schema"]["required"] == ["text"]
            assert await agent.does("note", text="a") == [{"type": "text", "text": "a"}]
            assert await agent.does("note", text="b") == [{"type": "text", "text": "a b"}]
            assert (await trainer.call(sid, "note", {"text": "c"}, env="vault")).text == "a b c", "it is one session"


async def test_blocks_come_in_order_and_without_what_is_for_trainers(server, door):
    async with agent_at(server.url, door) as agent:
        assert await agent.does("look") == [
            {"type": "text", "text": "a door"},
            {"type": "image", "data": "aGVsbG8=", "mimeType": "image/png"},
            {"type": "text", "text": "é 🙂"},
        ]
        assert await agent.does("guess", answer="sesame") == [{"type": "text", "text": "click"}]


async def test_after_the_end_an_agent_hears_that_the_episode_is_over_and_nothing_is_graded_twice(server, door):
    async with Trainer(server.url) as trainer:
        sid = await trainer.opened()
        async with Agent(door, (await trainer.token(sid))["token"]) as agent:
            await agent.does("guess", answer="sesame")
            for _ in range(2):
                over = await agent.fails("guess", answer="wrong")
                assert (over["reason"], over["retryable"]) == ("episode_finished", False)
                assert "the episode has finished" in over["message"]


@pytest.mark.parametrize(
    ("asked", "reason", "said"),
    [
        (("refuse", {}), "tool_failed", "not today"),
        (("note", {"text": 1, "more": 2}), "bad_arguments", "text"),
        (("note", {}), "bad_arguments", "text"),
        (("nothing", {}), "no_such_tool", "nothing"),
    ],
)
async def test_what_an_agent_does_wrong_it_reads_and_goes_on(server, door, asked, reason, said):
    tool, input = asked
    async with agent_at(server.url, door) as agent:
        error = await agent.fails(tool, **input)
        assert (error["reason"], error["retryable"]) == (reason, False)
        assert said in error["message"]
        assert await agent.does("note", text="on") == [{"type": "text", "text": "on"}]


@pytest.mark.parametrize(
    ("tool", "status", "told"), [("boom", 500, ("tool_raised", False)), ("lose", 502, ("lost", True))]
)
async def test_what_breaks_on_our_side_is_no_answer_that_an_agent_could_take_for_its_own_mistake(
    server, door, tool, status, told
):
    async with agent_at(server.url, door) as agent:
        error = await agent.fails(tool, status)
        assert (error["reason"], error["retryable"]) == told
        assert await agent.does("note", text="on") == [{"type": "text", "text": "on"}]


async def test_a_call_that_takes_too_long_and_one_without_room_say_when_to_come_again(tmp_path):
    with running(
        [Vault], api_key=KEY, call_seconds=1, sweep_seconds=0.05, max_concurrent_calls=1, max_queued_calls=0
    ) as one:
        async with agent_at(one.url, one.url) as agent:
            late = asyncio.create_task(agent.asks("wait", folder=str(tmp_path), key="k"))
            await until(lambda: list(tmp_path.glob("k-came-*")))
            busy = await agent.asks("note", text="more")
            assert busy.headers["retry-after"] == "1"
            error = failure(busy, 503)
            assert (error["reason"], error["retryable"]) == ("overloaded", True)
            error = failure(await late, 504)
            assert (error["reason"], error["retryable"]) == ("timed_out", True)


async def test_a_setup_that_fails_is_told_in_fixed_words(server, door):
    async with Trainer(server.url) as trainer:
        sid = await trainer.opened(setup_boom=True)
        async with Agent(door, (await trainer.token(sid))["token"]) as agent:
            for response in (await agent.get("/prompt"), await agent.get("/tools"), await agent.asks("note", text="a")):
                error = failure(response, 502)
                assert (error["reason"], error["retryable"]) == ("lost", True)
                assert "setup" not in error["message"]


async def test_a_prompt_that_breaks_is_told_in_fixed_words(server, door):
    async with agent_at(server.url, door, prompt_boom=True) as agent:
        assert failure(await agent.get("/prompt"), 500)["reason"] == "broken"


async def test_with_starting_seconds_an_agent_is_asked_to_come_again_while_setup_runs(tmp_path):
    with running([Vault], api_key=KEY, starting_seconds=0.05) as one:
        async with Trainer(one.url) as trainer:
            sid = await trainer.opened(setup_waits=str(tmp_path))
            async with Agent(one.url, (await trainer.token(sid))["token"]) as agent:
                assert (await agent.get("/tools")).status_code == 200, "classes know them"
                early = await agent.get("/prompt")
                assert (early.headers["retry-after"], early.headers["x-backend-state"]) == ("2", "starting")
                assert failure(early, 503) == {
                    "reason": "starting",
                    "message": "the environment is still starting",
                    "retryable": True,
                }
                (tmp_path / "setup-go").touch()
                await until(lambda: one.server.runtime.session(sid).state.value == "ready")
                assert await agent.prompt() == "Open vault 0."


# Rewards, if the operator shows them.


async def test_with_agent_sees_rewards_a_result_says_them_and_a_failure_has_none():
    with running([Vault], api_key=KEY, agent_sees_rewards=True) as one:
        async with agent_at(one.url, one.url) as agent:
            told = [
                strict_json((await agent.asks(*asked, **input)).content)
                for asked, input in [
                    (["note"], {"text": "a"}),
                    (["refuse"], {}),
                    (["guess"], {"answer": "sesame", "last": False}),
                    (["guess"], {"answer": "wrong"}),
                    (["note"], {"text": "b"}),
                ]
            ]
            assert all(one.keys() == {"ok", "blocks", "error", "reward", "finished"} for one in told)
            found = [(one["ok"], one["reward"], one["finished"]) for one in told]
            assert found == [
                (True, None, False),
                (False, None, False),
                (True, REWARD, False),
                (True, 0.0, True),
                (False, None, True),
            ]


# Calls that outlive their connection.


async def test_a_call_under_a_name_runs_once_and_can_be_picked_up_again(server, door, tmp_path):
    async with Trainer(server.url) as trainer:
        sid = await trainer.opened()
        token = (await trainer.token(sid))["token"]
        async with Agent(door, token) as agent:
            body = {"name": "wait", "input": {"folder": str(tmp_path), "key": "k"}, "call_id": "mine"}
            with pytest.raises(httpx2.ReadTimeout):
                await agent.post("/call", json=body, timeout=0.3)
            (tmp_path / "k-go").touch()
            for _ in range(2):
                assert (await agent.does("wait", "mine", folder=str(tmp_path), key="k"))[0]["text"] == "k came 1 times"
            error = failure(await agent.asks("note", "mine", text="other"), 409)
            assert (error["reason"], error["retryable"]) == ("call_conflict", False)
        async with Agent(door, (await trainer.token(sid))["token"]) as again:
            assert (await again.does("wait", "mine", folder=str(tmp_path), key="k"))[0]["text"] == "k came 1 times"


async def test_a_result_that_is_no_longer_kept_is_told_so_and_the_call_does_not_run_again():
    with running([Vault], api_key=KEY, replay_seconds=0, sweep_seconds=0.05) as one:
        async with agent_at(one.url, one.url) as agent:
            await agent.does("note", "mine", text="a")
            await until(lambda: not len(one.server.runtime.shared.replays))
            assert failure(await agent.asks("note", "mine", text="a"), 410)["reason"] == "call_gone"
            assert await agent.does("note", text="b") == [{"type": "text", "text": "a b"}]


async def test_names_of_calls_are_not_those_of_the_trainer(server, door):
    """An agent that knew them could take them over, or learn what its trainer has done."""
    async with Trainer(server.url) as trainer:
        sid = await trainer.opened()
        await trainer.call(sid, "note", {"text": "trainer"}, env="vault", task_id="one")
        async with Agent(door, (await trainer.token(sid))["token"]) as agent:
            assert await agent.does("note", "one", text="trainer") == [{"type": "text", "text": "trainer trainer"}]
            await agent.does("note", "two", text="agent")
            again = await trainer.call(sid, "note", {"text": "agent"}, env="vault", task_id="two")
            assert again.text == "trainer trainer agent agent"


async def test_a_call_whose_agent_hangs_up_goes_on_and_nothing_waits_for_it(server, door, tmp_path):
    async with Trainer(server.url) as trainer:
        sid = await trainer.opened()
        token = (await trainer.token(sid))["token"]
        granted = server.server.runtime.grants.find(token)
        async with Agent(door, token) as agent:
            body = {"name": "wait", "input": {"folder": str(tmp_path), "key": "k"}}
            with pytest.raises(httpx2.ReadTimeout):
                await agent.post("/call", json=body, timeout=0.3)
        await until(lambda: granted.requests == 0)
        assert granted.session.running == 1
        (tmp_path / "k-go").touch()
        await until(lambda: granted.session.running == 0)


async def test_a_name_for_a_call_is_the_same_over_mcp_and_plain_json(server, door):
    async with agent_at(server.url, door) as agent:
        assert await agent.does("note", "mine", text="a") == [{"type": "text", "text": "a"}]
        params = {"name": "note", "arguments": {"text": "a"}, "_meta": {"toolyard/callId": "mine"}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        told = strict_json((await agent.post("/mcp", json=body)).content)
        assert told["result"] == {"content": [{"type": "text", "text": "a"}], "isError": False}
        assert await agent.does("note", text="b") == [{"type": "text", "text": "a b"}]


# Tokens.


async def test_the_url_is_that_of_mcp_at_the_port_for_agents(server):
    async with Trainer(server.url) as trainer:
        given = await trainer.token(await trainer.opened())
        assert given["url"] == f"{server.agent_url}/agent/{given['token']}/mcp"
        assert given["expires_in"] == 86_400


@pytest.mark.parametrize(
    ("settings", "host", "beginning"),
    [
        ({}, "tools.example:99", "http://tools.example:99"),
        ({}, "[::1]:99", "http://[::1]:99"),
        ({}, "bad/host", "{url}"),
        ({"agent_url": "https://agents.example/door/"}, "x", "https://agents.example/door"),
        ({"agent_port": 0}, "tools.example:99", "http://127.0.0.1:{port}"),
        ({"agent_port": 0, "agent_host": "0.0.0.0"}, "tools.example:99", "http://tools.example:{port}"),
    ],
)
async def test_the_url_leads_where_the_operator_says_or_where_the_trainer_came_in(settings, host, beginning):
    with running([Vault], api_key=KEY, **settings) as one:
        async with Trainer(one.url) as trainer:
            sid = await trainer.opened()
            response = await trainer.post("/vault/agent", headers={**H(sid), "Host": host})
            given = response.json()
            wanted = beginning.format(url=one.url, port=one.server.agent_port)
            assert given["url"] == f"{wanted}/agent/{given['token']}/mcp"


async def test_tokens_are_long_and_random_and_several_open_one_session(server, door):
    async with Trainer(server.url) as trainer:
        sid = await trainer.opened()
        tokens = [(await trainer.token(sid))["token"] for _ in range(8)]
        assert len({token[:12] for token in tokens}) == 8
        assert all(token.startswith("agt-") and len(token) >= 4 + 128 / 6 for token in tokens)
        for number, token in enumerate(tokens):
            async with Agent(door, token) as agent:
                assert len((await agent.does("note", text="x"))[0]["text"].split()) == number + 1


async def test_a_revoked_token_opens_nothing_and_others_of_the_session_go_on(server, door):
    async with Trainer(server.url) as trainer:
        sid = await trainer.opened()
        tokens = [(await trainer.token(sid))["token"] for _ in range(3)]
        agents = [Agent(door, token) for token in tokens]
        assert await trainer.revoke(sid, token=tokens[0]) == 1
        assert await trainer.revoke(sid, token=tokens[0]) == 0
        assert [await is_shut(agent) for agent in agents] == [True, False, False]
        assert await trainer.revoke(sid) == 2
        assert [await is_shut(agent) for agent in agents] == [True, True, True]
        for agent in agents:
            await agent.aclose()


async def test_a_token_can_only_be_revoked_by_the_session_that_it_opens(server, door):
    async with Trainer(server.url) as trainer:
        mine, other = await trainer.opened(), await trainer.opened()
        token = (await trainer.token(mine))["token"]
        assert await trainer.revoke(other, token=token) == 0
        assert await trainer.revoke(other) == 0
        async with Agent(door, token) as agent:
            assert not await is_shut(agent)


async def test_a_token_expires(server, door):
    async with Trainer(server.url) as trainer:
        sid = await trainer.opened()
        given = await trainer.token(sid, expires_in=1.5)
        assert given["expires_in"] == 1.5
        async with Agent(door, given["token"]) as agent:
            assert await agent.prompt() == "Open vault 0."
            granted = server.server.runtime.grants.find(given["token"])
            (digest,) = granted.until
            await until(lambda: not granted.is_valid(digest))
            assert await is_shut(agent)


async def test_a_token_ends_with_its_session_however_that_ends(door, server):
    async with Trainer(server.url) as trainer:
        sid = await trainer.opened()
        token = (await trainer.token(sid))["token"]
        async with Agent(door, token) as agent:
            assert not await is_shut(agent)
            await trainer.end(sid)
            assert await is_shut(agent)
            await trainer.opened(sid)
            assert await is_shut(agent), "another session under the same id is another session"


async def test_an_agent_keeps_its_session_open_and_a_session_that_nobody_uses_takes_its_tokens_along():
    with running([Vault], api_key=KEY, idle_seconds=1, sweep_seconds=0.05) as one:
        async with Trainer(one.url) as trainer:
            sid = await trainer.opened()
            async with Agent(one.url, (await trainer.token(sid))["token"]) as agent:
                for _ in range(8):
                    assert await agent.prompt() == "Open vault 0."
                    await asyncio.sleep(0.2)
                await until(lambda: sid not in one.server.runtime.sessions)
                assert await is_shut(agent)
        assert not one.server.runtime.grants._by_token
        assert not one.server.runtime.grants._by_session


@pytest.mark.parametrize(
    ("headers", "body", "status", "said"),
    [
        ({}, b"", 400, "X-Session-ID header is required"),
        (H("nobody"), b"", 404, "Active environment not found"),
        (H("verl:x"), b"", 400, "that is for other protocols"),
        (H("{sid}"), b"{", 422, "JSON"),
        (H("{sid}"), b'{"expires_in": 0}', 422, "greater than 0"),
        (H("{sid}"), b'{"expires_in": 1e9}', 422, "at most 86400 seconds"),
        (H("{sid}"), b'{"expires_in": Infinity}', 422, "finite"),
        (H("{sid}"), b'{"for": "ever"}', 422, "Extra inputs"),
        ({**H("{sid}"), "X-API-Key": ""}, b"", 401, "API key"),
    ],
)
async def test_a_request_for_a_token_that_is_wrong_says_what_is_wrong(server, headers, body, status, said):
    async with Trainer(server.url) as trainer:
        sid = await trainer.opened()
        given = {name: value.format(sid=sid) for name, value in headers.items()}
        response = await trainer.post("/vault/agent", headers=given, content=body)
        assert response.status_code == status
        assert said in response.text


async def test_a_session_has_so_many_tokens_and_no_more(server):
    async with Trainer(server.url) as trainer:
        sid = await trainer.opened()
        tokens = [(await trainer.token(sid))["token"] for _ in range(64)]
        full = await trainer.post("/vault/agent", headers=H(sid))
        assert full.status_code == 409
        assert "revoke one" in full.text
        await trainer.revoke(sid, token=tokens[0])
        await trainer.token(sid)


async def test_a_session_that_was_opened_without_an_environment_gets_it_from_the_path(server, door):
    async with Trainer(server.url) as trainer:
        sid = f"s-{uuid.uuid4()}"
        opened = await trainer.post("/create", headers=H(sid), json={"split": "train", "index": 2})
        assert opened.status_code == 200
        response = await trainer.post("/other/agent", headers=H(sid))
        async with Agent(door, response.json()["token"]) as agent:
            assert await agent.prompt() == "Open vault 2."
        assert server.server.runtime.session(sid).spec.environment is Other


async def test_an_environment_cannot_have_the_name_of_the_door():
    class Agent(Vault):
        pass

    with pytest.raises(DefinitionError, match="cannot be called 'agent'"), running([Agent]):
        pass


@pytest.mark.parametrize("url", ["agents.example", "ftp://x", "http://x?y", "http://", "https://x/a b"])
def test_an_agent_url_that_is_none_is_an_error_that_says_so(url):
    with pytest.raises(SettingsError, match="agent_url"):
        Settings(agent_url=url)


def test_an_agent_port_that_is_none_is_an_error_that_says_so():
    with pytest.raises(SettingsError, match="agent_port is 70000"):
        Settings(agent_port=70000)
    assert Settings.read({}, {"TOOLYARD_AGENT_PORT": "0"}).agent_port == 0


# Our client.


def test_our_client_hands_out_a_url_and_takes_it_back(server):
    with (
        Client(server.url, api_key=KEY) as client,
        client.environment("vault").session(split="train", index=1) as session,
    ):
        agent = session.agent_url()
        assert isinstance(agent, AgentUrl)
        assert str(agent) == agent.url == f"{server.agent_url}/agent/{agent.token}/mcp"
        assert agent.token not in repr(agent), "nobody logs it by mistake"
        prompt = agent.url.removesuffix("mcp") + "prompt"
        assert httpx2.get(prompt).status_code == 200
        assert session.agent_url(expires_in=60).expires_in == 60
        assert session.revoke_agents(agent) == 1
        assert httpx2.get(prompt).status_code == 404
        assert session.revoke_agents() == 1
        sid = session.sid
        server.server.runtime.session(sid)
        httpx2.post(f"{server.url}/delete", headers={**H(sid), "X-API-Key": KEY})
        with pytest.raises(SessionGone):
            session.agent_url()


async def test_our_client_for_asyncio_does_the_same(server):
    async with (
        AsyncClient(server.url, api_key=KEY) as client,
        client.environment("vault").session(split="train", index=1) as session,
    ):
        agent = await session.agent_url()
        async with Agent(server.agent_url, agent.token) as door:
            assert await door.prompt() == "Open vault 1."
            assert await session.revoke_agents(agent) == 1
            assert await is_shut(door)


# Sizes.


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b"\xff",
        b"[" * 100_000,
        b'{"name": "note"',
        b'{"name": ""}',
        b'{"name": 1}',
        b'{"name": "note", "input": []}',
        b'{"name": "note", "input": {}, "call_id": ""}',
        b'{"name": "note", "input": {}, "call_id": "%b"}' % (b"x" * 257),
        b'{"name": "%b"}' % (b"x" * 513),
        b'{"name": "note", "task_id": "x"}',
        b'{"name": "\\ud800"}',
        b'{"name": "note", "input": {"text": "x"}, "call_id": "\\ud800"}',
    ],
)
async def test_a_body_that_is_no_call_is_refused_and_nothing_runs(server, door, body):
    async with agent_at(server.url, door) as agent:
        error = failure(await agent.post("/call", content=body), 422)
        assert (error["reason"], error["retryable"]) == ("bad_request", False)
        assert len(error["message"]) <= 2000
        assert await agent.does("note", text="a") == [{"type": "text", "text": "a"}]


async def test_a_body_that_is_too_large_is_refused():
    with running([Vault], api_key=KEY, body_bytes=10_000) as one:
        async with agent_at(one.url, one.url) as agent:
            error = failure(await agent.asks("note", text="x" * 20_000), 413)
            assert error["reason"] == "too_large"


async def test_a_large_body_arrives(server, door):
    async with agent_at(server.url, door) as agent:
        assert (await agent.does("note", text="é" * 500_000))[0]["text"] == "é" * 500_000


async def test_an_agent_with_many_calls_waits_and_takes_no_place_from_others(server, door, tmp_path):
    async with Trainer(server.url) as trainer:
        sid, other = await trainer.opened(), await trainer.opened()
        token = (await trainer.token(sid))["token"]
        async with Agent(door, token) as agent:
            asked = [asyncio.create_task(agent.asks("wait", f"c{n}", folder=str(tmp_path), key="k")) for n in range(70)]
            done, _ = await asyncio.wait(asked, timeout=10, return_when=asyncio.FIRST_COMPLETED)
            assert done
            await until(lambda: sum(one.done() for one in asked) == 6)
            for one in [one for one in asked if one.done()]:
                error = failure(one.result(), 429)
                assert (error["reason"], error["retryable"]) == ("overloaded", True)
            await until(lambda: server.server.runtime.session(sid).running == 64)
            async with Agent(door, (await trainer.token(other))["token"]) as neighbour:
                assert await neighbour.does("note", text="a") == [{"type": "text", "text": "a"}]
            (tmp_path / "k-go").touch()
            found = [one.status_code for one in await asyncio.gather(*asked)]
            assert sorted(found) == [200] * 64 + [429] * 6


async def test_agents_that_open_many_connections_leave_trainers_theirs():
    with running([Vault], agent_port=0, max_connections=8) as one:
        async with Wire(one.url) as trainer:
            assert (await trainer.get("/health")).status_code == 200
            crowd = [connect(one.agent_url) for _ in range(30)]
            try:
                for each in crowd:
                    with contextlib.suppress(OSError):  # the server closes some to make room
                        each.sendall(b"GET /agent/x/prompt HTTP/1.1\r\n")
                assert (await trainer.get("/health")).status_code == 200
                async with Wire(one.url) as another:
                    assert (await another.get("/health")).status_code == 200
            finally:
                for each in crowd:
                    each.close()


# The official client.


@pytest.mark.thorough
@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_official_client_of_mcp_needs_nothing_but_the_url(server, mode):
    async with Trainer(server.url) as trainer:
        given = await trainer.token(await trainer.opened())
    async with mcp.Client(given["url"], mode=mode) as client:
        assert "note" in [tool.name for tool in (await client.list_tools()).tools]
        result = await client.call_tool("note", {"text": "a"})
        assert ([block.text for block in result.content], result.is_error) == (["a"], False)
        assert (await client.call_tool("refuse", {})).is_error
        assert "Open vault 0." in str(await client.get_prompt("task"))
        with pytest.raises(mcp.MCPError):
            await client.call_tool("lose", {})
        assert not (await client.call_tool("note", {"text": "b"})).is_error


# Every place, and forks.


@pytest.mark.parametrize("placement", ["process", "pool"])
async def test_tokens_work_wherever_a_session_lives_and_a_fork_has_its_own(placement):
    with running([Vault], api_key=KEY, agent_port=0, placement=placement, pool_processes=1) as one:
        async with Trainer(one.url) as trainer:
            sid = await trainer.opened()
            token = (await trainer.token(sid))["token"]
            async with Agent(one.agent_url, token) as agent:
                assert await agent.prompt() == "Open vault 0."
                assert await agent.does("note", text="a") == [{"type": "text", "text": "a"}]
                assert failure(await agent.asks("boom"), 500)["reason"] == "tool_raised"
                if placement == "process":
                    forked = await trainer.post("/vault/fork", headers=H(sid), json={"count": 1})
                    (fork,) = forked.json()["sids"]
                    async with Agent(one.agent_url, (await trainer.token(fork))["token"]) as other:
                        assert await other.does("note", text="f") == [{"type": "text", "text": "a f"}]
                        assert await agent.does("note", text="b") == [{"type": "text", "text": "a b"}]
                        await trainer.end(sid)
                        assert await is_shut(agent)
                        assert not await is_shut(other)


async def test_the_door_is_served_with_one_protocol_if_it_has_a_port_or_is_named():
    for settings in ({"protocol": ("ors", "agent")}, {"protocol": ("ors",), "agent_port": 0}):
        with running([Vault], api_key=KEY, **settings) as one:
            async with agent_at(one.url, one.url) as agent:
                assert await agent.prompt() == "Open vault 0."
    with running([Vault], protocol=("ors",)) as one:
        async with Wire(one.url) as trainer:
            sid = await trainer.open(task_spec={"number": 0, "answer": ""})
            assert (await trainer.post("/vault/agent", headers=H(sid))).status_code == 404
            assert (await trainer.get("/agent/x/prompt")).status_code == 404
            assert (await trainer.post("/vault/call", headers=H(sid), json=call_body("look"))).status_code == 200
