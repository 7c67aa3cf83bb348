"""Sandboxes in one process of ours, made with the templates of another: a session's process has none of its own.

The process that has the templates tells the other one how to reach them, and which numbers its sandboxes have. The
sandboxes themselves belong to whoever asked for them, and end with it.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from toolyard.core.errors import SandboxError, SandboxUnavailable, describe
from toolyard.sandboxes.base import Backend, Limits, Missing, Profile, Report
from toolyard.sandboxes.native import wire
from toolyard.sandboxes.native.backend import Helper, NativeBackend
from toolyard.sandboxes.native.cgroups import Groups
from toolyard.sandboxes.native.channel import Channel, pair, without_room
from toolyard.sandboxes.provider import Provider


class Lender:
    """Answers another process until that hangs up, or `close`."""

    def __init__(self, sock: socket.socket, provider: Provider | None) -> None:
        self._sock = sock
        self._provider = provider
        self._loop = asyncio.get_running_loop()
        self._answering: set[asyncio.Task[None]] = set()
        sock.setblocking(False)
        self._loop.add_reader(sock, self._read)

    def close(self) -> None:
        if self._sock.fileno() >= 0:
            self._loop.remove_reader(self._sock)
            self._sock.close()

    def _read(self) -> None:
        try:
            question, _, _ = wire.receive(self._sock)
        except BlockingIOError:
            return
        except (wire.Closed, OSError):
            self.close()
            return
        answering = self._loop.create_task(self._answer(question))
        self._answering.add(answering)
        answering.add_done_callback(self._answering.discard)

    async def _answer(self, question: Mapping[str, Any]) -> None:
        lines: Sequence[socket.socket] = ()
        try:
            told, lines = await self._asked(question)
        except Exception as error:  # whatever it is, somebody waits to hear of it
            told = {"failed": str(error) if isinstance(error, SandboxError) else describe(error)}
        try:
            wire.send(self._sock, {"id": question["id"], **told}, fds=[line.fileno() for line in lines])
        except OSError:  # it has gone meanwhile, or does not listen
            self.close()
        finally:
            for line in lines:
                line.close()

    async def _asked(self, question: Mapping[str, Any]) -> tuple[Mapping[str, Any], Sequence[socket.socket]]:
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


async def borrow(kin: socket.socket, limits: Limits) -> Backend | None:
    """A backend whose templates are those of the process at the other end; None if that has none to lend."""
    ours, theirs = pair()
    with theirs:
        socket.send_fds(kin, [b"."], [theirs.fileno()])
    backend = Borrowed(ours, limits)
    try:
        return backend if await backend.is_offered() else None
    except BaseException:
        await backend.close()
        raise


class Borrowed(NativeBackend):
    def __init__(self, sock: socket.socket, limits: Limits) -> None:
        super().__init__(limits=limits, ready=0)
        self._lender = Channel(sock, on_event=lambda _: None, trusted=True)

    async def is_offered(self) -> bool:
        told, _ = await self._ask("report")
        if (report := told["report"]) is None:
            self._lender.close()
            return False
        missing = [Missing(**one) for one in report["missing"]]
        self._report = Report(report["backend"], report["level"], report["layers"], missing)
        return True

    async def next_number(self) -> int:
        told, _ = await self._ask("number")
        number: int = told["number"]
        return number

    async def _template(self, profile: Profile, number: int) -> Helper:
        async with self._starting:
            self._check_open()
            templates = [template for template in self._templates.get(profile, ()) if not template.channel.lost]
            self._templates[profile] = templates or await self._borrowed(profile)
        templates = [*self._templates[profile]]
        return templates[number % len(templates)]

    async def _borrowed(self, profile: Profile) -> Sequence[Helper]:
        told, fds = await self._ask("lend", profile=profile)
        if not fds:
            raise without_room(os.strerror(errno.EMFILE))
        if told["groups"] != [[*one] for one in self._groups.describe()]:  # of another broker than before
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
