"""Sessions of one client, run by its own Python: `python client_load.py KIND URL AT_ONCE WAVES` prints what they cost.

It imports nothing of the benchmarks: other clients run it in their own virtual environments.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import resource
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

URL = ""
TASK = {"id": 1, "question": "What is 2 + 2?"}
INPUT = {"text": "hello world"}
BODIES = {"/create": {"env_name": "echo", "task_spec": TASK}, "/echo/call": {"name": "echo", "input": INPUT}}
"""The requests of the bare clients, and nothing else."""
WARMING = 20
"""Sessions before those that count: they import, compile and connect what any number needs."""


def check(answer: Any) -> None:
    assert "hello world" in str(answer), answer


# Plain: sessions one after the other.


def bare_plain() -> Callable[[], None]:
    from http.client import HTTPConnection

    connection = HTTPConnection(URL.removeprefix("http://"))

    def post(path: str, sid: str = "") -> bytes:
        body = json.dumps(BODIES.get(path, {}))
        headers = {"Content-Type": "application/json"} | ({"X-Session-ID": sid} if sid else {})
        connection.request("POST", path, body, headers)
        return connection.getresponse().read()

    def session() -> None:
        sid = json.loads(post("/create_session"))["sid"]
        post("/create", sid)
        check(post("/echo/call", sid))
        post("/delete", sid)
        post("/delete_session", sid)

    return session


def toolyard_plain() -> Callable[[], None]:
    from toolyard import Client

    echo = Client(URL).environment("echo")

    def session() -> None:
        with echo.session(TASK) as opened:
            check(opened.call_tool("echo", INPUT))

    return session


def other_plain(kind: str) -> Callable[[], None]:
    sdk: Any = importlib.import_module("sdk")  # tests/peers/scripts/sdk.py, which is on their path
    client = sdk.plain_client(kind, None, URL)
    echo = sdk.environment(client, kind, URL, "echo")

    def session(_: Any = client) -> None:  # it ends with its last reference
        with echo.session(task=sdk.task(kind, "echo", TASK)) as opened:
            check(opened.call_tool("echo", INPUT))

    return session


# Awaited: concurrent sessions. Each waits until all are open.


@asynccontextmanager
async def bare() -> Any:
    import aiohttp

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:

        async def post(path: str, sid: str = "") -> bytes:
            headers = {"X-Session-ID": sid} if sid else {}
            async with http.post(URL + path, json=BODIES.get(path, {}), headers=headers) as answer:
                return await answer.read()

        async def session(all_open: Callable[[], Awaitable[None]]) -> None:
            sid = json.loads(await post("/create_session"))["sid"]
            await post("/create", sid)
            await all_open()
            check(await post("/echo/call", sid))
            await post("/delete", sid)
            await post("/delete_session", sid)

        yield session


@asynccontextmanager
async def toolyard() -> Any:
    from toolyard import AsyncClient

    async with AsyncClient(URL) as client:
        echo = client.environment("echo")

        async def session(all_open: Callable[[], Awaitable[None]]) -> None:
            async with echo.session(TASK) as opened:
                await all_open()
                check(await opened.call_tool("echo", INPUT))

        yield session


@asynccontextmanager
async def other(kind: str) -> Any:
    sdk: Any = importlib.import_module("sdk")
    client = sdk.async_client(kind, None, URL)
    echo = sdk.environment(client, kind, URL, "echo")

    async def session(all_open: Callable[[], Awaitable[None]]) -> None:
        async with echo.session(task=sdk.task(kind, "echo", TASK)) as opened:
            await all_open()
            check(await opened.call_tool("echo", INPUT))

    yield session
    await sdk.close(client)


PLAIN: Mapping[str, Callable[[], Callable[[], None]]] = {
    "bare": bare_plain,
    "toolyard": toolyard_plain,
    "ors": partial(other_plain, "ors"),
    "openreward": partial(other_plain, "openreward"),
}
AWAITED: Mapping[str, Callable[[], Any]] = {
    "bare": bare,
    "toolyard": toolyard,
    "ors": partial(other, "ors"),
    "openreward": partial(other, "openreward"),
}


async def wave(session: Any, at_once: int) -> None:
    opened = 0
    everyone = asyncio.Event()

    async def all_open() -> None:
        nonlocal opened
        opened += 1
        if opened == at_once:
            everyone.set()
        await everyone.wait()

    await asyncio.gather(*(session(all_open) for _ in range(at_once)))


async def awaited(kind: str, at_once: int, waves: int) -> tuple[float, float]:
    async with AWAITED[kind]() as session:
        await wave(session, WARMING)
        began, used = time.perf_counter(), cpu()
        for _ in range(waves):
            await wave(session, at_once)
        return cpu() - used, time.perf_counter() - began


def plain(kind: str, sessions: int) -> tuple[float, float]:
    session = PLAIN[kind]()
    for _ in range(WARMING):
        session()
    began, used = time.perf_counter(), cpu()
    for _ in range(sessions):
        session()
    return cpu() - used, time.perf_counter() - began


def cpu() -> float:
    """Seconds of this process, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    kind, URL, at_once, waves = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    used, took = asyncio.run(awaited(kind, at_once, waves)) if at_once else plain(kind, waves)
    print(json.dumps({"cpu": used / (max(1, at_once) * waves), "seconds": took}))
