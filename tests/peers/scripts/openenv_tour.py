"""An episode with OpenEnv's clients, as its documents show it: generic, with and without asyncio, and by tools."""

from __future__ import annotations

import asyncio
from typing import Any

from common import main
from openenv import GenericEnvClient
from openenv.core.mcp_client import MCPToolClient


def step(tool: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "call_tool", "tool_name": tool, "arguments": arguments}


def told(result: Any) -> dict[str, Any]:
    return {"observation": result.observation, "reward": result.reward, "done": result.done}


async def generic(url: str, headers: dict[str, str] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    async with GenericEnvClient(base_url=url, headers=headers) as env:
        found["shared"] = [tool["name"] for tool in (await env.step({"type": "list_tools"})).observation["tools"]]
        found["reset"] = told(await env.reset(split="train", index=1, seed=3, episode_id="mine"))
        found["note"] = told(await env.step(step("note", text="a")))
        found["nope"] = told(await env.step(step("nope")))
        found["state"] = await env.state()
        found["submit"] = told(await env.step(step("submit", answer="gold-1")))
        found["late"] = told(await env.step(step("submit", answer="gold-1")))
        found["again"] = told(await env.reset(split="train", index=0))
        found["fresh"] = told(await env.step(step("note", text="b")))
    return found


def generic_sync(url: str, headers: dict[str, str] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with GenericEnvClient(base_url=url, headers=headers).sync() as env:
        found["shared"] = [tool["name"] for tool in env.step({"type": "list_tools"}).observation["tools"]]
        found["reset"] = told(env.reset(split="train", index=1, seed=3, episode_id="mine"))
        found["note"] = told(env.step(step("note", text="a")))
        found["nope"] = told(env.step(step("nope")))
        found["state"] = env.state()
        found["submit"] = told(env.step(step("submit", answer="gold-1")))
        found["late"] = told(env.step(step("submit", answer="gold-1")))
        found["again"] = told(env.reset(split="train", index=0))
        found["fresh"] = told(env.step(step("note", text="b")))
    return found


async def by_tools(url: str, note: str = "note", times: int = 1) -> list[dict[str, Any]]:
    """A session over HTTP, a WebSocket that attaches to it, and tools over HTTP: many connections for one session."""
    return await asyncio.gather(*(one_by_tools(url, note, number) for number in range(times)))


async def one_by_tools(url: str, note: str, number: int) -> dict[str, Any]:
    async with MCPToolClient(base_url=url) as env:
        reset = await env.reset(split="train", index=number % 3)
        tools = [tool.name for tool in await env.list_tools()]
        notes = [await env.call_tool(note, text=text) for text in (f"a{number}", "b")]
        return {
            "reset": told(reset) | {"observation": reset.observation.model_dump()},
            "tools": tools,
            "notes": notes,
            "state": (await env.state()).model_dump(),
            "submit": await env.call_tool("submit", answer="gold-0") if "submit" in tools else None,
        }


def run(kind: str, **arguments: Any) -> Any:
    match kind:
        case "generic":
            return asyncio.run(generic(**arguments))
        case "generic, sync":
            return generic_sync(**arguments)
        case _:
            return asyncio.run(by_tools(**arguments))


if __name__ == "__main__":
    main(run)
