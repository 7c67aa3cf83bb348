"""What several gateways share, made before they start: mailboxes, open ports, and a pipe by which all end together."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence

from toolyard.gateways.gateway import Gateway, Mailboxes, all_closed
from toolyard.gateways.supervisor import Supervisor

_MORE = 20.0
"""Seconds that a gateway has to end, after its sessions and calls have."""


class Several:
    """Runs several gateways. `sockets`: those of each port. `patience`: seconds until a gateway that stops has closed
    all of its sessions."""

    def __init__(
        self, count: int, sockets: Sequence[Sequence[socket.socket]], *, api_key: str, patience: float
    ) -> None:
        self._count = count
        self._sockets = sockets
        self._api_key = api_key
        self._patience = patience
        self._mailboxes = Mailboxes(count)
        self._all_drained, self._draining = os.pipe()
        """A pipe. Every process that has sessions, or may start one that has, holds the second end."""

    def run(self, live: Callable[[int, Callable[[], None]], None], on_start: Callable[[], None]) -> None:
        """Run the supervisor. It calls `live` in each gateway, and `on_start` in one of them when all serve."""
        stop_seconds = 2 * self._patience + _MORE
        Supervisor(self._count, live, on_start=on_start, let_go=self._let_go, stop_seconds=stop_seconds).run()

    def become(self, number: int) -> tuple[Gateway, Sequence[Sequence[socket.socket]]]:
        """Runs in a gateway. Return the `Gateway` and its sockets of each port."""
        mine = [self._part(number, sockets) for sockets in self._sockets]
        return Gateway(number, self._mailboxes, self._api_key), mine

    def _part(self, number: int, sockets: Sequence[socket.socket]) -> Sequence[socket.socket]:
        """The sockets of one port that a gateway has; if there are too few for all gateways, they share them."""
        mine = sockets[number :: self._count] if len(sockets) >= self._count else sockets
        for other in sockets:
            if other not in mine:
                other.close()
        return mine

    async def drained(self) -> None:
        """Runs in a gateway whose sessions are closed: wait until those of all others are. Until then it still passes
        requests on, so that clients get the results of their calls."""
        os.close(self._draining)
        await all_closed(self._all_drained, self._patience)

    def _let_go(self) -> None:
        os.close(self._draining)
        for sockets in self._sockets:
            for each in sockets:
                each.close()
