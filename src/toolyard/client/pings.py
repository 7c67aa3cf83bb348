"""Signs of life for open sessions, from a thread of their own: whatever the caller does, its sessions stay alive.

One thread serves all sessions of a process. It starts with the first and ends with the last.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import httpx2

from toolyard.client import carry

log = logging.getLogger("toolyard.client")

SECONDS = 10.0
"""Between two pings of one session."""
TIMEOUT = 10.0


@dataclass(frozen=True, slots=True, eq=False)
class Lease:
    """A session that is kept alive until `end`."""

    owner: Pings
    url: str
    headers: Mapping[str, str]
    sid: str

    def end(self) -> None:
        self.owner.end(self)


class Pings:
    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Start from nothing. A process that was forked off has our memory, but neither our thread nor our sessions."""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._wake: Callable[[], object] | None = None
        self._begun: list[Lease] = []
        self._ended: list[Lease] = []
        self._open: set[Lease] = set()

    def keep(self, url: str, headers: Mapping[str, str], sid: str) -> Lease:
        lease = Lease(self, url, headers, sid)
        with self._lock:
            self._begun.append(lease)
            self._open.add(lease)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="toolyard-pings", daemon=True)
                self._thread.start()
            elif self._wake is not None:
                self._wake()
        return lease

    def end(self, lease: Lease) -> None:
        with self._lock:
            if lease not in self._open:  # ended before, or of the process that this one was forked from
                return
            self._open.remove(lease)
            self._ended.append(lease)
            if self._wake is not None:
                self._wake()

    def _run(self) -> None:
        asyncio.run(self._main())

    async def _main(self) -> None:
        changed = asyncio.Event()
        loop = asyncio.get_running_loop()
        line = Line()
        pinging: dict[Lease, asyncio.Task[None]] = {}
        self._wake = lambda: loop.call_soon_threadsafe(changed.set)
        while True:
            with self._lock:
                begun, self._begun = self._begun, []
                ended, self._ended = self._ended, []
                if not self._open:
                    self._thread = self._wake = None
                    break
            for lease in begun:
                pinging[lease] = loop.create_task(line.keep(lease))
            for lease in ended:
                pinging.pop(lease).cancel()
            await changed.wait()
            changed.clear()
        for task in pinging.values():
            task.cancel()
        await asyncio.gather(*pinging.values(), return_exceptions=True)
        await line.close()


class Line:
    """The thread's own connections. Most sessions are over before they need one."""

    def __init__(self) -> None:
        self._http: httpx2.AsyncClient | None = None

    async def keep(self, lease: Lease) -> None:
        while True:
            await asyncio.sleep(SECONDS)
            try:
                answer = await self._ping(lease)
            except httpx2.RequestError as error:
                log.debug("session %s: a ping was not answered (%r), the next one may be", lease.sid, error)
                continue
            if answer.status_code in (404, 410):
                log.warning("session %s is gone from the server", lease.sid)
                return

    async def close(self) -> None:
        if self._http is not None:
            await self._http.aclose()

    async def _ping(self, lease: Lease) -> httpx2.Response:
        if self._http is None:
            self._http = httpx2.AsyncClient(timeout=TIMEOUT, limits=carry.LIMITS, verify=carry.tls("https"))
        return await self._http.post(f"{lease.url}/ping", headers={**lease.headers, "X-Session-ID": lease.sid})


pings = Pings()
"""Of this process."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=pings.forget)
