"""Cases of MCP: tools, prompts and resources, in both eras."""

from __future__ import annotations

from typing import Any

from toolyard.testing.conformance.case import Chapter, Untried
from toolyard.testing.conformance.http import require
from toolyard.testing.conformance.mcp.probe import NOBODY, PARAMS, PREFIX, Mcp

CHAPTER: Chapter[Mcp] = Chapter("mcp")
case = CHAPTER.case


async def listed(mcp: Mcp, era: str) -> list[dict[str, Any]]:
    tools = await mcp.tools(era)
    if not tools:
        raise Untried("the server lists no tool")
    return tools


async def check_tools(mcp: Mcp, era: str) -> None:
    tools = await listed(mcp, era)
    for tool in tools:
        require(tool.get("name") and tool.get("description"), f"the tool {tool}")
    names = [tool["name"] for tool in tools]
    require(len(set(names)) == len(names), f"a name twice: {names}")


async def check_schemas(mcp: Mcp, era: str) -> None:
    for tool in await listed(mcp, era):
        schema = tool.get("inputSchema")
        require(isinstance(schema, dict) and schema.get("type") == "object", f"the tool {tool}")


async def check_call(mcp: Mcp, era: str) -> dict[str, Any]:
    _, said = await mcp.known(era)
    result = said.result
    require(isinstance(result.get("content"), list) and result.get("isError", False) is False, said)
    require(all(is_content(block) for block in result["content"]), said)
    return result


def is_content(block: Any) -> bool:
    needed = {
        "text": {"text"},
        "image": {"data", "mimeType"},
        "audio": {"data", "mimeType"},
        "resource_link": {"uri", "name"},
        "resource": {"resource"},
    }
    return isinstance(block, dict) and needed.get(block.get("type", ""), {"?"}) <= block.keys()


async def check_arguments(mcp: Mcp, era: str) -> None:
    await mcp.known(era)
    wanting = [tool["name"] for tool in await listed(mcp, era) if tool["inputSchema"].get("required")]
    if not wanting:
        raise Untried("no tool requires an argument")
    said = await mcp.call(era, wanting[0], {})
    require(said.result.get("isError") is True and said.result["content"], said)


async def check_cursor(mcp: Mcp, era: str) -> None:
    said = await mcp.ask(era, "tools/list", {"cursor": NOBODY})
    said.require_error(400 if era == "m" else 200, PARAMS)


async def check_prompts(mcp: Mcp, era: str) -> None:
    if "prompts" not in await mcp.capabilities(era):
        raise Untried("the server has no prompts")
    said = await mcp.ask(era, "prompts/list")
    require(isinstance(said.result.get("prompts"), list), said)
    said = await mcp.ask(era, "prompts/get", {"name": NOBODY})
    said.require_error(400 if era == "m" else 200, PARAMS)


async def check_resources(mcp: Mcp, era: str) -> None:
    if "resources" not in await mcp.capabilities(era):
        raise Untried("the server has no resources")
    said = await mcp.ask(era, "resources/templates/list")
    require(isinstance(said.result.get("resourceTemplates"), list), said)
    said = await mcp.ask(era, "resources/read", {"uri": "conform://nobody"})
    error = said.require_error(400 if era == "m" else 200, PARAMS)
    require((error.get("data") or {}).get("uri") == "conform://nobody", said)


@case("F5", "served")
async def _before_initialized(mcp: Mcp) -> None:
    """tools/list right after initialize"""
    said = await mcp.h("tools/list")
    require(isinstance(said.result.get("tools"), list), said)


@case("F30h", "each has a name of its own and a description")
async def _tools(mcp: Mcp) -> None:
    """tools/list: what each tool is called"""
    await check_tools(mcp, "h")


@case("F30m", "each has a name of its own and a description")
async def _tools_modern(mcp: Mcp) -> None:
    """tools/list: what each tool is called"""
    await check_tools(mcp, "m")


