"""A server whose every request does nothing: `python -m benchmarks.empty PORT`. It shows what HTTP itself costs.

It has Toolyard's HTTP, from the socket to the application, and nothing behind it.
"""

from __future__ import annotations

import sys

import uvicorn
from starlette.types import Receive, Scope, Send

from toolyard.asgi import HttpOptions, Request
from toolyard.serving import config_of, tune_process
from toolyard.settings import Settings
from toolyard.web_socket import NO_UPGRADES

SETTINGS = Settings()
OPTIONS = SETTINGS.pick(HttpOptions)


async def empty(scope: Scope, receive: Receive, send: Send) -> None:
    """Read the body, and answer with almost nothing."""
    request = Request(scope, receive, send, OPTIONS)
    await request.body()
    await request.answer(200, ((b"content-type", b"application/json"),), b"{}")


def main() -> None:
    config = config_of(empty, SETTINGS.part(), NO_UPGRADES, lifespan="off")
    config.port = int(sys.argv[1])
    tune_process()
    uvicorn.Server(config).run()


if __name__ == "__main__":
    main()
