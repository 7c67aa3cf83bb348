"""Any gateway serves any session: ORS over connections to any gateway, with our clients and without."""

from __future__ import annotations

import asyncio
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack

import pytest

from tests.gateways.several import COUNT, Several, at
from tests.wires.wire import SSE_HEADERS, Answer, H, Wire, call_body, connect, request_bytes, talk, until
from toolyard import AsyncClient, Client

pytestmark = pytest.mark.anyio

SESSIONS = 200


async def fresh(several: Several, method: str, path: str, **more: object):
    """A request over a new connection."""
    async with Wire(several.url) as wire:
        return await wire.request(method, path, **more)


async def tell(several: Several, sid: str, text: str) -> Answer:
    body = call_body("tell", {"text": text})
    return Answer.of(await fresh(several, "POST", "/yard/call", headers=H(sid), json=body))


@pytest.mark.thorough
async def test_hundreds_of_sessions_are_found_over_connections_that_lead_anywhere(several):
    busy = asyncio.Semaphore(20)
    pids: dict[int, set[int]] = {}
    calls: set[str] = set()

    async def episode(n: int) -> None:
        async with busy:
            sid = (await fresh(several, "POST", "/create_session")).json()["sid"] if n % 2 else f"mine-{uuid.uuid4()}"
            opened = await fresh(several, "POST", "/create", headers=H(sid), json={"split": "train", "index": n % 3})
            assert opened.status_code == 200, opened.text
            prompt = await fresh(several, "GET", "/yard/prompt", headers=H(sid))
            assert prompt.json()[0]["text"] == f"Task {n % 3}"
            for step in range(3):
                answer = await tell(several, sid, str(step))
                assert answer.text == " ".join(map(str, range(step + 1)))
                calls.add(answer.id)
                pids.setdefault(several.owner(sid), set()).add(answer.output["metadata"]["pid"])
            assert (await fresh(several, "POST", "/ping", headers=H(sid))).status_code == 200
            assert (await fresh(several, "POST", "/delete", headers=H(sid))).status_code == 200
            assert (await fresh(several, "POST", "/ping", headers=H(sid))).status_code == 404

    await asyncio.gather(*map(episode, range(SESSIONS)))
    assert len(calls) == 3 * SESSIONS, "no two gateways give the same name to a call"
    assert sorted(pids) == list(range(COUNT)), "all gateways have some"
    assert sorted(pid for found in pids.values() for pid in found) == sorted(several.gateways()), "each in its own"


async def test_our_clients_do_not_notice(several):
    def episode(n: int) -> str:
        with Client(several.url) as client:
            environment = client.environments.get("yard")
            with environment.session(split="train", index=n % 3) as session:
                assert session.get_prompt()[0].text == f"Task {n % 3}"
                return "".join(session.call_tool("tell", {"text": str(i)}).text for i in range(2))

    async def async_episode(client: AsyncClient, n: int) -> str:
        async with client.environments.get("yard").session(split="train", index=n % 3) as session:
            return "".join([(await session.call_tool("tell", {"text": str(i)})).text for i in range(2)])

    with ThreadPoolExecutor(8) as pool:
        told = [asyncio.wrap_future(pool.submit(episode, n)) for n in range(24)]
        async with AsyncClient(several.url) as client:
            more = await asyncio.gather(*(async_episode(client, n) for n in range(60)))
        assert set(more) | set(await asyncio.gather(*told)) == {"00 1"}


async def test_an_answer_is_the_same_whichever_gateway_gives_it(several):
    sid = f"same-{uuid.uuid4()}"
    owner = several.owner(sid)
    async with at(several, owner) as near, at(several, (owner + 1) % COUNT) as far:
        await near.open(sid)
        answers = []
        for wire in (near, far):
            called = await wire.post("/yard/call", headers=H(sid), json=call_body("large", {"size": 300_000}))
            refused = await wire.post("/yard/call", headers=H(sid), content=b"{")
            large = await wire.post("/yard/call", headers=H(sid), content=b"x" * (17 * 2**20))
            unknown = await wire.get("/yard/nothing", headers=H(sid))
            head = await wire.head("/yard/prompt", headers=H(sid))
            gone = [one for one in (called, refused, large, unknown, head) if one.headers.pop("date")]
            answers.append([(one.status_code, sorted(one.headers.items()), len(one.content)) for one in gone])
            assert Answer.of(called).text == "x" * 300_000
        assert answers[0] == answers[1]
        assert [status for status, _, _ in answers[0]] == [200, 422, 413, 404, 200]
        await far.end(sid)


