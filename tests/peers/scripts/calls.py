"""Concurrent calls, each in its own session: the tasks and arguments come from the test."""

from __future__ import annotations

import asyncio
from typing import Any

from common import described, main
from sdk import async_client, close, environment, task


async def _call(env: Any, sdk: str, call: dict[str, Any], open_: asyncio.Semaphore) -> dict[str, Any]:
    async with open_, env.session(task=task(sdk, env.name, call.get("task", {}))) as session:
        try:
            output = await session.call_tool(call["tool"], call["input"])
        except Exception as error:
            return described(error)
        return {"text": output.blocks[0].text, "reward": output.reward, "finished": output.finished}


async def _calls(sdk: str, url: str, name: str, calls: list[dict[str, Any]], at_once: int) -> list[dict[str, Any]]:
    client = async_client(sdk, None, url)
    env = environment(client, sdk, url, name)
    open_ = asyncio.Semaphore(at_once)
    try:
        return await asyncio.gather(*(_call(env, sdk, call, open_) for call in calls))
    finally:
        await close(client)


def calls(sdk: str, url: str, name: str, calls: list[dict[str, Any]], at_once: int = 1000) -> list[dict[str, Any]]:
    return asyncio.run(_calls(sdk, url, name, calls, at_once))


main(calls)
