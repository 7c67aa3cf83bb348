"""`mcp_interface`: call the tools of MCP servers behind a gateway."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar
from urllib.parse import quote, urlsplit

import httpx2

from toolyard.core.environment import Environment, Toolset
from toolyard.core.errors import ServiceUnavailable
from toolyard.core.forms import tagged
from toolyard.core.output import JsonObject, TextBlock, ToolOutput, named_images
from toolyard.core.services import blame_of
from toolyard.core.tool import Given, tool

try:
    from mcp import Client, MCPError
    from mcp.types import CONNECTION_CLOSED, REQUEST_TIMEOUT, CallToolResult

    from toolyard.tools import mcp_resources
    from toolyard.tools.mcp_connection import McpConnection, cause
except ImportError:  # the extra `mcp`; missing() says so
    HAS_MCP = False
else:
    HAS_MCP = True

SECONDS = 25
"""The time limit of one call; trainers wait 30."""
LONGEST = 20_000
"""The most characters of a result to show."""
PAGES_MOST = 20
"""The most pages of a list of tools or resources."""

_HELPER = "mcp."
_SERVER = re.compile(r"\w[\w.-]*")


@dataclass(frozen=True, slots=True)
class McpForm:
    """Reads a JSON call in `<tool_call>` or `<mcp_call>` tags, or as the whole text."""

    late: ClassVar[bool] = True
    shown: Sequence[str] = ("obs", "error", "tool")

    def read(self, text: str) -> JsonObject | None:
        written = tagged(text, "tool_call") or tagged(text, "mcp_call")
        call = _object(written[0] if written else text)
        if not (written and "name" in call):
            call = _react(call)
        if not call.get("name"):
            return None
        server = call.get("server") or call.get("server_name") or call.get("server_label")
        arguments = call.get("arguments") or {}
        if isinstance(arguments, str):
            arguments = _object(arguments) or arguments  # validation refuses anything but an object
        return {"name": call["name"], "arguments": arguments, "server": "" if server is None else str(server)}

    def answer(self, text: str, result: str) -> str:
        return f"\n<mcp_response>\n```result\n{result}\n```\n</mcp_response>\n"


class Unclear(Exception):
    """The call names no server, several, or a forbidden one."""


class McpInterface(Toolset):
    """The MCP servers of a trajectory, each with one connection until the end."""

    def __init__(self, env: Environment) -> None:
        super().__init__(env)
        self._connections: dict[str, McpConnection] = {}
        self._tools: dict[str, frozenset[str]] = {}
        """The tools of each server that has listed them."""

    @classmethod
    def missing(cls) -> str:
        if not HAS_MCP:
            return "the MCP SDK is not installed: pip install 'toolyard[mcp]'"
        if not os.environ.get("MCP_GATEWAY_ADDRESS"):
            return "MCP_GATEWAY_ADDRESS is not set; it is the address of a gateway, such as http://localhost:8002"
        return ""

    @tool(form=McpForm(), concurrent=True)
    async def mcp_interface(
        self,
        name: str,
        arguments: dict[str, Any] = {},
        server: str = "",
        mcp_servers: Annotated[list[str | dict[str, Any]], Given()] = [],
        use_specified_server: Annotated[bool, Given()] = False,
    ) -> ToolOutput:
        """Call a tool of an MCP server. The tool mcp.list_tools of every server lists the others.

        mcp.list_resources lists its resources, and mcp.read_resource with the argument uri reads one.

        Args:
            name: The name of the tool.
            arguments: Its arguments.
            server: The server that has it, if several are there.
            mcp_servers: The servers that may be asked, by name; empty for any.
            use_specified_server: Whether none but those may be asked, even if there are none.
        """
        if problem := _unsendable(name, arguments):  # the SDK would fail as if the server were down
            answer = json.dumps({"error": problem, "error_type": "ValueError", "server": server, "tool": name})
            return ToolOutput(blocks=[TextBlock(text=_shortened(answer))])
        allowed = [str(one.get("name", "")) if isinstance(one, dict) else one for one in mcp_servers]
        try:
            chosen = await self._choose(name, server, sorted({*filter(None, allowed)}), strict=use_specified_server)
        except Unclear as problem:
            refused = {"obs": "", "error": str(problem), "tool": name, "valid": False}
            return ToolOutput(blocks=[TextBlock(text=str(problem))], metadata=refused, finished=True)
        try:
            async with asyncio.timeout(SECONDS):
                return await self._call(chosen, name, arguments)
        except Exception as error:  # the other server, the network, or the SDK
            self._drop_if_lost(chosen, error)
            if is_down(error) and not (self._is_made_up(chosen, allowed) and _says_no_such_server(error)):
                raise ServiceUnavailable(f"the MCP server {chosen!r} failed: {_words_of(error)}") from None
            kind = type(cause(error)).__name__  # the agent's request is wrong, so the model gets to read it
            answer = json.dumps({"error": _words_of(error), "error_type": kind, "server": chosen, "tool": name})
            return ToolOutput(blocks=[TextBlock(text=_shortened(answer))])

    async def teardown(self) -> None:
        await asyncio.gather(*(connection.close() for connection in self._connections.values()))

    async def _choose(self, name: str, asked: str, allowed: Sequence[str], *, strict: bool) -> str:
        """Choose the server to ask."""
        if asked:
            if (allowed or strict) and asked not in allowed:
                raise Unclear(f"Server '{asked}' not allowed for this task. Allowed: {allowed}")
            if not _SERVER.fullmatch(asked):
                raise Unclear(f"Server '{asked}' cannot be a server: a name has letters, digits, ., _ and -")
            return asked
        default = os.environ.get("MCP_DEFAULT_SERVER")
        candidates = allowed or ([] if strict else [default] if default else sorted(self._connections))
        if len(candidates) == 1:
            return candidates[0]
        if not candidates:
            raise Unclear("No MCP servers configured for this task.")
        offered = await asyncio.gather(*map(self._tools_of, candidates))
        having = [server for server, tools in zip(candidates, offered, strict=True) if tools and name in tools]
        if len(having) > 1:
            raise Unclear(f"Tool '{name}' is available on multiple servers {having}; please specify which one to use.")
        if not having and None in offered:
            silent = [server for server, tools in zip(candidates, offered, strict=True) if tools is None]
            raise ServiceUnavailable(f"which MCP server has the tool {name!r}? {', '.join(silent)} did not answer")
        if not having:
            raise Unclear(f"Unable to locate tool '{name}'. Specify one of the servers: {candidates}")
        return having[0]

    async def _tools_of(self, server: str) -> frozenset[str] | None:
        """The names of a server's tools; None if it does not answer."""
        if server not in self._tools:
            try:
                async with asyncio.timeout(SECONDS):
                    listed = await _tools(await self._client(server))
            except Exception as error:  # the other server: another one may have the tool
                self._drop_if_lost(server, error)
                return None
            self._tools[server] = frozenset(listed)
        return self._tools[server]

    async def _call(self, server: str, name: str, arguments: Mapping[str, Any]) -> ToolOutput:
        client = await self._client(server)
        if name == mcp_resources.READ:
            text, pictures = await mcp_resources.read(client, arguments)
            return ToolOutput(blocks=[TextBlock(text=_shortened(text)), *pictures])
        if name.startswith(_HELPER):
            return ToolOutput(blocks=[TextBlock(text=_shortened(await _help(client, name)))])
        result = await client.call_tool(name, dict(arguments))
        pictures = list(mcp_resources.pictures_of(result))
        return ToolOutput(blocks=[TextBlock(text=_shortened(_text(result)) or named_images(pictures)), *pictures])

    async def _client(self, server: str) -> Client:
        if server not in self._connections:
            self._connections[server] = McpConnection(address(server))
        return await self._connections[server].client()

    def _is_made_up(self, server: str, allowed: Sequence[str]) -> bool:
        """Whether the server may be the agent's invention: only the agent has named it, and it has never answered."""
        connection = self._connections.get(server)
        known = server in allowed or server == os.environ.get("MCP_DEFAULT_SERVER")
        return not known and not (connection is not None and connection.was_made)

    def _drop_if_lost(self, server: str, error: Exception) -> None:
        """Drop the connection if the error shows that it is lost; a refusing or slow server keeps it."""
        answered = isinstance(error, MCPError) and not is_down(error)
        if not answered and not isinstance(error, TimeoutError):
            self._connections[server].drop()