async def test_events_come_while_a_call_runs_elsewhere(several):
    sid = f"events-{uuid.uuid4()}"
    async with at(several, (several.owner(sid) + 1) % COUNT) as far:
        await far.open(sid)
        async with far.follow(sid, "wait", {"key": sid}, env="yard") as stream:
            named = await stream.event()
            assert named.name == "task_id"
            asking = asyncio.ensure_future(stream.rest())
            await until(lambda: len(stream.pings) >= 2)
            assert not asking.done()
            several.go(sid)
            assert "came 1 times" in (await asking)[-1].data


async def test_who_hangs_up_elsewhere_finds_the_call_again(several):
    sid = f"again-{uuid.uuid4()}"
    async with at(several, several.owner(sid)) as near:
        await near.open(sid)
        elsewhere = at(several, (several.owner(sid) + 1) % COUNT)
        async with elsewhere as far, far.follow(sid, "wait", {"key": sid}, env="yard") as stream:
            name = (await stream.event()).data
        several.go(sid)
        assert (await near.call(sid, "wait", {"key": sid}, env="yard", task_id=name)).text == f"{sid} came 1 times"
        assert several.came(sid) == 1


async def test_a_stream_has_the_headers_of_one(several):
    sid = f"headers-{uuid.uuid4()}"
    async with at(several, (several.owner(sid) + 1) % COUNT) as far:
        await far.open(sid)
        body = call_body("wait", {"key": sid})
        several.go(sid)
        answer = await far.post("/yard/call", headers=H(sid), json=body)
        for name, value in SSE_HEADERS.items():
            assert answer.headers[name] == value
        assert len(answer.headers.get_list("date")) == 1


async def test_many_calls_over_one_line_keep_apart(several):
    """Large and small, quick and slow, all at once and between the same two gateways."""
    ids = [sid for sid in (f"line-{n}" for n in range(300)) if several.owner(sid) == 1][:40]

    async def one(wire: Wire, sid: str, n: int) -> None:
        await wire.open(sid)
        for size in (1, 200_000 + n, 10 + n):
            assert len((await wire.call(sid, "large", {"size": size}, env="yard")).text) == size
        assert (await wire.call(sid, "plain", {"text": sid}, env="yard")).text == sid
        await wire.end(sid)

    async with AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(at(several, 0)) for _ in range(8)]
        await asyncio.gather(*(one(wires[n % 8], sid, n) for n, sid in enumerate(ids)))


async def test_a_request_that_breaks_off_is_passed_on_to_nobody(several):
    sid = f"half-{uuid.uuid4()}"
    async with at(several, several.owner(sid)) as near:
        await near.open(sid)
        body = b'{"name":"tell","input":{"text":"never"}}'
        for _ in range(10):
            with connect(several.url) as sock:
                request = request_bytes("POST", "/yard/call", H(sid), body)
                sock.sendall(request[:-5])
        assert (await near.call(sid, "tell", {"text": "once"}, env="yard")).text == "once"


async def test_requests_for_no_session_are_answered_by_all(several):
    for number in range(COUNT):
        async with at(several, number) as wire:
            for path in ("/health", "/list_environments", "/yard/tools", "/yard/splits"):
                assert (await wire.get(path)).status_code == 200
    answer = talk(several.url, request_bytes("GET", "/health"))
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")


async def test_what_they_count_is_told_by_any_of_them_for_all(several):
    ids = [f"counted-{n}" for n in range(30)]
    for sid in ids:
        async with Wire(several.url) as wire:
            await wire.open(sid)
    text = (await fresh(several, "GET", "/metrics")).text
    lines = [line for line in text.splitlines() if line.startswith("toolyard_sessions{") and 'state="ready"' in line]
    told = {line.split('gateway="')[1][0]: float(line.rpartition(" ")[2]) for line in lines}
    assert set(told) == set(map(str, range(COUNT)))
    assert sum(told.values()) >= len(ids)
    assert text.count("# TYPE toolyard_sessions gauge") == 1
    families = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(families) == len(set(families))
    for sid in ids:
        assert (await fresh(several, "POST", "/delete", headers=H(sid))).status_code == 200
