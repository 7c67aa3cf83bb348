"""Runs a real server on a free port of this machine, for the length of a `with`."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.error import HTTPError

from toolyard.core.errors import ToolyardError
from toolyard.server import Server
from toolyard.serving import listen
from toolyard.settings import Settings

_START_SECONDS = 20
_PLACES_SECONDS = 60

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""Asks this machine directly, past any proxy in the environment variables."""


@dataclass(frozen=True, slots=True)
class Running:
    """A server that runs in a thread of this process."""

    url: str
    server: Server

    @property
    def agent_url(self) -> str:
        """The URL of the agents' port, which `agent_port=0` opens."""
        return f"http://127.0.0.1:{self.server.agent_port}"


@contextmanager
def running(environments: Sequence[type], *, toolsets: Sequence[type] = (), **settings: Any) -> Iterator[Running]:
    """Serve `environments` in a thread. Keywords are settings, as in `running([Env], idle_seconds=2)`.

    Raises what keeps the server from starting.
    """
    server = Server(environments, toolsets=toolsets, settings=Settings(**settings))
    socket = listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{socket.getsockname()[1]}"
    refused: list[ToolyardError] = []

    def serve() -> None:
        try:
            server.serve(socket)
        except ToolyardError as error:  # an environment needs a better sandbox than this machine has
            refused.append(error)
            socket.close()

    thread = threading.Thread(target=serve, name="toolyard-server", daemon=True)
    thread.start()
    try:
        # The port is open already: the connection waits in its queue until the server answers.
        try:
            _wait_for_health(url)
        except OSError:
            if refused:
                raise refused[0] from None
            raise
        yield Running(url, server)
    finally:
        server.stop()
        thread.join(server.settings.drain_seconds + server.settings.teardown_seconds)
        socket.close()


def _wait_for_health(url: str) -> None:
    """Wait until the server is ready: places for sessions may still be starting."""
    ends = time.monotonic() + _PLACES_SECONDS
    while True:
        try:
            _DIRECT.open(f"{url}/health", timeout=_START_SECONDS).close()
            return
        except HTTPError as answer:
            if answer.code != HTTPStatus.SERVICE_UNAVAILABLE or time.monotonic() > ends:
                raise
        time.sleep(0.05)
