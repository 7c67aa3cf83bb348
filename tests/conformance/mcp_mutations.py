"""For each case of MCP, a server that fails it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tests.conformance.mutant import Exchange, Mutation, body, header, put, status, text, told


def on(method: str, *changes: Mutation) -> Mutation:
    """Make the changes in answers to this method of JSON-RPC; "" stands for every other body."""

    def change(exchange: Exchange) -> None:
        asked = exchange.asked
        if (asked.get("method", "") if isinstance(asked, dict) else "") == method:
            for one in changes:
                one(exchange)

    return change


def result(edit: Callable[[Any], Any]) -> Mutation:
    """Change the result, where there is one, in place."""

    def change(answer: Any) -> None:
        if "result" in answer:
            edit(answer["result"])

    return told(change)


def error(**values: Any) -> Mutation:
    """Change the error, where there is one."""

    def change(answer: Any) -> None:
        if "error" in answer:
            answer["error"].update(values)

    return told(change)


def each_tool(**values: Any) -> Mutation:
    return result(lambda found: [tool.update(values) for tool in found["tools"]])


served = put(result={"tools": [], "resultType": "complete"})
other_code = error(code=-32603)
no_allow = header("Allow", None)
nothing_wrong = result(lambda found: found.update(isError=False))
foreign_progress = body(
    'event: message\ndata: {"jsonrpc":"2.0","method":"notifications/progress",'
    '"params":{"progressToken":"other","progress":1}}\n\n'
    'event: message\ndata: {"jsonrpc":"2.0","id":1,"result":{"content":[],"isError":false}}\n\n',
    "text/event-stream",
)


def at_method(method: str, *changes: Mutation) -> Mutation:
    """Make the changes in answers to this method of HTTP."""

    def change(exchange: Exchange) -> None:
        if exchange.method == method:
            for one in changes:
                one(exchange)

    return change


def is_progress(exchange: Exchange) -> None:
    if b"progressToken" in exchange.request:
        foreign_progress(exchange)


MCP: Mapping[str, Mutation] = {
    "F1": on("initialize", result(lambda found: found.pop("serverInfo"))),
    "F2": on("initialize", result(lambda found: found.update(protocolVersion="2025-11-25"))),
    "F3": on("initialize", other_code),
    "F4": on("notifications/initialized", status(200)),
    "F5": on("tools/list", status(400)),
    "F6h": on("ping", put(id=1)),
    "F6m": on("ping", status(200)),
    "F7h": on("conform/nobody", status(404)),
    "F7m": on("conform/nobody", other_code),
    "F8h": on("", status(200)),
    "F8m": on("", other_code),
    "F9h": on("", status(200)),
    "F9m": on("", other_code),
    "F10": on("ping", status(200, was=404)),
    "F13": at_method("GET", no_allow),
    "F15": on("server/discover", result(lambda found: found.pop("ttlMs"))),
    "F16": on("tools/list", other_code),
    "F17": on("tools/call", text("-32020", "-32602")),
    "F18": on("tools/call", text("-32020", "-32602")),
    "F19": on("tools/list", text("-32020", "-32602")),
    "F20": on("tools/list", error(data={"requested": "2027-01-01"})),
    "F21": on("tools/list", text("-32020", "-32022")),
    "F22": on("tools/list", status(200)),
    "F23": at_method("DELETE", no_allow),
    "F24": on("notifications/cancelled", status(202)),
    "F25": on("initialize", status(200)),
    "F26": on("tools/list", status(200)),
    "F27": on("tools/list", status(200)),
    "F28": on("tools/list", status(200, was=403)),
    "F49": on("tools/list", header("WWW-Authenticate", 'Bearer resource_metadata="http://x"')),
    "F30h": on("tools/list", each_tool(description="")),
    "F30m": on("tools/list", each_tool(name="same")),
    "F31h": on("tools/list", each_tool(inputSchema=None)),
    "F31m": on("tools/list", each_tool(inputSchema={"type": "string"})),
    "F32h": on("tools/call", result(lambda found: found.update(content="text"))),
    "F32m": on("tools/call", result(lambda found: found.pop("resultType"))),
    "F34h": on("tools/call", nothing_wrong),
    "F34m": on("tools/call", nothing_wrong),
    "F35h": on("tools/call", other_code),
    "F35m": on("tools/call", status(200)),
    "F40": is_progress,
    "F41": on("notifications/cancelled", status(404)),
    "F44h": on("tools/list", other_code),
    "F44m": on("tools/list", status(200)),
    "F45h": on("prompts/get", other_code),
    "F45m": on("prompts/get", status(200)),
    "F46h": on("resources/read", error(data=None)),
    "F46m": on("resources/templates/list", result(lambda found: found.pop("resourceTemplates"))),
}
