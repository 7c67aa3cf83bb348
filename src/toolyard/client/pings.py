"""Pings for open sessions, from a thread of their own: sessions stay alive even while the caller blocks.

One thread serves all sessions of a process. It starts with the first and ends soon after the last.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp

from toolyard.client.address import Address
from toolyard.client.line import FAILURES, http_session, silence, way_to

log = logging.getLogger("toolyard.client")

SECONDS = 10.0
"""Seconds between two pings of one session."""
LOOK = 1.0
"""Seconds between two checks of which pings are due: opening or closing a session does not wake the thread."""
TIMEOUT = 10.0
AT_ONCE = 64
"""Connections to one server, however many sessions it has."""


@dataclass(frozen=True, slots=True, eq=False)
class Lease:
    """A session that is kept alive until `end`."""

    owner: Pings
    address: Address
    sid: str

    def end(self) -> None:
        self.owner.end(self)


class Pings:
    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start from nothing. A forked process has our memory, but neither our thread nor our sessions."""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._due: dict[Lease, float] = {}
        """When each open session is pinged next, the first one first."""

    def keep(self, address: Address, sid: str) -> Lease:
        lease = Lease(self, address, sid)
        with self._lock:
            self._due[lease] = time.monotonic() + SECONDS
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="toolyard-pings", daemon=True)
                self._thread.start()
        return lease

    def end(self, lease: Lease) -> None:
        with self._lock:
            self._due.pop(lease, None)

    def _run(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        pinging: dict[Lease, asyncio.Task[None]] = {}
        async with http_session(limit=0, limit_per_host=AT_ONCE) as http:
            while self._goes_on():
                pinging = {lease: task for lease, task in pinging.items() if not task.done()}
                for lease in self._take_due():
                    if lease not in pinging:
                        pinging[lease] = asyncio.create_task(self._ping(http, lease))
                await asyncio.sleep(min(LOOK, SECONDS))
            for task in pinging.values():
                task.cancel()
            await asyncio.gather(*pinging.values(), return_exceptions=True)

    def _goes_on(self) -> bool:
        with self._lock:
            if not self._due:
                self._thread = None
            return bool(self._due)

    def _take_due(self) -> Sequence[Lease]:
        """The leases that are due. Each is due again later."""
        now = time.monotonic()
        with self._lock:
            taken = []
            for lease, due in self._due.items():
                if due > now:
                    break
                taken.append(lease)
            for lease in taken:
                del self._due[lease]
                self._due[lease] = now + SECONDS
        return taken

    async def _ping(self, http: aiohttp.ClientSession, lease: Lease) -> None:
        headers = {**lease.address.headers, "X-Session-ID": lease.sid}
        way = way_to(lease.address, f"{lease.address.prefix}/ping")
        try:
            async with http.post(**way, headers=headers, timeout=silence(TIMEOUT)) as answer:
                await answer.read()
        except FAILURES as error:
            log.debug("session %s: a ping was not answered (%r), the next one may be", lease.sid, error)
            return
        if answer.status in (404, 410) and lease in self._due:
            log.warning("session %s is gone from the server", lease.sid)
            self.end(lease)


pings = Pings()
"""All pings of this process."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=pings.forget)
