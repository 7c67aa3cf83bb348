"""What a hostile agent can send to the server: any bytes in any packets, and answers of any form.

The server must take each message as it is, exactly once, or end the conversation and say why. No exception may reach
the event loop, and nothing may stay in memory or stay open.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import fcntl
import gc
import json
import os
import socket
import termios
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
import uvloop
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from toolyard.core.errors import SandboxLost, ToolyardError
from toolyard.sandboxes.base import Entry, Executed, Finished, Limits, Report, Usage
from toolyard.sandboxes.native import wire
from toolyard.sandboxes.native.agent_client import AgentClient
from toolyard.sandboxes.native.cgroups import Strain
from toolyard.sandboxes.native.channel import Answer, Channel, loaded, pair
from toolyard.sandboxes.native.sandbox import NativeSandbox
from toolyard.sandboxes.native.watch import Ground

pytestmark = pytest.mark.thorough

PAYLOAD_MOST = 100_000
"""More than one packet holds."""

Work = Callable[[], Awaitable[None]]


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> Iterator[Callable[[Work], None]]:
    """Runs work in an event loop, and checks that it had no other effect."""
    gc.collect()  # otherwise files of earlier tests would be closed during the test
    with asyncio.Runner(loop_factory=request.param) as runner:
        trouble: list[object] = []
        runner.get_loop().set_exception_handler(lambda _, context: trouble.append(context))

        async def checked(work: Work) -> None:
            await asyncio.sleep(0)
            before = _open_files()
            async with asyncio.timeout(20):
                await work()
            await asyncio.sleep(0)
            assert asyncio.all_tasks() == {asyncio.current_task()}
            deadline = time.monotonic() + 5
            while left := _open_files() - before:
                assert time.monotonic() < deadline, left
                await asyncio.sleep(0.01)  # other threads of this process may briefly hold one

        def run(work: Work) -> None:
            runner.run(checked(work))
            assert not trouble, trouble

        yield run


def _open_files() -> set[tuple[str, str]]:
    """Open files by number and identity, so that a leaked file cannot pass for a closed one of the same number."""
    found = set()
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the descriptor that lists them
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
    return found


fuzzed = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


# ---- Packets


@dataclass(frozen=True, slots=True)
class Packet:
    data: bytes
    files: int = 0
    """How many file descriptors go with it."""

    def __repr__(self) -> str:
        return f"Packet({self.data[:200]!r} of {len(self.data)}, {self.files})"


def _dumped(header: Mapping[str, Any]) -> bytes:
    return json.dumps(header).encode()


@st.composite
def _messages(draw: st.DrawFn) -> list[bytes]:
    """Messages as the server expects them, perhaps with one fault."""
    payload = b"p" * draw(st.sampled_from((0, 0, 0, 1, 10, 65_536, 65_537, PAYLOAD_MOST, PAYLOAD_MOST + 1)))
    header: dict[str, Any] = draw(st.dictionaries(st.sampled_from(("ended", "code", "problem")), anything, max_size=2))
    if draw(st.booleans()):
        header["id"] = draw(st.integers(0, 4) | anything)
    header["size"] = draw(st.just(len(payload)) | st.integers(-2, PAYLOAD_MOST + 2) | anything)
    if draw(st.booleans()):  # encoded as the server does
        message = _dumped(header) + b"\0" * bool(payload) + payload
        return [message[at : at + wire.PIECE] for at in range(0, len(message), wire.PIECE)]
    pieces = [payload[at : at + wire.PIECE] for at in range(0, len(payload), wire.PIECE)]
    return [_dumped(header), *pieces]


_odd = st.sampled_from(
    (
        b"",
        b"{}",
        b"null",
        b"[" * 60_000,
        b'{"size":' * 8000,
        b"9" * 5000,
        b'{"size": 1e999}',
        b'{"size": -0.0, "id": 1}',
        b'{"size": true, "id": 1}',
        b'{"size": 0, "id": 1.0}',
        b'{"size": 0, "id": [1]}',
        b'{"size": 0, "size": 5}',
        b'{"size": 0, "id": 1}\0',
        b'{"size": 0, "id": 1}\0x',
        b'{"size": 2, "id": 1}\0\0\0',
        b'\0{"size": 0}',
        b"\xff\xfe{\x00}\x00",
        b'{"size": 0, "id": 1}' + b" " * 70_000,
        b"x" * 100_000,
    )
)
_packets = st.lists(
    st.binary(max_size=50).map(lambda data: [data])
    | st.dictionaries(st.text(max_size=5), anything, max_size=3).map(lambda header: [_dumped(header)])
    | _odd.map(lambda data: [data])
    | _messages()
    | _messages()
    | _messages(),
    max_size=6,
).flatmap(
    lambda groups: st.tuples(
        *(st.builds(Packet, st.just(data), st.sampled_from((0, 0, 0, 1, 6))) for group in groups for data in group)
    )
)


@dataclass(slots=True)
class Model:
    """A plain model of what packets should cause."""

    waiting: set[int]
    events: list[Mapping[str, Any]] = field(default_factory=list)
    answers: dict[int, tuple[Mapping[str, Any], bytes]] = field(default_factory=dict)
    closed: bool = False
    _header: Mapping[str, Any] | None = None
    _payload: bytes = b""

    def take(self, data: bytes) -> None:
        if not self.closed:
            try:
                self._take(data[: wire.HEADER_MOST])
            except (ValueError, KeyError, TypeError, RecursionError):
                self.closed = True

    def _take(self, data: bytes) -> None:
        if not data:
            raise ValueError("the end")
        if self._header is None:
            text, _, begun = data.partition(b"\0")
            header = loaded(text)
            if not 0 <= header["size"] <= PAYLOAD_MOST:
                raise ValueError("too much")
            self._header, self._payload = header, begun
        else:
            self._payload += data
        if len(self._payload) > self._header["size"]:
            raise ValueError("more than was said")
        if len(self._payload) == self._header["size"]:
            header, self._header = self._header, None
            if "id" not in header:
                self.events.append(header)
            elif header["id"] in self.waiting:
                self.waiting.discard(header["id"])
                self.answers[int(header["id"])] = (header, self._payload)
            else:
                raise ValueError("nobody asked")


async def _say(peer: socket.socket, packets: Sequence[Packet]) -> None:
    """Send the packets while the server reads. Stop when the server stops reading."""
    null = os.open(os.devnull, os.O_RDONLY)
    try:
        for packet in packets:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [null] * packet.files))]
            while True:
                try:
                    peer.sendmsg([packet.data], rights if packet.files else [])
                except BlockingIOError:
                    await asyncio.sleep(0)
                except (BrokenPipeError, ConnectionResetError):
                    return
                else:
                    break
    finally:
        os.close(null)


async def _until_read(peer: socket.socket, channel: Channel) -> None:
    """Wait until the server has read all packets, or has hung up."""
    queued = array.array("i", [0])
    while not channel.lost:
        await asyncio.sleep(0)
        fcntl.ioctl(peer, termios.TIOCOUTQ, queued)
        if not queued[0]:
            break
    for _ in range(3):
        await asyncio.sleep(0)


@pytest.mark.parametrize("trusted", [False, True], ids=["an agent", "a helper"])
def test_any_packets_are_taken_once_or_end_the_conversation(loop: Callable[[Work], None], trusted: bool) -> None:
    @fuzzed
    @given(_packets)
    def check(packets: Sequence[Packet]) -> None:
        loop(lambda: _converse(packets, trusted=trusted))

    check()


async def _converse(packets: Sequence[Packet], *, trusted: bool) -> None:
    ours, peer = pair()
    events: list[Mapping[str, Any]] = []
    reasons: list[str] = []
    with peer:
        peer.setblocking(False)
        channel = Channel(
            ours, on_event=events.append, on_lost=reasons.append, payload_most=PAYLOAD_MOST, trusted=trusted
        )
        asked = {number: asyncio.ensure_future(channel.ask("do", number=number)) for number in (1, 2, 3)}
        await asyncio.sleep(0)
        model = Model(set(asked))
        for packet in packets:
            model.take(packet.data)
        await _say(peer, packets)
        await _until_read(peer, channel)
        assert bool(channel.lost) == model.closed
        assert reasons == ([channel.lost] if model.closed else [])
        assert json.dumps(events) == json.dumps(model.events)
        answered = {number: work.result() for number, work in asked.items() if work.done() and not work.exception()}
        assert {number: _said(answer) for number, answer in answered.items()} == {
            number: _said(Answer(*told)) for number, told in model.answers.items()
        }
        for answer in answered.values():
            assert trusted or not answer.fds
            for fd in answer.fds:
                os.close(fd)
        channel.close()
        for number, work in asked.items():
            if number not in answered:
                with pytest.raises(SandboxLost):
                    await work


def _said(answer: Answer) -> str:
    return json.dumps([answer.header, answer.payload.decode()])


def test_a_guest_that_talks_without_end_costs_no_more_than_one_message(loop: Callable[[Work], None]) -> None:
    async def flood() -> None:
        ours, peer = pair()
        channel = Channel(ours, on_event=lambda event: None, payload_most=PAYLOAD_MOST)
        with peer:
            peer.setblocking(False)
            small = _dumped({"size": 0, "text": "x" * 50_000})
            large = [_dumped({"size": PAYLOAD_MOST}), b"x" * wire.PIECE, b"x" * (PAYLOAD_MOST - wire.PIECE)]
            gc.collect()
            tracemalloc.start()
            try:
                await _say(peer, [Packet(data) for data in [small, *large] * 500])
                await _until_read(peer, channel)
                _, peak = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
            assert not channel.lost
            assert peak < 4 * 2**20, f"{peak} bytes for {500 * (50_000 + PAYLOAD_MOST)}"
        channel.close()

    loop(flood)


# ---- What the server sends


@dataclass(frozen=True, slots=True)
class Question:
    size: int
    turns: int | None
    """After how many turns of the loop the request is cancelled."""


_questions = st.lists(
    st.builds(
        Question,
        st.sampled_from((0, 1, 65_536, 65_537, 400_000, 1_000_000)),
        st.none() | st.none() | st.integers(0, 12),
    ),
    min_size=1,
    max_size=6,
)


def test_questions_that_are_given_up_leave_the_others_whole(loop: Callable[[Work], None]) -> None:
    @fuzzed
    @given(_questions, st.integers(0, 5), st.booleans())
    def check(questions: Sequence[Question], slowness: int, ends_early: bool) -> None:
        loop(lambda: _ask(questions, slowness, ends_early=ends_early))

    check()


async def _ask(questions: Sequence[Question], slowness: int, *, ends_early: bool) -> None:
    """Send many requests at once to a peer that reads slowly, and perhaps leaves half-way."""
    ours, peer = pair()
    peer.setblocking(False)
    channel = Channel(ours, on_event=lambda event: None)
    heard: list[int] = []
    asked = [
        asyncio.ensure_future(channel.ask("do", payload=b"%d" % (at % 10) * question.size))
        for at, question in enumerate(questions)
    ]
    answering = asyncio.ensure_future(_answer(peer, slowness, heard, len(questions) // 2 if ends_early else 100))
    patience = max((question.turns or 0 for question in questions), default=0)
    for turn in range(patience + 1):
        for question, work in zip(questions, asked, strict=True):
            if question.turns == turn:
                work.cancel()
        await asyncio.sleep(0)
    kept = [work for question, work in zip(questions, asked, strict=True) if question.turns is None]
    came = await asyncio.gather(*kept, return_exceptions=True)
    if not ends_early:
        assert all(isinstance(answer, Answer) for answer in came), came
    assert all(isinstance(answer, Answer | SandboxLost) for answer in came), came
    assert len(heard) == len(set(heard))
    channel.close()
    answering.cancel()
    await asyncio.gather(answering, *asked, return_exceptions=True)
    peer.close()


async def _answer(peer: socket.socket, slowness: int, heard: list[int], most: int) -> None:
    """Take messages packet by packet, check that each is whole, and answer them."""
    event_loop = asyncio.get_running_loop()
    while len(heard) < most:
        text, _, payload = (await event_loop.sock_recv(peer, wire.HEADER_MOST)).partition(b"\0")
        header = json.loads(text)
        while len(payload) < header["size"]:
            for _ in range(slowness):
                await asyncio.sleep(0)
            payload += await event_loop.sock_recv(peer, wire.PIECE)
        assert len(payload) == header["size"]
        assert len(set(payload)) <= 1, "two messages in one"
        heard.append(header["id"])
        with contextlib.suppress(OSError):
            await event_loop.sock_sendall(peer, _dumped({"id": header["id"], "size": 0}))
    peer.close()


def test_who_hangs_up_does_not_keep_anybody_waiting(loop: Callable[[Work], None]) -> None:
    async def hang_up() -> None:
        ours, peer = pair()
        with peer:
            channel = Channel(ours, on_event=lambda event: None)
            asked = [asyncio.ensure_future(channel.ask("do", payload=b"x" * 4_000_000)) for _ in range(3)]
            for _ in range(5):
                await asyncio.sleep(0)
            channel.close("enough")
            for work in asked:
                with pytest.raises(SandboxLost, match="enough"):
                    async with asyncio.timeout(5):
                        await work

    loop(hang_up)


# ---- A hostile agent


_ending = st.dictionaries(
    st.sampled_from(("code", "cpu", "peak", "wall")), anything, max_size=4
) | st.fixed_dictionaries(
    {"code": st.integers(-70, 300), "cpu": st.floats(0, 10), "peak": st.integers(0, 2**40), "wall": st.floats(0, 10)}
)
_answer_header = st.dictionaries(st.sampled_from(("problem", "errno", "cpu", "memory", "other")), anything, max_size=3)
_answer_payload = (
    st.binary(max_size=30)
    | anything.map(lambda value: json.dumps(value).encode())
    | st.lists(st.tuples(anything, anything, anything), max_size=3).map(lambda rows: json.dumps(rows).encode())
)


@dataclass(frozen=True, slots=True)
class Role:
    """How the hostile agent answers, over and over."""

    answers: Sequence[tuple[Mapping[str, Any], bytes]]
    endings: Sequence[Mapping[str, Any]]
    talks: bool
    """Whether it writes to the programs' output."""


