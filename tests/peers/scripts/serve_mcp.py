"""MCP as its own packages serve it: `lowlevel` with custom handlers, or `fastmcp`."""

import json
import sys

import uvicorn

arguments = json.loads(sys.argv[1])
JSON = arguments.get("json", False)


def fastmcp():
    from fastmcp import FastMCP

    server = FastMCP("reference")

    @server.tool
    def add(a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b)

    @server.prompt
    def greet() -> str:
        """Say hello."""
        return "hello"

    return server.http_app(path="/mcp", json_response=JSON)


ADD = {"a": {"type": "integer"}, "b": {"type": "integer"}}
SCHEMA = {"type": "object", "properties": ADD, "required": ["a", "b"]}


def lowlevel_2():
    from mcp import types
    from mcp.server.lowlevel import Server
    from mcp.shared.exceptions import MCPError

    async def list_tools(ctx, params):
        if params is not None and params.cursor is not None:
            raise MCPError(-32602, "Unknown cursor")
        return types.ListToolsResult(tools=[types.Tool(name="add", description="Add.", input_schema=SCHEMA)])

    async def call_tool(ctx, params):
        if params.name != "add":
            raise MCPError(-32602, f"Unknown tool: {params.name}")
        given = params.arguments or {}
        if not {"a", "b"} <= given.keys():
            return types.CallToolResult(content=[types.TextContent(type="text", text="a and b!")], is_error=True)
        return types.CallToolResult(content=[types.TextContent(type="text", text=str(given["a"] + given["b"]))])

    server = Server("reference", version="1", on_list_tools=list_tools, on_call_tool=call_tool)
    return server.streamable_http_app(json_response=JSON)


app = {"fastmcp": fastmcp, "lowlevel": lowlevel_2}[arguments["kind"]]()
uvicorn.run(app, host="127.0.0.1", port=arguments["port"], log_level="warning")
