"""Cases of MCP: opening and messages in the modern era, which has no sessions."""

from __future__ import annotations

from toolyard.testing.conformance.case import Chapter
from toolyard.testing.conformance.http import require
from toolyard.testing.conformance.mcp.probe import (
    CLIENT,
    METHOD,
    MISMATCH,
    MODERN,
    NAME,
    NO_METHOD,
    NO_VERSION,
    NOBODY,
    PARAMS,
    PREFIX,
    SESSION,
    VERSION,
    Mcp,
    enveloped,
)

CHAPTER: Chapter[Mcp] = Chapter("mcp")
case = CHAPTER.case


@case("F15", "supportedVersions with 2026-07-28, capabilities, ttlMs, cacheScope, resultType, serverInfo in _meta")
async def _discover(mcp: Mcp) -> None:
    """server/discover"""
    await mcp.m("tools/list")
    said = await mcp.discover()
    result = said.result
    require(MODERN in result.get("supportedVersions", []) and isinstance(result.get("capabilities"), dict), said)
    require({"ttlMs", "cacheScope"} <= result.keys() and result.get("resultType") == "complete", said)
    require({"name", "version"} <= result["_meta"][f"{PREFIX}serverInfo"].keys(), said)


@case("F16", "400, error -32020 each")
async def _method_header(mcp: Mcp) -> None:
    """tools/list without Mcp-Method, and with another one"""
    for header in (None, "prompts/list"):
        (await mcp.m("tools/list", headers={METHOD: header})).require_error(400, MISMATCH)


@case("F17", "400, error -32020 each")
async def _name_header(mcp: Mcp) -> None:
    """tools/call without Mcp-Name, and with another one"""
    for header in (None, "conform-other"):
        said = await mcp.m("tools/call", {"name": NOBODY, "arguments": {}}, headers={NAME: header})
        said.require_error(400, MISMATCH)


@case("F18", "not -32020 for base64 of the name; -32020 for what is no base64")
async def _encoded_name(mcp: Mcp) -> None:
    """tools/call with Mcp-Name: =?base64?…?="""
    params = {"name": NOBODY, "arguments": {}}
    said = await mcp.m("tools/call", params, headers={NAME: "=?base64?Y29uZm9ybS1ub2JvZHk=?="})
    require("error" not in said.message or said.error["code"] != MISMATCH, said)
    (await mcp.m("tools/call", params, headers={NAME: "=?base64?%%%?="})).require_error(400, MISMATCH)


@case("F19", "spaces around a value do not matter; a header that comes twice is 400, error -32020")
async def _spaces_and_twice(mcp: Mcp) -> None:
    """tools/list with spaces around Mcp-Method, and with two of them"""
    said = await mcp.m("tools/list", headers={METHOD: "  tools/list "})
    require("result" in said.message, said)
    (await mcp.m("tools/list", headers=[(METHOD, "tools/list")])).require_error(400, MISMATCH)


@case("F20", "400, error -32022 with data.supported and data.requested")
async def _unknown_version(mcp: Mcp) -> None:
    """tools/list in version 2027-01-01"""
    later = "2027-01-01"
    said = await mcp.m("tools/list", meta={f"{PREFIX}protocolVersion": later}, headers={VERSION: later})
    data = said.require_error(400, NO_VERSION).get("data")
    require(isinstance(data, dict) and data.get("requested") == later and MODERN in data.get("supported", []), said)


@case("F21", "400, error -32020")
async def _two_versions(mcp: Mcp) -> None:
    """tools/list whose header and _meta name different versions"""
    (await mcp.m("tools/list", headers={VERSION: "2027-01-01"})).require_error(400, MISMATCH)


@case("F22", "400, error -32602 without clientCapabilities; served without clientInfo")
async def _meta(mcp: Mcp) -> None:
    """tools/list without parts of _meta"""
    (await mcp.m("tools/list", meta={f"{PREFIX}clientCapabilities": None})).require_error(400, PARAMS)
    said = await mcp.m("tools/list", meta={f"{PREFIX}clientInfo": None})
    require("result" in said.message, said)


@case("F23", "405 with Allow: POST; no answer carries Mcp-Session-Id")
async def _other_methods(mcp: Mcp) -> None:
    """GET and DELETE"""
    said = await mcp.m("tools/list")
    require(SESSION not in said.answer.headers, f"{said}, with {SESSION}")
    for method in ("GET", "DELETE"):
        said = await mcp.say(b"", enveloped("tools/list")[1], method=method, head_only=True)
        require(said.status == 405 and said.answer.headers.get("allow") == "POST", said)


@case("F24", "202; in a version that is not there 400, error -32022")
async def _notification(mcp: Mcp) -> None:
    """A notification"""
    await mcp.m("tools/list")
    body = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": NOBODY}}
    headers = {VERSION: MODERN, METHOD: body["method"]}
    said = await mcp.say(body, {name: str(value) for name, value in headers.items()})
    require(said.status == 202, said)
    said = await mcp.say(body, {VERSION: "2027-01-01", METHOD: "notifications/cancelled"})
    said.require_error(400, NO_VERSION)


@case("F25", "404, error -32601")
async def _initialize_modern(mcp: Mcp) -> None:
    """initialize"""
    params = {"protocolVersion": MODERN, "capabilities": {}, "clientInfo": CLIENT}
    (await mcp.m("initialize", params)).require_error(404, NO_METHOD)