@case("F31h", 'inputSchema is an object whose type is "object", never null')
async def _schemas(mcp: Mcp) -> None:
    """tools/list: what each tool takes"""
    await check_schemas(mcp, "h")


@case("F31m", 'inputSchema is an object whose type is "object", never null')
async def _schemas_modern(mcp: Mcp) -> None:
    """tools/list: what each tool takes"""
    await check_schemas(mcp, "m")


@case("F32h", "200, isError false, content blocks of known types")
async def _call(mcp: Mcp) -> None:
    """tools/call"""
    await check_call(mcp, "h")


@case("F32m", "200, isError false, content blocks of known types, resultType and serverInfo")
async def _call_modern(mcp: Mcp) -> None:
    """tools/call"""
    result = await check_call(mcp, "m")
    require(result.get("resultType") == "complete", result)
    require(f"{PREFIX}serverInfo" in result.get("_meta", {}), result)


@case("F34h", "a result with isError: true, which the agent reads")
async def _arguments(mcp: Mcp) -> None:
    """tools/call without a required argument"""
    await check_arguments(mcp, "h")


@case("F34m", "a result with isError: true, which the agent reads")
async def _arguments_modern(mcp: Mcp) -> None:
    """tools/call without a required argument"""
    await check_arguments(mcp, "m")


@case("F35h", "200, error -32602")
async def _unknown_tool(mcp: Mcp) -> None:
    """tools/call of a tool that is not there"""
    await mcp.known("h")
    (await mcp.call("h", NOBODY, {})).require_error(200, PARAMS)


@case("F35m", "400, error -32602")
async def _unknown_tool_modern(mcp: Mcp) -> None:
    """tools/call of a tool that is not there"""
    await mcp.known("m")
    (await mcp.call("m", NOBODY, {})).require_error(400, PARAMS)


@case("F40", "JSON, or events: notifications with that token and growing progress, and the result last")
async def _progress(mcp: Mcp) -> None:
    """tools/call with a progressToken"""
    call, _ = await mcp.known("h")
    said = await mcp.h("tools/call", {**call, "_meta": {"progressToken": "conform-1"}})
    require("result" in said.message, said)
    notices = [message["params"] for message in said.messages[:-1] if message["method"] == "notifications/progress"]
    require(all(notice["progressToken"] == "conform-1" for notice in notices), said)
    steps = [notice["progress"] for notice in notices]
    require(steps == sorted(set(steps)), said)


@case("F41", "202: it is over, and nobody minds")
async def _cancelled(mcp: Mcp) -> None:
    """notifications/cancelled for a request that is not running"""
    said = await mcp.notify("notifications/cancelled", {"requestId": NOBODY, "reason": "conformance"})
    require(said.status == 202, said)


@case("F44h", "200, error -32602")
async def _cursor(mcp: Mcp) -> None:
    """tools/list with a cursor that is not there"""
    await check_cursor(mcp, "h")


@case("F44m", "400, error -32602")
async def _cursor_modern(mcp: Mcp) -> None:
    """tools/list with a cursor that is not there"""
    await check_cursor(mcp, "m")


@case("F45h", "a list of prompts; 200, error -32602 for a name that is not there")
async def _prompts(mcp: Mcp) -> None:
    """prompts/list and prompts/get"""
    await check_prompts(mcp, "h")


@case("F45m", "a list of prompts; 400, error -32602 for a name that is not there")
async def _prompts_modern(mcp: Mcp) -> None:
    """prompts/list and prompts/get"""
    await check_prompts(mcp, "m")


@case("F46h", "templates are listed; 200, error -32602 with data.uri for a resource that is not there")
async def _resources(mcp: Mcp) -> None:
    """resources/templates/list and resources/read"""
    await check_resources(mcp, "h")


@case("F46m", "templates are listed; 400, error -32602 with data.uri for a resource that is not there")
async def _resources_modern(mcp: Mcp) -> None:
    """resources/templates/list and resources/read"""
    await check_resources(mcp, "m")
