"""Messages between gateways arrive whole and in order, however the bytes come."""

from __future__ import annotations

import asyncio
import random
import socket

import pytest

from toolyard.gateways.frames import Frame, Frames

pytestmark = pytest.mark.anyio

SIZES = (0, 1, 3, 250, 5_000, 70_000, 1_000_000)


class Heard(Frames):
    def __init__(self) -> None:
        super().__init__()
        self.frames: list[Frame] = []
        self.gone = asyncio.Event()

    def received(self, frame: Frame) -> None:
        self.frames.append(frame)

    def lost(self) -> None:
        self.gone.set()


def sent() -> list[Frame]:
    return [(n, ("POST", [(b"a", b"b")], None), bytes([n % 256]) * size) for n, size in enumerate(SIZES * 3)]


async def connected(end: socket.socket) -> Heard:
    end.setblocking(False)
    _, line = await asyncio.get_running_loop().create_unix_connection(Heard, sock=end)
    return line


@pytest.mark.parametrize("most", [1, 7, 4096, 2**22])
async def test_frames_arrive_whole_however_the_bytes_are_cut(most):
    ours, theirs = socket.socketpair()
    line = await connected(ours)
    frames = sent() if most > 7 else sent()[:5]
    reading = asyncio.ensure_future(asyncio.to_thread(read_all, theirs))
    for frame in frames:
        line.send(frame)
    asyncio.get_running_loop().call_soon(line._transport.write_eof)  # when they have been sent
    data = await reading
    heard, at, chance = Heard(), 0, random.Random(most)
    while at < len(data):
        size = chance.randint(1, most)
        heard.data_received(data[at : at + size])
        at += size
    assert heard.frames == frames
    await line.gone.wait()


async def test_a_line_whose_other_end_is_closed_says_so_and_takes_what_is_sent():
    ours, theirs = socket.socketpair()
    line = await connected(ours)
    assert line.is_open
    theirs.close()
    async with asyncio.timeout(5):
        await line.gone.wait()
        await line.room()
    assert not line.is_open
    line.send((1, "to nobody"))


async def test_who_sends_more_than_is_read_waits_for_room():
    ours, theirs = socket.socketpair()
    line = await connected(ours)
    for _ in range(20):
        line.send((1, b"x" * 200_000))
    waiting = asyncio.ensure_future(line.room())
    await asyncio.sleep(0.05)
    assert not waiting.done()
    reading = asyncio.ensure_future(asyncio.to_thread(read_all, theirs))
    async with asyncio.timeout(5):
        await waiting
    line._transport.close()
    assert len(await reading) > 20 * 200_000


def read_all(end: socket.socket) -> bytes:
    with end:
        data = bytearray()
        while piece := end.recv(2**16):
            data += piece
        return bytes(data)
