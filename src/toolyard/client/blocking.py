"""Runs flows on the caller's thread."""

from __future__ import annotations

import gzip
import socket
import time
import weakref
import zlib
from dataclasses import replace
from email.message import Message
from http.client import HTTPException
from http.cookiejar import CookieJar
from typing import TypeVar
from urllib.request import Request as Remembered

from toolyard.client import http1
from toolyard.client.address import Address
from toolyard.client.flow import Peer
from toolyard.client.http1 import Hearing
from toolyard.client.idle import Idle
from toolyard.client.request import Request, is_stream, request_of
from toolyard.client.steps import Answer, Ask, Broken, Flow, Listen, Outcome, Sleep, Step
from toolyard.client.stream import Heard, Listening
from toolyard.client.way import Way
from toolyard.core.errors import describe

T = TypeVar("T")


class BlockingLine:
    """The connections to one server, and what the client knows of it. Threads may share it."""

    def __init__(self, address: Address, peer: Peer) -> None:
        self.address = address
        self.peer = peer
        self._way = Way.to(address)
        self._cookies = CookieJar()
        self._idle = Idle()
        self.close = weakref.finalize(self, self._idle.close)

    def run(self, flow: Flow[T]) -> T:
        outcome: Outcome | None = None
        while True:
            try:
                step = flow.send(outcome)
            except StopIteration as done:
                answer: T = done.value
                return answer
            outcome = self._carry_out(step)

    def _carry_out(self, step: Step) -> Outcome | None:
        match step:
            case Sleep(seconds):
                time.sleep(seconds)
                return None
            case Ask() | Listen():
                return self._exchange(step)

    def _exchange(self, step: Ask | Listen) -> Outcome:
        request = self._completed(request_of(step, self.address))
        try:
            sock = self._idle.take() or self._way.connect()
        except (OSError, HTTPException) as error:
            return Broken(describe(error), sent=False)
        hearing = Hearing(sock)
        try:
            sock.settimeout(step.silence)
            http1.send(sock, self._way.host, self._way.target + request.path, request)
            return self._hear(hearing, listens=isinstance(step, Listen))
        except http1.FAILURES as error:
            return Broken(describe(error))
        finally:
            self._end(sock, hearing)

    def _completed(self, request: Request) -> Request:
        headers = {"Accept-Encoding": "gzip", **request.headers, **self._way.headers}
        if len(self._cookies):
            remembered = Remembered(self.address.origin + request.path)
            self._cookies.add_cookie_header(remembered)
            headers |= dict(remembered.header_items())
        return replace(request, headers=headers)

    def _hear(self, hearing: Hearing, *, listens: bool) -> Outcome:
        while not hearing.has_head:
            hearing.read()
        if hearing.cookies:
            self._remember(hearing.cookies)
        if listens and is_stream(hearing.status, hearing.headers):
            return _listen(hearing)
        while not hearing.is_whole:
            hearing.read()
        return Answer(hearing.status, hearing.headers, _unpacked(hearing))

    def _remember(self, cookies: list[str]) -> None:
        headers = Message()
        for cookie in cookies:
            headers["Set-Cookie"] = cookie
        self._cookies.extract_cookies(_Headed(headers), Remembered(self.address.origin))  # type: ignore[arg-type]

    def _end(self, sock: socket.socket, hearing: Hearing) -> None:
        if hearing.is_last:
            sock.close()
        else:
            self._idle.give_back(sock)


class _Headed:
    """The part of urllib's answer that its cookie jar reads."""

    def __init__(self, headers: Message) -> None:
        self._headers = headers

    def info(self) -> Message:
        return self._headers


def _listen(hearing: Hearing) -> Heard:
    stream = Listening()
    try:
        while True:
            stream.feed(hearing.take())
            if hearing.is_whole:
                return stream.heard()
            hearing.read()
    except http1.FAILURES as error:
        return stream.heard(describe(error))


def _unpacked(hearing: Hearing) -> bytes:
    if hearing.headers.get("content-encoding") not in ("gzip", "x-gzip"):
        return hearing.take()
    try:
        return gzip.decompress(hearing.take())
    except zlib.error as error:
        raise EOFError(f"the answer cannot be unpacked: {error}") from error
