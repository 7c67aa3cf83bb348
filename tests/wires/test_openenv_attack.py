"""Hostile and careless clients of OpenEnv's WebSocket, and that they cost the others nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from urllib.parse import urlsplit

import pytest

from benchmarks.sockets import frame
from tests.placement.test_sandboxes import first_processes
from tests.wires.openenv_wire import Closed, Error, Player
from tests.wires.wire import H, Wire, until
from toolyard import Environment, ToolOutput, tool
from toolyard.sandboxes import open_sandbox, tool_output
from toolyard.testing import Running, running

pytestmark = pytest.mark.anyio

BASE = "/openenv/prey"
WS = f"{BASE}/ws"
BUILDING = "/openenv/building"
TEXT, CLOSE, PING, PONG = 1, 8, 9, 10
FIN = 128


class Gates:
    """Places where an environment waits for its test, and how often it came there."""

    def __init__(self) -> None:
        self.reached: dict[str, int] = {}
        self.open = threading.Event()

    async def stop(self, at: str) -> None:
        self.reached[at] = self.reached.get(at, 0) + 1
        while not self.open.is_set():
            await asyncio.sleep(0.01)


gates = Gates()
torn: list[str] = []
answered: list[int] = []


class Prey(Environment):
    """Stops where its task says."""

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{"name": f"{n}"} for n in range(10)]

    async def setup(self):
        await self.stop("setup")

    async def get_prompt(self):
        await self.stop("prompt")
        return self.task_spec.get("name", "")

    async def teardown(self):
        torn.append(self.task_spec.get("name", ""))
        await self.stop("teardown")

    async def stop(self, at):
        if self.task_spec.get("stop") == at:
            await gates.stop(self.task_spec["name"])

    @tool
    async def say(self, text: str) -> str:
        """The text."""
        return text

    @tool
    async def large(self, size: int) -> ToolOutput:
        """So much text."""
        answered.append(size)
        return ToolOutput(blocks=[{"type": "text", "text": "x" * size}], reward=0.0)

    @tool
    async def wait(self) -> str:
        """Until the test says so."""
        await gates.stop(self.task_spec["name"])
        return "passed"


class Building(Prey):
    """Its constructor takes a while."""

    def __init__(self, task_spec={}, secrets={}):
        super().__init__(task_spec, secrets)
        gates.reached["constructor"] = gates.reached.get("constructor", 0) + 1
        gates.open.wait(10)


class Boxed(Prey):
    """Runs programs in a sandbox of each session."""

    uses_sandbox = True

    async def setup(self):
        self.sandbox = await open_sandbox()

    async def teardown(self):
        await self.sandbox.close()

    @tool
    async def run(self, code: str) -> object:
        """Run Python."""
        return tool_output(await self.sandbox.exec(code))


@pytest.fixture(scope="module")
def world() -> Iterator[Running]:
    with running([Prey, Building], call_seconds=600) as server:
        yield server


@pytest.fixture(autouse=True)
def shut() -> Iterator[None]:
    gates.open.clear()
    gates.reached.clear()
    torn.clear()
    answered.clear()
    yield
    gates.open.set()


class Raw:
    """A socket with handmade frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, *frames: bytes) -> None:
        self.writer.write(b"".join(frames))

    async def hear(self) -> tuple[int, bytes]:
        first, length = await self.reader.readexactly(2)
        if length == 126:
            length = int.from_bytes(await self.reader.readexactly(2), "big")
        elif length == 127:
            length = int.from_bytes(await self.reader.readexactly(8), "big")
        return first & 15, await self.reader.readexactly(length)

    async def closed(self) -> int:
        """The code that the server closes with, whatever it sends before."""
        async with asyncio.timeout(20):
            while True:
                kind, said = await self.hear()
                if kind == CLOSE:
                    return int.from_bytes(said[:2], "big")


def head(path: str = WS, **more: str) -> bytes:
    lines = {
        "Host": "127.0.0.1",
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    } | {name.replace("_", "-"): value for name, value in more.items()}
    return "\r\n".join([f"GET {path} HTTP/1.1", *(f"{n}: {v}" for n, v in lines.items() if v), "", ""]).encode()


