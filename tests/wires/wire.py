"""Common to tests of the ORS wire: a strict reader of server-sent events, and an episode in a few lines."""

from __future__ import annotations

import json
import socket
import ssl
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx2

_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Made once: a client would load all root certificates for each test."""

SSE_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


@dataclass(frozen=True)
class Event:
    name: str
    data: str


def read_events(body: bytes) -> list[Event]:
    """Read a whole stream, without comments. Fails on the first byte that some client could reject."""
    assert b"\r" not in body, "a bare CR breaks the SDKs' parsers"
    assert body.endswith(b"\n\n"), "an event without a blank line after it is never delivered"
    frames = body[:-2].decode().split("\n\n")
    events = [read_frame(frame) for frame in frames if not frame.startswith(":")]
    assert [event.name for event in events[1:]].count("task_id") == 0, "the id comes first, and once"
    assert events[-1].name in ("end", "error"), "the last event is terminal"
    assert all(event.name in ("task_id", "chunk") for event in events[:-1]), "and no other is"
    return events


def read_frame(frame: str) -> Event:
    head, *lines = frame.split("\n")
    assert head.startswith("event: "), frame
    name = head.removeprefix("event: ")
    assert lines, f"{name} has no data"
    values = []
    for line in lines:
        assert line.startswith("data: "), f"exactly one space after the colon: {line!r}"
        values.append(line.removeprefix("data: "))
    if name != "error":  # the author writes the text of an error, which cannot be escaped
        assert len(values) == 1, f"{name} has several data lines"
        assert values[0].isascii()
        assert values[0] == values[0].strip(), "clients strip white space from both ends"
        assert len(values[0]) <= 4096
    return Event(name, "\n".join(values))


@dataclass(frozen=True)
class Answer:
    """The outcome of a call."""

    events: list[Event]

    @classmethod
    def of(cls, response: httpx2.Response) -> Answer:
        assert response.status_code == 200, response.text
        for name, value in SSE_HEADERS.items():
            assert response.headers[name] == value
        return cls(read_events(response.content))

    @property
    def names(self) -> list[str]:
        return [event.name for event in self.events]

    @property
    def id(self) -> str:
        assert self.events[0].name == "task_id"
        return self.events[0].data

    @property
    def error(self) -> str:
        assert self.events[-1].name == "error", self.events
        return self.events[-1].data

    @property
    def result(self) -> dict[str, Any]:
        assert self.events[-1].name == "end", self.events
        parsed: dict[str, Any] = strict_json("".join(event.data for event in self.events if event.name != "task_id"))
        return parsed

    @property
    def output(self) -> dict[str, Any]:
        assert self.result["ok"] is True, self.result
        output: dict[str, Any] = self.result["output"]
        return output

    @property
    def text(self) -> str:
        return "".join(block["text"] for block in self.output["blocks"])

    @property
    def failure(self) -> dict[str, Any]:
        assert self.result["ok"] is False, self.result
        return self.result


def strict_json(text: str | bytes) -> Any:
    """JSON by the standard: refuses NaN and Infinity."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def H(sid: str) -> dict[str, str]:
    return {"X-Session-ID": sid}


def call_body(name: str, input: dict[str, Any] | None = None, **more: object) -> dict[str, Any]:
    return {"name": name, "input": {} if input is None else input, **more}


class Wire(httpx2.AsyncClient):
    """An HTTP client with short forms for opening a session and calling a tool."""

    def __init__(self, url: str, **more: Any) -> None:
        super().__init__(base_url=url, verify=_NO_TLS, timeout=30, trust_env=False, **more)

    async def open(self, sid: str | None = None, **body: Any) -> str:
        sid = sid or f"s-{uuid.uuid4()}"
        if "split" not in body:
            body.setdefault("task_spec", {})
        response = await self.post("/create", headers=H(sid), json=body)
        assert response.status_code == 200, response.text
        assert response.json() == {"sid": sid}
        return sid

    async def call(
        self, sid: str, name: str, input: dict[str, Any] | None = None, *, env: str = "mathenv", **more: object
    ) -> Answer:
        body = call_body(name, input, **more)
        return Answer.of(await self.post(f"/{env}/call", headers=H(sid), json=body))

    @asynccontextmanager
    async def follow(
        self, sid: str, name: str, input: dict[str, Any] | None = None, *, env: str = "mathenv", **more: object
    ) -> AsyncIterator[Stream]:
        """The same, one event at a time; leaving early drops the connection."""
        body = call_body(name, input, **more)
        async with self.stream("POST", f"/{env}/call", headers=H(sid), json=body) as response:
            assert response.status_code == 200
            yield Stream(response)

    async def end(self, sid: str) -> None:
        response = await self.post("/delete", headers=H(sid))
        assert (response.status_code, response.json()) == (200, {"sid": sid})

    async def alive(self, sid: str) -> bool:
        return (await self.post("/ping", headers=H(sid))).status_code == 200


class Stream:
    """An open stream of events."""

    def __init__(self, response: httpx2.Response) -> None:
        self.lines = response.aiter_lines()
        self.pings: list[float] = []
        """When each comment came."""

    async def event(self) -> Event:
        lines: list[str] = []
        async for line in self.lines:
            if line.startswith(":"):
                self.pings.append(time.monotonic())
            elif line:
                lines.append(line)
            elif lines:
                return read_frame("\n".join(lines))
        raise AssertionError(f"the stream ended after {lines}")

    async def rest(self) -> list[Event]:
        events = [await self.event()]
        while events[-1].name not in ("end", "error"):
            events.append(await self.event())
        return events


async def until(condition: Callable[[], Any], seconds: float = 10) -> None:
    """Wait until another thread makes the condition true; fail after so many seconds."""
    with anyio.fail_after(seconds):
        while not condition():
            await anyio.sleep(0.01)


def connect(url: str, seconds: float = 10, receive_buffer: int | None = None) -> socket.socket:
    """A bare connection, for bytes that no HTTP client would send."""
    where = urlsplit(url)
    sock = socket.socket()
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.settimeout(seconds)
    try:
        sock.connect((where.hostname, where.port))
    except OSError:
        sock.close()
        raise
    return sock


def talk(url: str, data: bytes) -> bytes:
    """Send bytes unchanged, and read until the server closes."""
    with connect(url) as sock:
        sock.sendall(data)
        received = b""
        while piece := sock.recv(65536):
            received += piece
        return received


def request_bytes(
    method: str, path: str, headers: dict[str, str] | None = None, body: bytes = b"", *, close: bool = True
) -> bytes:
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: localhost",
        *(f"{name}: {value}" for name, value in (headers or {}).items()),
    ]
    if body or method == "POST":
        lines.append(f"Content-Length: {len(body)}")
    if close:
        lines.append("Connection: close")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body
