"""Sandboxes in one process of ours, made with another's templates: a session's process has no templates of its own.

The process with the templates sends the other one their sockets, and the numbers for its sandboxes. The sandboxes
belong to the process that opened them, and end with it. All processes of a server share its places, whichever of them
makes the sandboxes: they run on one machine.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from toolyard.core.errors import SandboxError, SandboxUnavailable, describe
from toolyard.sandboxes import capacity
from toolyard.sandboxes.base import Backend, Limits, Missing, Profile, Report
from toolyard.sandboxes.native import wire
from toolyard.sandboxes.native.backend import NativeBackend
from toolyard.sandboxes.native.cgroups import Groups
from toolyard.sandboxes.native.channel import Channel, pair, without_room
from toolyard.sandboxes.native.templates import Helper, Templates
from toolyard.sandboxes.places import Places
from toolyard.sandboxes.provider import Provider


class Lender:
    """Answers another process until that disconnects, or until `close`."""

    def __init__(self, sock: socket.socket, provider: Provider | None) -> None:
        self._sock = sock
        self._provider = provider
        self._loop = asyncio.get_running_loop()
        self._answering: set[asyncio.Task[None]] = set()
        self._places = None if provider is None else provider.places
        self._taking: dict[int, asyncio.Task[None]] = {}
        """Waits for a place, by the number of the request."""
        self._taken: set[int] = set()
        """The requests that got a place."""
        sock.setblocking(False)
        self._loop.add_reader(sock, self._read)

    def close(self) -> None:
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock)
            self._sock.close()
            for number in [*self._taking, *self._taken]:
                self._give_back(number)

    def _read(self) -> None:
        try:
            question, payload, _ = wire.receive(self._sock)
        except BlockingIOError:
            return
        except (wire.Closed, OSError, ValueError):  # an author's code runs there too, and may send anything
            self.close()
            return
        if question["op"] == "give_back":  # at once, in the order of requests
            self._give_back(int(payload))
        answering = self._loop.create_task(self._answer(question))
        if question["op"] == "take":
            self._taking[question["id"]] = answering
        self._answering.add(answering)
        answering.add_done_callback(self._answering.discard)

    async def _answer(self, question: Mapping[str, Any]) -> None:
        lines: Sequence[socket.socket] = ()
        try:
            told, lines = await self._asked(question)
        except Exception as error:  # the other process waits for an answer
            told = {"failed": str(error) if isinstance(error, SandboxError) else describe(error)}
        try:
            wire.send(self._sock, {"id": question["id"], **told}, fds=[line.fileno() for line in lines])
        except OSError:  # it has ended, or does not read
            self.close()
        finally:
            for line in lines:
                line.close()

    def _give_back(self, number: int) -> None:
        """Give back a place, or end the wait for one."""
        if (taking := self._taking.pop(number, None)) is not None:
            taking.cancel()
        elif number in self._taken and self._places is not None:
            self._taken.discard(number)
            self._places.give_back()

    async def _take(self, number: int) -> None:
        if self._places is not None:
            await self._places.take()
        del self._taking[number]
        self._taken.add(number)

    async def _asked(self, question: Mapping[str, Any]) -> tuple[Mapping[str, Any], Sequence[socket.socket]]:
        match question["op"]:
            case "take":
                await self._take(question["id"])
                return {}, ()
            case "give_back":
                return {}, ()
        backend = None if self._provider is None else await self._provider.backend()
        if not isinstance(backend, NativeBackend):
            return {"report": None}, ()
        match question["op"]:
            case "report":
                return {"report": asdict(backend.report())}, ()
            case "number":
                return {"number": await backend.next_number()}, ()
            case _:
                return await backend.lend(question["profile"])


async def borrow(kin: socket.socket, limits: Limits) -> tuple[Places, Backend | None]:
    """The places of the process at the other end, and a backend with its templates; None if it lends none."""
    ours, theirs = pair()
    with theirs:
        socket.send_fds(kin, [b"."], [theirs.fileno()])
    lender = Channel(ours, on_event=lambda _: None, trusted=True)
    backend = Borrowed(lender, limits)
    try:
        return LentPlaces(lender), backend if await backend.is_offered() else None
    except BaseException:
        await backend.close()
        raise


class LentPlaces:
    """The places of the process at the other end, which all its processes share."""

    def __init__(self, lender: Channel) -> None:
        self._lender = lender
        self._taken: deque[int] = deque()

    async def take(self) -> None:
        number = self._lender.number()
        try:
            await self._lender.ask("take", number=number)
        except asyncio.CancelledError:
            self._return(number)
            raise
        self._taken.append(number)

    def give_back(self) -> None:
        self._return(self._taken.popleft())  # any place will do

    def _return(self, number: int) -> None:
        told = self._lender.begin("give_back", b"%d" % number)
        told.add_done_callback(lambda done: done.cancelled() or done.exception())  # a lender that ended needs none


class Borrowed(NativeBackend):
    def __init__(self, lender: Channel, limits: Limits) -> None:
        super().__init__(limits=limits, ready=0, check_room=capacity.check)
        self._lender = lender

    async def is_offered(self) -> bool:
        told, _ = await self._ask("report")
        if (report := told["report"]) is None:
            return False
        missing = [Missing(**one) for one in report["missing"]]
        self._report = Report(report["backend"], report["level"], report["layers"], missing)
        return True

    async def next_number(self) -> int:
        told, _ = await self._ask("number")
        number: int = told["number"]
        return number

    async def _templates_of(self, profile: Profile) -> Templates:
        async with self._starting:
            self._check_open()
            if (found := self._templates.get(profile)) is None or not found.alive:
                found = self._templates[profile] = Templates.of(await self._borrowed(profile))
            return found

    async def _borrowed(self, profile: Profile) -> Sequence[Helper]:
        told, fds = await self._ask("lend", profile=profile)
        if not fds:
            raise without_room(os.strerror(errno.EMFILE))
        if told["groups"] != [[*one] for one in self._groups.describe()]:  # from a different broker than before
            self._groups.close()
            self._groups = Groups.at(told["groups"])
        self._support, self._own_users = told["support"], told["own_users"]
        return [Helper(socket.socket(fileno=fd)) for fd in fds]

    async def _ask(self, op: str, **more: Any) -> tuple[Mapping[str, Any], Sequence[int]]:
        answer = await self._lender.ask(op, **more)
        if "failed" in answer.header:
            raise SandboxUnavailable(answer.header["failed"])
        return answer.header, answer.fds

    async def _end(self) -> None:
        await super()._end()
        self._lender.close()