@asynccontextmanager
async def connection(server: Running) -> AsyncIterator[Raw]:
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(server.url).port, limit=2**26)
    try:
        yield Raw(reader, writer)
    finally:
        writer.transport.abort()


@asynccontextmanager
async def opened(server: Running, path: str = WS) -> AsyncIterator[Raw]:
    async with connection(server) as raw:
        raw.writer.write(head(path))
        assert (await raw.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        yield raw


def message(kind: str, **data: object) -> bytes:
    return frame(json.dumps({"type": kind, **({"data": data} if data or kind == "reset" else {})}).encode())


def call(tool: str, **arguments: object) -> bytes:
    return message("step", type="call_tool", tool_name=tool, arguments=arguments)


def sessions(server: Running) -> int:
    return len(server.server.runtime.sessions)


# Frames.


async def test_a_message_of_endless_empty_pieces_ends_the_socket(world):
    async with opened(world) as raw:
        raw.send(bytes([TEXT, 128]) + bytes(4))
        raw.send(*[bytes([0, 128]) + bytes(4)] * 20_000)
        assert await raw.closed() == 1009
    async with Player(world.url, WS) as player:
        await player.reset()


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        (frame(b'{"type": "state\xff"}'), 1007),
        (frame(b"\xe2\x82"), 1007),
        (bytes([FIN | TEXT, 2]) + b"{}", 1002),  # without a mask
        (bytes([FIN | 64 | TEXT, 128]) + bytes(4), 1002),  # compressed, without agreement
        (bytes([FIN | 3, 128]) + bytes(4), 1002),  # an unknown opcode
        (bytes([FIN, 128]) + bytes(4), 1002),  # continues no message
        (bytes([PING, 128]) + bytes(4), 1002),  # a control frame in pieces
        (frame(b"x" * 126, PING), 1002),
        (bytes([FIN | TEXT, 255]) + (2**62).to_bytes(8, "big") + bytes(4), 1009),
        (bytes([FIN | TEXT, 255]) + b"\xff" * 8 + bytes(4), 1002),
    ],
)
async def test_frames_that_are_none_end_the_socket_and_its_session_and_fill_no_log(world, frames, code, caplog):
    async with opened(world) as raw:
        raw.send(message("reset"))
        await raw.hear()
        assert sessions(world) == 1
        raw.send(frames)
        assert await raw.closed() in (code, 1009)
        await until(lambda: sessions(world) == 0)
    assert "Traceback" not in caplog.text
    assert not [record for record in caplog.records if record.exc_info]


async def test_pings_of_a_client_that_does_not_read_pile_up_nothing(world):
    async with opened(world) as raw:
        raw.writer.transport.pause_reading()
        pings = frame(b"x" * 125, PING) * 1000
        for _ in range(200):
            raw.send(pings)
            await asyncio.sleep(0)
        deadline = time.monotonic() + 20
        while raw.writer.transport.get_write_buffer_size() and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        (socket,) = [one for one in world.server._uvicorn.server_state.connections if hasattr(one, "frames")]
        assert socket.transport.get_write_buffer_size() < 2**20
        raw.writer.transport.resume_reading()
        raw.send(message("state"))
        while (await raw.hear())[0] != TEXT:
            pass


async def test_a_client_that_leaves_in_the_moment_in_which_the_server_stops_does_not_keep_it_from_that(world):
    async with opened(world) as raw:
        (socket,) = [one for one in world.server._uvicorn.server_state.connections if hasattr(one, "frames")]
        ended: Future[int] = Future()

        def leaves() -> None:
            try:
                socket.data_received(frame((1000).to_bytes(2), CLOSE))
                socket.shutdown()  # before the server hears that the connection is lost
                ended.set_result(socket.conn.close_sent.code)
            except Exception as error:
                ended.set_exception(error)

        socket.loop.call_soon_threadsafe(leaves)
        assert await asyncio.wrap_future(ended) == 1000
        assert (await raw.hear())[0] == CLOSE


