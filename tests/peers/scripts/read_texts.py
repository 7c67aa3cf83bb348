"""Request many texts by number and compare each with the expected one."""

from __future__ import annotations

import asyncio
from typing import Any

from common import main
from sdk import async_client, close, environment
from texts import LIMIT, text


async def _read(sdk: str, url: str, count: int) -> dict[str, Any]:
    client = async_client(sdk, None, url)
    different: list[dict[str, Any]] = []
    characters = 0
    async with environment(client, sdk, url, "textenv").session(split="train", index=0) as session:
        if (await session.get_prompt())[0].text != text(6):
            different.append({"prompt": 6})
        for number in range(count):
            wanted = text(number)
            output = await session.call_tool("text", {"number": number})
            block = output.blocks[0]
            characters += len(wanted)
            if (block.text, block.detail, output.metadata) != (wanted, {"again": wanted[:LIMIT]}, {wanted[:9]: 1}):
                at = next((i for i, (a, b) in enumerate(zip(wanted, block.text, strict=False)) if a != b), None)
                different.append({"number": number, "wanted": len(wanted), "got": len(block.text), "first": at})
    await close(client)
    return {"different": different, "characters": characters}


def read_texts(sdk: str, url: str, count: int) -> dict[str, Any]:
    return asyncio.run(_read(sdk, url, count))


main(read_texts)
