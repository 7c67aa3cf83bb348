"""Many concurrent episodes in one process, each with its own task and state."""

from __future__ import annotations

import asyncio
from typing import Any

from common import main
from sdk import async_client, close, environment


async def _episode(counting: Any, index: int, started: asyncio.Barrier) -> dict[str, Any]:
    async with counting.session(split="train", index=index) as session:
        await started.wait()  # every session is open before any of them goes on
        prompt = await session.get_prompt()
        tools = await session.list_tools()
        rewards = [(await session.call_tool("add", {"number": number})).reward for number in (1, 2, 3)]
        end = await session.call_tool("finish", {})
        return {
            "prompt": prompt[0].text,
            "tools": [tool.name for tool in tools],
            "rewards": rewards,
            "text": end.blocks[0].text,
            "reward": end.reward,
            "finished": end.finished,
        }


async def _episodes(sdk: str, url: str, count: int) -> list[dict[str, Any]]:
    client = async_client(sdk, None, url)
    counting = environment(client, sdk, url, "countenv")
    started = asyncio.Barrier(count)
    try:
        return await asyncio.gather(*(_episode(counting, index, started) for index in range(count)))
    finally:
        await close(client)


def episodes(sdk: str, url: str, count: int) -> list[dict[str, Any]]:
    return asyncio.run(_episodes(sdk, url, count))


main(episodes)