async def test_pings_behind_a_long_answer_are_answered_too(world):
    async with opened(world) as raw:
        raw.writer.transport.pause_reading()
        raw.send(message("reset"), call("large", size=20 * 2**20))
        await until(lambda: answered)
        raw.send(*[frame(b"still there?", PING)] * 3)
        await asyncio.sleep(0.3)
        raw.writer.transport.resume_reading()
        assert [(await raw.hear())[0] for _ in range(5)] == [TEXT, TEXT, PONG, PONG, PONG]


async def test_messages_that_have_piled_up_leave_others_their_turn(world):
    async with opened(world) as raw, Player(world.url, WS) as other:
        await other.state()
        raw.send(message("reset"), *[call("say", text="x" * 100)] * 20_000)
        reading = asyncio.ensure_future(raw.reader.read(2**20))
        longest = 0.0
        for _ in range(50):
            began = time.monotonic()
            await other.state()
            longest = max(longest, time.monotonic() - began)
        assert longest < 1
        await reading


async def test_answers_that_nobody_reads_pile_up_no_further(world):
    async with opened(world) as raw:
        raw.writer.transport.pause_reading()
        raw.send(message("reset"), *[call("large", size=2**20)] * 200)
        await until(lambda: sessions(world) == 1)
        seen = -1
        while seen != len(answered):  # until no more answers come
            seen = len(answered)
            await asyncio.sleep(0.3)
        assert 0 < seen < 100
    await until(lambda: sessions(world) == 0)


async def test_a_client_that_reads_nothing_of_its_answer_loses_its_session():
    with running([Prey], unread_seconds=0.5) as server:
        async with opened(server) as raw:
            raw.writer.transport.pause_reading()
            raw.send(message("reset"), *[call("large", size=2**20)] * 20)
            await until(lambda: sessions(server) == 1)
            await until(lambda: sessions(server) == 0)


async def test_a_message_that_stalls_ends_the_socket_and_its_session():
    with running([Prey], body_seconds=0.4) as server:
        async with opened(server) as raw, opened(server) as idle:
            for socket in (raw, idle):
                socket.send(message("reset"))
                await socket.hear()
            whole = call("say", text="x" * 50_000)
            raw.send(whole[:25_000])
            assert await raw.closed() == 1013
            await until(lambda: sessions(server) == 1)
            idle.send(message("state"))
            assert (await idle.hear())[0] == TEXT


async def test_long_messages_that_come_at_once_wait_for_memory_and_are_all_answered():
    with running([Prey], bodies_bytes=2**20) as server:

        async def play(number: int) -> str:
            async with Player(server.url, WS) as player:
                await player.reset()
                said = str(number) * 2**20
                return str((await player.step("say", text=said)).observation["result"]["data"])

        answers = await asyncio.gather(*(play(number) for number in range(8)))
        assert answers == [str(number) * 2**20 for number in range(8)]


async def test_sockets_that_say_nothing_make_room_and_those_that_play_stay():
    with running([Prey], max_connections=8) as server:
        async with AsyncExitStack() as stack:
            playing = [await stack.enter_async_context(opened(server)) for _ in range(3)]
            for raw in playing:
                raw.send(message("reset"))
                await raw.hear()
            quiet = [await stack.enter_async_context(opened(server)) for _ in range(5)]
            others = [await stack.enter_async_context(opened(server)) for _ in range(5)]
            for raw in quiet:
                assert await raw.closed() == 1013
            for raw in (*playing, *others):
                raw.send(message("state"))
                assert (await raw.hear())[0] == TEXT
            assert sessions(server) == 3
        await until(lambda: sessions(server) == 0)


# Handshakes.


