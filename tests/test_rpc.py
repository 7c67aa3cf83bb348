"""Questions between two processes of ours: they arrive whole and in order, and get one answer."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import random
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import pytest

from tests.sandboxes.backends import LOOPS
from toolyard.core.errors import NotSupported, WorkspaceError
from toolyard.rpc import PeerLost, RpcConnection, TheirQuestion, codec

pytestmark = pytest.mark.anyio

SIZES = (0, 1, 3, 250, 5_000, 70_000, 1_000_000)


class Heard:
    """What has been asked, and a way to answer it."""

    def __init__(self) -> None:
        self.asked: list[list[Any]] = []
        self.ended = asyncio.Event()
        self.parts_sent = 0

    async def __call__(self, question: TheirQuestion) -> Any:
        self.asked.append([question.what, *question.about])
        match question.what:
            case "same":
                return question.about[0]
            case "wait":
                try:
                    await asyncio.sleep(60)
                finally:
                    self.ended.set()
            case "refuse":
                raise WorkspaceError("not today")
            case "unknown error":
                raise ZeroDivisionError("boom")
            case "not plain":
                return object()
            case "stream":
                await self.stream(question, *question.about)
                return b"end"

    async def stream(self, question: TheirQuestion, count: int) -> None:
        for _ in range(count):
            await question.room()
            question.add_part(bytes(2**16))
            self.parts_sent += 1
            await asyncio.sleep(0)


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
async def asking(heard: Heard) -> AsyncIterator[RpcConnection]:
    ours, theirs = socket.socketpair()
    ends = await RpcConnection.on(ours), await RpcConnection.on(theirs, heard)
    yield ends[0]
    for end in ends:
        end.close()
        await end.lost


def read_all(end: socket.socket) -> bytes:
    with end:
        data = bytearray()
        while piece := end.recv(2**16):
            data += piece
        return bytes(data)


async def until(true: Callable[[], bool]) -> None:
    with anyio.fail_after(20):
        while not true():
            await asyncio.sleep(0.01)


# Bytes.


@pytest.mark.parametrize("most", [1, 7, 4096, 2**22])
async def test_questions_arrive_whole_and_in_order_however_the_bytes_are_cut(heard, most):
    ours, theirs = socket.socketpair()
    connection = await RpcConnection.on(ours)
    reading = asyncio.ensure_future(asyncio.to_thread(read_all, theirs))
    sizes = SIZES * 3 if most > 7 else SIZES[:5]
    sent = [["count", n, [["a", b"b"], None], bytes([n]) * size] for n, size in enumerate(sizes)]
    for question in sent:
        connection.ask(*question)
    connection.close()
    data = await reading
    other, at, chance = RpcConnection(heard), 0, random.Random(most)
    while at < len(data):
        size = chance.randint(1, most)
        other.data_received(data[at : at + size])
        at += size
    await until(lambda: len(heard.asked) >= len(sent))
    assert heard.asked == sent
    await connection.lost


@pytest.mark.parametrize(
    "value",
    [
        [None, True, -1.5, "ü", b"\xff", {"a": {"b": []}}],
        [2**64, -(2**63) - 1, 10**5000, 2**63, -(2**63)],
        ["a\ud800b", {"\udcff": 2**70, "b": {2**65: b"\xff"}}],
        {1: "numbers stay numbers", "infinities": [math.inf, -math.inf]},
    ],
)
async def test_any_plain_value_comes_back_as_it_was(asking, value):
    assert await asking.ask("same", value) == value


async def test_nan_comes_back_as_nan_and_tuples_as_lists(asking):
    assert math.isnan(await asking.ask("same", math.nan))
    assert await asking.ask("same", ((1, (2,)), {3}, range(2))) == [[1, [2]], [3], [0, 1]]


@pytest.mark.parametrize(
    "data", [b"\x00\x00\x00\x01\xc1", b"\x00\x00\x00\x01\x01", b"\x00\x00\x00\x03\xd4\x09x", b"\xff" * 9]
)
async def test_bytes_that_are_no_message_end_the_connection(heard, data):
    ours, theirs = socket.socketpair()
    asyncio.get_running_loop().set_exception_handler(lambda *_: None)  # asyncio reports what a protocol raises
    connection = await RpcConnection.on(ours, heard)
    asked = connection.ask("same", 1)
    with theirs:
        await asyncio.get_running_loop().sock_sendall(theirs, data)
        with pytest.raises(PeerLost):
            await asked
    await connection.lost
    assert heard.asked == []


# Questions.


async def test_an_error_of_ours_comes_as_itself_and_any_other_as_an_error_of_its_name(asking):
    with pytest.raises(WorkspaceError, match="not today"):
        await asking.ask("refuse")
    with pytest.raises(Exception, match="boom") as raised:
        await asking.ask("unknown error")
    assert type(raised.value).__name__ == "ZeroDivisionError"
    assert not isinstance(raised.value, ZeroDivisionError)


async def test_what_cannot_be_written_fails_its_question_alone(asking, monkeypatch):
    waiting = asking.ask("same", "x")
    with pytest.raises(TypeError, match="cannot be written"):
        asking.ask("same", object())
    with pytest.raises(Exception, match="cannot be written"):
        await asking.ask("not plain")
    assert await waiting == "x"
    monkeypatch.setattr(codec, "LONGEST", 1000)
    with pytest.raises(ValueError, match="more than 1000 bytes"):
        asking.ask("same", b"x" * 1000)


async def test_a_message_that_is_longer_than_allowed_ends_the_connection(asking, monkeypatch):
    waiting = asking.ask("same", b"x" * 1000)
    asking._flush()
    monkeypatch.setattr(codec, "LONGEST", 999)
    with pytest.raises(PeerLost):
        await waiting


async def test_a_question_that_is_stopped_is_cancelled_there_and_answered_all_the_same(asking, heard):
    question = asking.ask("wait")
    await until(lambda: heard.asked != [])
    question.stop()
    with pytest.raises(PeerLost, match="cancelled there"):
        await question
    assert heard.ended.is_set()


async def test_when_the_other_side_goes_whoever_waits_is_told_and_its_questions_are_cancelled(heard):
    ours, theirs = socket.socketpair()
    first, second = await RpcConnection.on(ours, heard), await RpcConnection.on(theirs, heard)
    waits, asked = first.ask("wait"), second.ask("wait")
    await until(lambda: len(heard.asked) == 2)
    second.close()
    for lost in (waits, asked, first.ask("same", 1)):
        with pytest.raises(PeerLost):
            await lost
    await first.lost
    with anyio.fail_after(5):
        await heard.ended.wait()


async def test_a_side_that_only_asks_refuses_questions(asking, heard):
    ours, theirs = socket.socketpair()
    only_asks, other = await RpcConnection.on(ours), await RpcConnection.on(theirs)
    with pytest.raises(NotSupported, match="same is not asked of this side"):
        await other.ask("same", 1)
    only_asks.close()
    await other.lost


# Parts.


async def test_parts_come_in_order_and_then_the_answer(asking):
    question, parts = asking.ask("stream", 100), 0
    while (part := await question.part()) is not None:
        assert len(part) == 2**16
        parts += 1
    assert (parts, await question) == (100, b"end")


async def test_who_answers_waits_while_nobody_reads_the_parts(asking, heard):
    question = asking.ask("stream", 1000)
    before = -1
    while before != heard.parts_sent or not before:
        before = heard.parts_sent
        await asyncio.sleep(0.2)
    assert before < 500
    assert await asking.ask("same", "in nobody else's way") == "in nobody else's way"
    parts = 0
    with anyio.fail_after(20):
        while await question.part() is not None:
            parts += 1
    assert parts == 1000


async def test_a_side_that_sends_parts_without_waiting_for_room_is_hung_up_on(monkeypatch):
    async def floods(question: TheirQuestion) -> None:
        for _ in range(1000):
            question.add_part(bytes(2**16))

    monkeypatch.setattr(codec, "LONGEST", 8 * 2**20)
    ours, theirs = socket.socketpair()
    asking, other = await RpcConnection.on(ours), await RpcConnection.on(theirs, floods)
    with pytest.raises(PeerLost, match="more parts than there is room for"):
        await asking.ask("stream")
    await asking.lost
    await other.lost


async def test_who_sends_more_than_is_read_waits_for_room():
    ours, theirs = socket.socketpair()
    connection = await RpcConnection.on(ours)
    asked = [connection.ask("same", b"x" * 200_000) for _ in range(20)]
    await asyncio.sleep(0)  # they are written
    waiting = asyncio.ensure_future(connection.room())
    await asyncio.sleep(0.05)
    assert not waiting.done()
    reading = asyncio.ensure_future(asyncio.to_thread(read_all, theirs))
    with anyio.fail_after(5):
        await waiting
    connection.close()
    assert len(await reading) > 20 * 200_000
    assert all(isinstance(one.exception(), PeerLost) for one in asked)


async def test_room_is_made_by_the_end_of_a_connection(heard):
    ours, theirs = socket.socketpair()
    connection = await RpcConnection.on(ours)
    asked = connection.ask("same", bytes(2**24))
    await asyncio.sleep(0.01)
    theirs.close()
    with anyio.fail_after(5):
        await connection.room()
        with pytest.raises(PeerLost):
            await asked
    connection.ask("to nobody").exception()


@pytest.mark.parametrize("anyio_backend", LOOPS, ids=["asyncio", "uvloop"])
@pytest.mark.parametrize("turns", range(1, 4))
async def test_a_connection_whose_opener_is_cancelled_closes_its_socket_once(turns, anyio_backend):
    ours, theirs = socket.socketpair()
    with theirs:
        opening = asyncio.ensure_future(RpcConnection.on(ours))
        for _ in range(turns):
            await asyncio.sleep(0)
        opening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            (await opening).close()
        assert await asyncio.to_thread(theirs.recv, 1) == b""
        another = os.open(os.devnull, os.O_RDONLY)  # it may get the number that has just become free
        ours.close()
        os.fstat(another)
        os.close(another)
