"""A real third-party HTTP server, on a free port of this machine, for the duration of a `with`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from toolyard.serving import listen


@contextmanager
def serving(app: Any, port: int = 0, **more: Any) -> Iterator[str]:
    """The address of an ASGI application, served by its own thread. Keywords go to uvicorn."""
    started = threading.Event()

    class Server(uvicorn.Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            started.set()

    socket = listen("127.0.0.1", port)
    server = Server(uvicorn.Config(app, log_config=None, ws="none", timeout_graceful_shutdown=1, **more))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]}, daemon=True)
    thread.start()
    try:
        assert started.wait(20)
        yield f"http{'s' * ('ssl_certfile' in more)}://127.0.0.1:{socket.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(20)
        socket.close()