@pytest.mark.parametrize(
    "sent",
    [
        head(Sec_WebSocket_Key=""),
        head(Sec_WebSocket_Key="short"),
        head(Sec_WebSocket_Version="12"),
        head(Sec_WebSocket_Version=""),
        head(Connection="close"),
        head().replace(b"/prey/", b"/pr\xff\xfe/"),
        head("/openenv/%ff%fe/ws"),
        head("/openenv//ws"),
        head("/openenv/prey/ws/.."),
        head(f"{WS}?session_id=" + "x" * 5000),
        head(f"{WS}?session_id=%ff&session_id=%00"),
        head(Content_Length="5") + b"hello",
        head(Transfer_Encoding="chunked") + b"0\r\n\r\n",
        head().replace(b"GET", b"POST"),
        head().replace(b"HTTP/1.1", b"HTTP/1.0"),
        head(**{f"X_{n}": "y" for n in range(200)}),
        head(X_Long="y" * 9000),
    ],
)
async def test_a_handshake_that_is_none_opens_no_session_and_the_server_goes_on(world, sent, caplog):
    async with connection(world) as raw:
        raw.writer.write(sent)
        raw.writer.write(message("reset"))
        answer = b""
        with suppress(TimeoutError, ConnectionResetError):  # a reset is an answer to what follows a refusal
            async with asyncio.timeout(0.4):
                while read := await raw.reader.read(2**16):
                    answer += read
        assert b'"done"' not in answer
    async with Player(world.url, WS) as player:
        await player.state()
        assert sessions(world) == 0
    assert not [record for record in caplog.records if record.exc_info]


async def test_a_message_behind_the_handshake_is_not_lost(world):
    async with connection(world) as raw:
        raw.writer.write(head() + message("reset") + call("say", text="a"))
        assert (await raw.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        assert [json.loads((await raw.hear())[1])["type"] for _ in range(2)] == ["observation", "observation"]


async def test_many_sockets_that_come_and_go_leave_nothing(world):
    async def come_and_go(number: int) -> None:
        async with connection(world) as raw:
            raw.writer.write(head() + (message("reset") if number % 2 else b""))
            if number % 3:
                await raw.reader.read(100)

    for batch in range(10):
        await asyncio.gather(*(come_and_go(number) for number in range(batch, batch + 100)))
    connections = world.server._uvicorn.server_state.connections
    await until(lambda: sessions(world) == 0 and not connections)


@pytest.mark.parametrize("path", ["/ws", "/openenv/nobody/ws", "/openenv/prey/wss", WS])
async def test_a_handshake_that_is_refused_is_no_error_of_the_server(path, caplog):
    with running([Prey], api_key="a key") as server:
        for key in ("wrong", "a key") if path != WS else ("wrong",):
            async with connection(server) as raw:
                raw.writer.write(head(path, X_API_Key=key))
                status = (await raw.reader.readuntil(b"\r\n\r\n")).split()[1]
                assert status == (b"404" if key == "a key" else b"401")
    assert not [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]


async def test_a_message_that_is_wrong_is_told_what_is_wrong_with_it(world):
    async with Player(world.url, WS) as player:
        told = await player.refused({"type": "step", "data": {"tool": "say", "arguments": {}}})
        assert told.message == "Invalid message: call_tool.tool_name: Field required"


# JSON.


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"type": ' * 50_000,
        '{"type": "step", "data": ' + '{"a": ' * 150 + "1" + "}" * 151,
        '{"type": "reset", "data": {"index": ' + "9" * 200_000 + ', "split": "train"}}',
        '{"type": "reset", "data": {"index": 1e400, "split": "train"}}',
        '{"type": "reset", "data": {"index": -99, "split": "train"}}',
        '{"type": "reset", "data": {"index": true, "split": "train", "secrets": [1]}}',
        '{"type": "reset", "data": {"index": 1.5, "split": "train"}}',
        '{"type": "reset", "data": {"split": "\\ud800", "index": 0}}',
        '{"type": "reset", "data": {"task_spec": {}, "split": "train", "index": 0}}',
        '{"type": ["' + "x" * 100_000 + '"]}',
        '{"type": "\\ud800"}',
        '{"type": "step", "data": {"tool_name": "\\ud800", "arguments": {}}, "' + "k" * 100_000 + '": 1}',
        json.dumps({"type": "step", "data": dict.fromkeys(map(str, range(20_000)), 0)}),
        '{"type": "mcp", "data": [1]}',
    ],
    ids=lambda text: text[:60],
)
async def test_json_that_is_a_trap_is_an_error_soon_and_the_socket_lives(world, text):
    async with Player(world.url, WS) as player:
        await player.state()
        began = time.monotonic()
        refused = await player.refused(text)
        assert time.monotonic() - began < 2
        assert refused.code in ("INVALID_JSON", "VALIDATION_ERROR", "UNKNOWN_TYPE", "EXECUTION_ERROR")
        assert len(refused.message) < 1000
        assert (await player.state())["episode_id"] is None