_roles = st.builds(
    Role,
    st.lists(
        st.tuples(st.just({}) | st.just({}) | _answer_header, st.just(b"") | _answer_payload), min_size=1, max_size=5
    ),
    st.lists(_ending, min_size=1, max_size=3),
    st.booleans(),
)


def test_a_hostile_agent_cannot_make_the_server_say_nonsense(loop: Callable[[Work], None]) -> None:
    @fuzzed
    @given(_roles)
    def check(role: Role) -> None:
        loop(lambda: _be_deceived(role))

    check()


class Unstrained:
    """A control group without shortages."""

    def glance(self) -> Strain:
        return Strain()

    def strain(self, *, late: bool = False) -> Strain:
        return Strain()

    async def ran_out(self, before: Strain) -> str:
        return ""

    def is_full(self) -> bool:
        return False

    is_out_of_memory = is_full


async def _be_deceived(role: Role) -> None:
    ours, peer = pair()
    peer.setblocking(False)
    client = AgentClient(ours, owner=-1)
    report = Report("native", "L3", {})
    ground = Ground(lambda: report, owner=-1, memory_enforced=True, group=Unstrained(), check_room=lambda _: None)

    async def end() -> None:
        client.close()

    async def another(limits: Limits) -> NativeSandbox:
        raise AssertionError("nobody asks for a grader")

    playing = asyncio.ensure_future(_play(peer, role))
    sandbox = NativeSandbox(client, Limits(wall_seconds=0.05, cpu_seconds=0.01), ground, end=end, another=another)
    checks: Mapping[str, Callable[[Any], bool]] = {
        "run": _is_finished,
        "shell": _is_finished,
        "exec": _is_executed,
        "read": lambda came: isinstance(came, bytes),
        "list": lambda came: all(_is_entry(entry) for entry in came),
        "write": lambda came: came is None,
    }
    arguments: Mapping[str, tuple[Any, ...]] = {"run": (["true"],), "write": ("x", b"y")}
    try:
        for name, is_sound in checks.items():
            try:
                came = await getattr(sandbox, name)(*arguments.get(name, ("x",)))
            except ToolyardError:
                continue
            assert is_sound(came), f"{name}: {came}"
    finally:
        await sandbox.close()
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)
        peer.close()