def _unsendable(name: str, arguments: Mapping[str, Any]) -> str:
    try:
        json.dumps([name, arguments], ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        return f"these arguments cannot be sent as JSON: {error}"
    return ""


def is_down(error: Exception) -> bool:
    """Whether the server did not answer at all, or not in time. A refusal is an answer."""
    first = cause(error)
    if isinstance(first, MCPError):
        return first.code in (CONNECTION_CLOSED, REQUEST_TIMEOUT) or "terminated" in first.message
    return blame_of(first) is not None or isinstance(first, httpx2.HTTPStatusError)


def _says_no_such_server(error: Exception) -> bool:
    """Whether the gateway answers 404, or the name is part of the host's and there is no such host."""
    first = cause(error)
    if isinstance(first, httpx2.HTTPStatusError):
        return first.response.status_code in (404, 410)
    return isinstance(first, httpx2.ConnectError) and _names_hosts() and _is_unknown_host(first)


def _names_hosts() -> bool:
    """Whether the server's name is part of its host name."""
    return "{server}" in urlsplit(os.environ["MCP_GATEWAY_ADDRESS"]).netloc


def _is_unknown_host(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, socket.gaierror):
            return error.errno == socket.EAI_NONAME
        error = error.__cause__ or error.__context__
    return False


def address(server: str) -> str:
    """The server's address: `{server}` in the gateway's address is replaced; without it, use the SSE endpoint."""
    gateway = os.environ["MCP_GATEWAY_ADDRESS"].rstrip("/")
    template = gateway if "{server}" in gateway else gateway + "/{server}/sse"
    return template.replace("{server}", quote(server, safe=""))


async def _help(client: Client, name: str) -> str:
    match name:
        case "mcp.list_tools":
            listed = await _tools(client)
            return "\n".join(["Available tools:", *(f"- {tool}: {about}" for tool, about in listed.items())])
        case "mcp.list_resources":
            listed = await _resources(client)
            return "\n".join(["Available resources:", *(f"- {uri}: {about}" for uri, about in listed.items())])
        case _:
            return f"Unknown mcp helper: {name}"


async def _tools(client: Client) -> Mapping[str, str]:
    found: dict[str, str] = {}
    cursor: str | None = None
    for _ in range(PAGES_MOST):
        page = await client.list_tools(cursor=cursor)
        found |= {one.name: one.description or "" for one in page.tools}
        if (cursor := page.next_cursor) is None:
            break
    return found


async def _resources(client: Client) -> Mapping[str, str]:
    found: dict[str, str] = {}
    cursor: str | None = None
    for _ in range(PAGES_MOST):
        page = await client.list_resources(cursor=cursor)
        found |= {str(one.uri): one.description or "" for one in page.resources}
        if (cursor := page.next_cursor) is None:
            break
    return found


def _text(result: CallToolResult) -> str:
    """The text of a result; pictures are blocks of their own."""
    parts: list[str] = []
    for one in result.content:
        if one.type == "text":
            parts.append(one.text)
        elif one.type == "resource_link":
            parts.append(mcp_resources.link(one))
        elif one.type == "resource":
            if mcp_resources.picture_of(one.resource) is None:
                parts.append(mcp_resources.text_of(one.resource))
        elif one.type != "image":
            parts.append(f"[{one.type}]")
    if not result.content and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "".join(parts)


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}\n... (truncated)"


def _words_of(error: Exception) -> str:
    first = cause(error)
    if isinstance(first, MCPError):
        return first.message
    return str(first) or (f"it took longer than {SECONDS} seconds" if isinstance(first, TimeoutError) else repr(first))


def _react(call: Mapping[str, Any]) -> Mapping[str, Any]:
    """Translate `{"tool": …, "arguments": …}`, or the same below `action`, into a tool call."""
    inner = call.get("action")
    asked = inner if isinstance(inner, dict) else call
    if "tool" not in asked or (asked is call and "arguments" not in asked):
        return {}
    return {"name": asked["tool"], "arguments": asked.get("arguments"), "server": asked.get("server")}


def _object(written: str) -> Mapping[str, Any]:
    try:
        value = json.loads(written)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