async def test_half_of_a_character_comes_back_as_something_that_is_json(world):
    async with Player(world.url, WS) as player:
        await player.reset()
        seen = await player.step("say", text="a\ud800b")
        assert seen.observation["result"]["data"].startswith("a")
        assert (await player.step("say", text="\x00\x1b[2J")).observation["result"]["data"] == "\x00\x1b[2J"
        assert (await player.refused({"type": "reset", "data": {"episode_id": "\ud800"}})).code == "VALIDATION_ERROR"


@pytest.mark.parametrize("request_id", ["NaN", "1e400", "[1]", '{"a": 1}', "true", "null", '"\\ud800"'])
async def test_an_id_of_json_rpc_that_is_none_makes_no_answer_that_is_none(world, request_id):
    async with Wire(world.url) as http:
        body = '{"jsonrpc": "2.0", "method": "tools/list", "id": ' + request_id + "}"
        answer = await http.post(f"{BASE}/mcp", content=body.encode(), headers={"content-type": "application/json"})
        assert answer.status_code == 200
        assert "tools" in json.loads(answer.content, parse_constant=pytest.fail)["result"]


# Leaving, at any time.


@pytest.mark.parametrize("where", ["setup", "prompt"])
async def test_a_client_that_leaves_in_the_middle_of_a_reset_leaves_no_session(world, where):
    async with opened(world) as raw:
        raw.send(message("reset", task_spec={"name": where, "stop": where}))
        await until(lambda: gates.reached.get(where))
        assert sessions(world) == 1
    await until(lambda: sessions(world) == 0)
    await until(lambda: torn == [where])


async def test_a_client_that_leaves_while_its_constructor_runs_leaves_no_session(world):
    async with opened(world, f"{BUILDING}/ws") as raw:
        raw.send(message("reset"))
        await until(lambda: gates.reached.get("constructor"))
    gates.open.set()
    await until(lambda: sessions(world) == 0)


async def test_a_client_that_leaves_during_a_call_ends_it(world):
    async with opened(world) as raw:
        raw.send(message("reset", task_spec={"name": "call"}), call("wait"))
        await until(lambda: gates.reached.get("call"))
    await until(lambda: sessions(world) == 0)
    assert torn == ["call"]


async def test_a_client_that_leaves_during_a_call_is_noticed_behind_further_messages(world):
    async with opened(world) as raw:
        raw.send(message("reset", task_spec={"name": "ahead"}), call("wait"), *[message("state")] * 5)
        await until(lambda: gates.reached.get("ahead"))
    await until(lambda: sessions(world) == 0)
    assert torn == ["ahead"]


async def test_messages_that_came_during_a_call_are_answered_in_order(world):
    async with opened(world) as raw:
        raw.send(message("reset", task_spec={"name": "order"}), call("wait"))
        raw.send(*[call("say", text=str(number)) for number in range(100)])
        await until(lambda: gates.reached.get("order"))
        gates.open.set()
        texts = [json.loads((await raw.hear())[1])["data"]["observation"] for _ in range(102)]
        assert [text["result"]["data"] for text in texts[1:]] == ["passed", *map(str, range(100))]


async def test_pings_are_answered_while_a_call_runs_and_further_messages_wait(world):
    async with Player(world.url, WS, ping_interval=0.1, ping_timeout=0.4) as player:
        await player.reset(task_spec={"name": "pinged"})
        calling = asyncio.ensure_future(player.step("wait"))
        await until(lambda: gates.reached.get("pinged"))
        for _ in range(5):
            await player.say(json.dumps({"type": "state"}))
        await asyncio.sleep(1)
        gates.open.set()
        assert (await calling).observation["result"]["data"] == "passed"
        assert [(await player.hear())["type"] for _ in range(5)] == ["state"] * 5