async def _play(peer: socket.socket, role: Role) -> None:
    """Answer each request with the next answer, and end programs when they are killed."""
    event_loop = asyncio.get_running_loop()
    turn = 0
    with contextlib.suppress(OSError, ValueError):
        while True:
            readable = asyncio.Event()
            event_loop.add_reader(peer, readable.set)
            try:
                await readable.wait()
            finally:
                event_loop.remove_reader(peer)
            first, fds, _, _ = socket.recv_fds(peer, wire.HEADER_MOST, 8)
            if not first:
                return
            text, _, begun = first.partition(b"\0")
            request = json.loads(text)
            left = request["size"] - len(begun)
            while left > 0:
                left -= len(await event_loop.sock_recv(peer, wire.PIECE))
            if role.talks and len(fds) > 2:
                os.write(fds[1], b"x" * 100)
            for fd in fds:
                os.close(fd)
            header, payload = role.answers[turn % len(role.answers)]
            ending = role.endings[turn % len(role.endings)]
            turn += 1
            for packet in wire.packets({**header, "id": request["id"]}, payload):
                await event_loop.sock_sendall(peer, packet)
            if request["op"] in ("signal", "run"):
                number = request["program"] if request["op"] == "signal" else request["id"]
                await event_loop.sock_sendall(peer, _dumped({**ending, "ended": number, "size": 0}))


def _is_finished(came: Any) -> bool:
    return (
        isinstance(came, Finished)
        and isinstance(came.exit_code, int)
        and isinstance(came.stdout, bytes)
        and isinstance(came.stderr, bytes)
        and _is_usage(came.usage)
    )


def _is_executed(came: Any) -> bool:
    return isinstance(came, Executed) and isinstance(came.stdout, str) and _is_usage(came.usage)


def _is_usage(usage: Usage) -> bool:
    return (
        isinstance(usage.cpu_seconds, int | float)
        and 0 <= usage.cpu_seconds < 2**53
        and isinstance(usage.memory_bytes, int)
        and 0 <= usage.memory_bytes < 2**63
    )


def _is_entry(entry: Any) -> bool:
    return (
        isinstance(entry, Entry)
        and isinstance(entry.name, str)
        and entry.kind in ("file", "directory", "link", "other")
        and isinstance(entry.size, int)
    )
