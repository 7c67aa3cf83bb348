"""A token is a secret: the server does not keep it, and writes it into no log, whoever keeps the log."""

from __future__ import annotations

import asyncio
import io
import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import uvicorn

from tests.wires.agent_wire import KEY, Agent, Trainer
from tests.wires.vault import Vault
from tests.wires.wire import until
from toolyard import Server
from toolyard.logs import JsonLines, TextLines
from toolyard.runtime.grants import Grants, hide_tokens, new_token
from toolyard.runtime.journal import Journal
from toolyard.serving import listen
from toolyard.settings import Settings
from toolyard.testing import running

pytestmark = pytest.mark.anyio


@contextmanager
def heard(*names: str, formatter: logging.Formatter | None = None) -> Iterator[io.StringIO]:
    """Everything that these loggers write during the block, on level debug."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(formatter or logging.Formatter("%(name)s %(message)s"))
    loggers = [logging.getLogger(name) for name in names]
    before = [(logger.level, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)
    try:
        yield written
    finally:
        for logger, (level, propagate) in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate


def test_tokens_are_not_kept_and_their_digests_are_nobodys_to_guess():
    """So the time of a look-up reveals nothing of a token: a client cannot choose its digest."""
    journal = Journal()
    one, other = Grants(journal), Grants(journal)
    token = new_token()
    assert one.digest(token) != other.digest(token), "each server has a key of its own"
    near = token[:-1] + ("A" if token[-1] != "A" else "B")
    assert one.digest(near)[:4] != one.digest(token)[:4]


async def test_the_server_holds_no_token_that_it_gave():
    with running([Vault], api_key=KEY) as one:
        async with Trainer(one.url) as trainer:
            token = (await trainer.token(await trainer.opened()))["token"]
        grants = one.server.runtime.grants
        assert grants.find(token).session is not None
        assert token not in repr([(key, granted.until) for key, granted in grants._by_token.items()])


@pytest.mark.parametrize("formatter", [None, TextLines("%(message)s"), JsonLines()], ids=["bare", "text", "json"])
async def test_our_own_log_lines_have_no_token_whatever_happens(formatter):
    with heard("toolyard", "uvicorn", "asyncio", formatter=formatter) as lines, running([Vault], api_key=KEY) as one:
        async with Trainer(one.url) as trainer:
            sid = await trainer.opened(prompt_boom=True)
            token = (await trainer.token(sid))["token"]
            async with Agent(one.url, token) as agent:
                assert (await agent.get("/prompt")).status_code == 500
                for tool in ("boom", "lose", "refuse", "guess", "nope"):
                    await agent.asks(tool)
                await agent.get("/nothing")
                await trainer.get(f"/vault/{token}")
                await trainer.revoke(sid, token=token)
                await agent.get("/prompt")
    assert "the prompt broke" in lines.getvalue()
    assert token not in lines.getvalue()


async def test_the_access_log_of_another_server_has_no_token_either():
    """Such a server logs the path that it passes to the application."""
    server = Server([Vault], settings=Settings(api_key=KEY))
    socket = listen("127.0.0.1", 0)
    url = f"http://127.0.0.1:{socket.getsockname()[1]}"
    with heard("uvicorn.access", "uvicorn.error", "toolyard") as lines:
        config = uvicorn.Config(server.app, log_config=None, access_log=True, lifespan="on")
        other = uvicorn.Server(config)
        thread = threading.Thread(target=other.run, kwargs={"sockets": [socket]}, daemon=True)
        thread.start()
        try:
            async with Trainer(url) as trainer:
                token = (await trainer.token(await trainer.opened()))["token"]
                async with Agent(url, token) as agent:
                    assert await agent.prompt() == "Open vault 0."
                    assert (await agent.get("/nothing", params={"token": token})).status_code == 404
                    assert (await agent.get("/prompt", headers={"Origin": "http://evil.example"})).status_code == 403
            await until(lambda: lines.getvalue().count("GET /agent/- HTTP") == 3)
            assert "/vault/agent" in lines.getvalue()
            assert token not in lines.getvalue()
        finally:
            other.should_exit = True
            await asyncio.to_thread(thread.join, 10)


@pytest.mark.parametrize("formatter", [TextLines("%(message)s"), JsonLines()])
def test_a_token_is_cut_out_of_messages_and_tracebacks(formatter):
    token = new_token()
    try:
        raise ValueError(f"http://x/agent/{token}/mcp broke")
    except ValueError:
        told = sys.exc_info()
    record = logging.LogRecord("toolyard", logging.ERROR, "x", 1, f"asked with {token}!", None, told)
    line = formatter.format(record)
    assert line.count("agt-[hidden]") == 2
    assert token not in line
    assert hide_tokens("an agt-hook is no token") == "an agt-hook is no token"