async def test_a_client_that_leaves_during_a_teardown_lets_it_end_once(world):
    async with opened(world) as raw:
        raw.send(message("reset", task_spec={"name": "down", "stop": "teardown"}), message("reset"))
        await until(lambda: gates.reached.get("down"))
    gates.open.set()
    await until(lambda: sessions(world) == 0)
    assert torn.count("down") == 1


async def test_a_storm_of_resets_leaves_one_session_and_then_none(world):
    async with opened(world) as raw:
        raw.send(*[message("reset", split="train", index=n % 10) for n in range(500)])
        for n in range(500):
            kind, said = await raw.hear()
            assert json.loads(said)["data"]["observation"]["prompt"] == str(n % 10), kind
        assert sessions(world) == 1
        raw.send(*[message("reset")] * 500)
    await until(lambda: sessions(world) == 0)


@pytest.mark.thorough
async def test_clients_that_leave_while_their_programs_run_leave_no_sandbox():
    with running([Boxed], sandboxes_ready=0) as server:
        async with AsyncExitStack() as stack:
            for number in range(8):
                raw = await stack.enter_async_context(opened(server, "/openenv/boxed/ws"))
                raw.send(message("reset"), *[message("reset")] * (number % 3))
                raw.send(call("run", code="print(1, flush=True)"), call("run", code="while True: pass"))
                if number % 2:
                    while b'"result"' not in (await raw.hear())[1]:
                        pass
            assert first_processes()
        await until(lambda: sessions(server) == 0)
        await until(lambda: not first_processes())


async def test_a_socket_is_closed_when_the_session_of_its_client_is_torn_down(world):
    async with opened(world) as raw:
        raw.send(message("reset", task_spec={"name": "down", "stop": "teardown"}), message("close"))
        await raw.hear()
        closed = asyncio.ensure_future(raw.closed())
        await until(lambda: gates.reached.get("down"))
        assert not closed.done()
        gates.open.set()
        assert await closed == 1000
        assert sessions(world) == 0


# Seats.


async def created(http: Wire, base: str = BASE) -> str:
    body = {"jsonrpc": "2.0", "id": 1, "method": "openenv/session/create"}
    seat: str = (await http.post(f"{base}/mcp", json=body)).json()["result"]["session_id"]
    return seat


def asked(seat: str, method: str, **params: object) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"session_id": seat, **params}}


async def test_one_of_many_sockets_gets_a_seat(world):
    async with Wire(world.url) as http:
        seat = await created(http)
        players = [Player(world.url, f"{WS}?session_id={seat}") for _ in range(20)]

        async def attached(player: Player) -> bool:
            try:
                return bool(await player.reset())
            except (Error, Closed):
                return False

        assert sum(await asyncio.gather(*map(attached, players))) == 1
        assert sessions(world) == 1
        await asyncio.gather(*(player.close() for player in players))
        assert (await http.post(f"{BASE}/mcp", json=asked(seat, "openenv/session/close"))).json()["result"]["closed"]
    assert sessions(world) == 0


async def test_first_calls_that_come_at_once_open_one_session(world):
    gates.open.set()  # authors' constructors run in threads, so others may come in between
    async with Wire(world.url) as http:
        seat = await created(http, BUILDING)
        say = asked(seat, "tools/call", name="say", arguments={"text": "a"})
        answers = await asyncio.gather(*(http.post(f"{BUILDING}/mcp", json=say) for _ in range(20)))
        assert [answer.json()["result"]["data"] for answer in answers] == ["a"] * 20
        assert sessions(world) == 1
        await http.post(f"{BUILDING}/mcp", json=asked(seat, "openenv/session/close"))
    assert sessions(world) == 0


async def test_a_reset_and_calls_on_one_seat_at_once_leave_one_session(world):
    gates.open.set()  # authors' constructors run in threads, so others may come in between
    async with Wire(world.url) as http:
        seat = await created(http, BUILDING)
        say = asked(seat, "tools/call", name="say", arguments={"text": "a"})
        async with Player(world.url, f"{BUILDING}/ws?session_id={seat}") as player:
            await player.state()
            for _ in range(10):
                await asyncio.gather(player.reset(), *(http.post(f"{BUILDING}/mcp", json=say) for _ in range(5)))
                assert sessions(world) == 1
        await until_closed(http, seat)
    assert sessions(world) == 0


