"""Common to tests of the agent's door: a trainer that hands out tokens, and an agent that checks answers strictly."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from tests.wires.wire import H, Wire, strict_json

KEY = "the-trainers-key"


class Trainer(Wire):
    """Opens sessions of the vault and hands out tokens."""

    def __init__(self, url: str, **more: Any) -> None:
        super().__init__(url, headers={"X-API-Key": KEY}, **more)

    async def opened(self, sid: str | None = None, **task: Any) -> str:
        spec = {"number": 0, "answer": "xyzzy-the-answer", **task}
        return await self.open(sid, env_name="vault", task_spec=spec)

    async def token(self, sid: str, **body: Any) -> dict[str, Any]:
        response = await self.post("/vault/agent", headers=H(sid), json=body)
        assert response.status_code == 200, response.text
        given = strict_json(response.content)
        assert given.keys() == {"token", "url", "expires_in"}
        return given

    async def revoke(self, sid: str, **body: Any) -> int:
        response = await self.request("DELETE", "/vault/agent", headers=H(sid), json=body)
        assert response.status_code == 200, response.text
        return strict_json(response.content)["revoked"]


class Agent(Wire):
    """Has a token and no key."""

    def __init__(self, url: str, token: str, **more: Any) -> None:
        super().__init__(f"{url}/agent/{token}", **more)

    async def prompt(self) -> str:
        response = await self.get("/prompt")
        assert response.status_code == 200, response.text
        return "".join(block["text"] for block in strict_json(response.content))

    async def asks(self, name: str, call_id: str | None = None, **input: Any) -> httpx2.Response:
        body = {"name": name, "input": input}
        return await self.post("/call", json=body if call_id is None else {**body, "call_id": call_id})

    async def does(self, name: str, call_id: str | None = None, **input: Any) -> list[dict[str, Any]]:
        """The blocks of a successful call."""
        response = await self.asks(name, call_id, **input)
        assert response.status_code == 200, response.text
        answer = strict_json(response.content)
        assert answer.keys() == {"ok", "blocks", "error"}
        assert (answer["ok"], answer["error"]) == (True, None), answer
        return answer["blocks"]

    async def fails(self, name: str, status: int = 200, **input: Any) -> dict[str, Any]:
        """The error of a failed call."""
        return failure(await self.asks(name, **input), status)


@asynccontextmanager
async def agent_at(url: str, door: str, **task: Any) -> AsyncIterator[Agent]:
    """An agent with its own session, at the given port."""
    async with Trainer(url) as trainer:
        token = (await trainer.token(await trainer.opened(**task)))["token"]
        async with Agent(door, token) as agent:
            yield agent


def failure(response: httpx2.Response, status: int = 200) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["cache-control"] == "no-store"
    answer = strict_json(response.content)
    assert answer.keys() == {"ok", "blocks", "error"}
    assert (answer["ok"], answer["blocks"]) == (False, [])
    assert answer["error"].keys() == {"reason", "message", "retryable"}
    return answer["error"]


async def is_shut(agent: Agent) -> bool:
    """Whether the token opens none of its paths."""
    answers = [
        await agent.get("/prompt"),
        await agent.get("/tools"),
        await agent.post("/call", json={"name": "note", "input": {"text": "in"}}),
    ]
    rpc = await agent.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"})
    return {answer.status_code for answer in [*answers, rpc]} == {404} and len({one.text for one in answers}) == 1
