"""The same agent with the `mcp` package: it reads its prompt, finds a tool, and calls it, at any URL that speaks MCP.

    pip install 'mcp>=2.3'
    AGENT_URL=http://127.0.0.1:8081/agent/agt-…/mcp python examples/agent/mcp_agent.py
    AGENT_URL='http://127.0.0.1:8080/mcp/arithmetic?split=train&index=0' python examples/agent/mcp_agent.py

`python examples/agent/trainer.py mcp_agent.py` gives it its URLs. A real agent lets a model decide; this one can only
work out sums.
"""

import ast
import asyncio
import os
import re
from collections.abc import Iterable

from agent import worked_out
from mcp import Client, MCPError
from mcp.types import ContentBlock, TextContent


def text(blocks: Iterable[ContentBlock]) -> str:
    return "\n".join(block.text for block in blocks if isinstance(block, TextContent))


async def call(client: Client, tool: str, **arguments: str) -> str:
    """Call a tool. A result is for the model, even one that reports a mistake; an error never is."""
    try:
        result = await client.call_tool(tool, arguments)
    except MCPError as error:
        raise SystemExit(f"not my mistake: {error}") from None
    return f"mistaken: {text(result.content)}" if result.is_error else text(result.content)


async def main() -> None:
    async with Client(os.environ["AGENT_URL"]) as client:
        prompt = text(message.content for message in (await client.get_prompt("task")).messages)
        (tool,) = (await client.list_tools()).tools
        (parameter,) = tool.input_schema["properties"]
        found = re.search(r"What is (.*)\?", prompt)
        answer = worked_out(ast.parse(found[1], mode="eval").body) if found else 0
        print(f"agent: {tool.name} {answer:g}: {await call(client, tool.name, **{parameter: f'{answer:g}'})}")
        print(f"agent: once more: {await call(client, tool.name, **{parameter: '1'})}")


if __name__ == "__main__":
    asyncio.run(main())