async def until_closed(http: Wire, seat: str) -> None:
    """The server releases a socket a moment after its client has closed it."""
    for _ in range(100):
        told = (await http.post(f"{BUILDING}/mcp", json=asked(seat, "openenv/session/close"))).json()
        if "result" in told:
            return
        await asyncio.sleep(0.02)
    raise AssertionError(told)


async def test_a_session_that_is_closed_while_it_is_opened_does_not_stay(world):
    async with Wire(world.url) as http:
        seat = await created(http, BUILDING)
        say = asked(seat, "tools/call", name="say", arguments={"text": "a"})
        calls = [asyncio.ensure_future(http.post(f"{BUILDING}/mcp", json=say)) for _ in range(3)]
        await until(lambda: gates.reached.get("constructor"))
        closing = asyncio.ensure_future(http.post(f"{BUILDING}/mcp", json=asked(seat, "openenv/session/close")))
        await asyncio.sleep(0.1)
        gates.open.set()
        assert (await closing).json()["result"]["closed"]
        await asyncio.gather(*calls)
        assert (sessions(world), gates.reached["constructor"]) == (0, 1)


async def test_a_seat_whose_session_its_trainer_has_ended_is_given_back():
    with running([Prey], idle_seconds=0.3, max_sessions=1) as server:
        async with Wire(server.url) as http:
            seat = await created(http)
            say = asked(seat, "tools/call", name="say", arguments={"text": "a"})
            await http.post(f"{BASE}/mcp", json=say)
            (sid,) = server.server.runtime.sessions
            await http.post("/delete", headers=H(sid))
            await asyncio.sleep(1)
            assert (await http.post(f"{BASE}/mcp", json=say)).json()["error"]["code"] == -32602
            assert await created(http)


async def test_a_page_with_a_foreign_origin_reaches_no_socket_with_and_without_a_key():
    for key in ("", "a key"):
        with running([Prey], api_key=key) as server:
            for path in (WS, f"{BASE}/mcp"):
                async with connection(server) as raw:
                    raw.writer.write(head(path, Origin="http://evil.example", X_API_Key=key) + message("reset"))
                    assert (await raw.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 403 ")
            assert sessions(server) == 0


# The operator.


async def test_a_server_that_stops_ends_sockets_wherever_they_are():
    with running([Prey], drain_seconds=1, teardown_seconds=1, call_seconds=600) as server:
        async with (
            opened(server) as idle,
            opened(server) as fresh,
            opened(server) as calling,
            opened(server) as setting_up,
        ):
            idle.send(message("reset", task_spec={"name": "idle"}))
            await idle.hear()
            calling.send(message("reset", task_spec={"name": "calling"}), call("wait"))
            setting_up.send(message("reset", task_spec={"name": "setting up", "stop": "setup"}))
            await until(lambda: len(gates.reached) == 2)
            began = time.monotonic()
            stopping = asyncio.ensure_future(asyncio.to_thread(server.server.stop))
            for raw in (idle, fresh, calling, setting_up):
                assert await raw.closed() == 1012
            await stopping
            assert time.monotonic() - began < 10
    assert sorted(torn) == ["calling", "idle", "setting up"]


class Dying(Prey):
    """Its process ends where its task says."""

    async def stop(self, at):
        if self.task_spec.get("stop") == at:
            os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("where", ["setup", "prompt", "teardown"])
async def test_a_process_that_dies_outside_of_calls_is_an_error_and_the_socket_lives(where):
    with running([Dying], placement="process") as server:
        async with Player(server.url, "/openenv/dying/ws") as player:
            deadly = {"type": "reset", "data": {"task_spec": {"name": where, "stop": where}}}
            if where == "teardown":
                await player.ask(deadly)
            else:
                assert (await player.refused(deadly)).code == "EXECUTION_ERROR"
            assert (await player.reset(split="train", index=1)).observation["prompt"] == "1"
            assert (await player.step("say", text="a")).observation["result"]["data"] == "a"
        await until(lambda: sessions(server) == 0)
