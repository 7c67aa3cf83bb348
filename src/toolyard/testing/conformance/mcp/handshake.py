"""Cases of MCP: opening and messages in the era of handshakes."""

from __future__ import annotations

from toolyard.testing.conformance.case import Chapter, Untried
from toolyard.testing.conformance.http import require
from toolyard.testing.conformance.mcp.probe import (
    HANDSHAKE,
    KNOWN,
    MODERN,
    NO_METHOD,
    NOBODY,
    OLDER,
    PARAMS,
    PARSE,
    REQUEST,
    SESSION,
    VERSION,
    Mcp,
    enveloped,
    request,
)

CHAPTER: Chapter[Mcp] = Chapter("mcp")
case = CHAPTER.case


@case("F1", "200: the same protocolVersion, capabilities, and serverInfo with name and version")
async def _initialize(mcp: Mcp) -> None:
    """initialize with 2025-11-25"""
    await mcp.shaken()
    said = await mcp.initialize()
    result = said.result
    require(result.get("protocolVersion") == HANDSHAKE, said)
    require(isinstance(result.get("capabilities"), dict), said)
    require({"name", "version"} <= result["serverInfo"].keys(), said)


@case("F2", "a known version comes back; for others the server names one that it knows, and it is no error")
async def _versions(mcp: Mcp) -> None:
    """initialize with 2025-06-18, 1999-01-01 and 2026-07-28"""
    await mcp.shaken()
    said = await mcp.initialize(OLDER)
    require(said.result.get("protocolVersion") == OLDER, said)
    for version in ("1999-01-01", MODERN):
        said = await mcp.initialize(version)
        require(said.result.get("protocolVersion") in KNOWN, said)


@case("F3", "200, error -32602")
async def _empty_handshake(mcp: Mcp) -> None:
    """initialize with empty params"""
    await mcp.shaken()
    said = await mcp.say(request("initialize", {}))
    said.require_error(200, PARAMS)


@case("F4", "202, no body")
async def _initialized(mcp: Mcp) -> None:
    """notifications/initialized"""
    said = await mcp.notify("notifications/initialized")
    require(said.status == 202 and not said.answer.body, said)


@case("F6h", "the result {}, and the id as it was: text stays text")
async def _ping(mcp: Mcp) -> None:
    """ping, with an id that is text"""
    said = await mcp.h("ping", id="conform-1")
    require(said.result == {}, said)


@case("F6m", "404, error -32601")
async def _ping_modern(mcp: Mcp) -> None:
    """ping"""
    (await mcp.m("ping")).require_error(404, NO_METHOD)


@case("F7h", "200, error -32601")
async def _unknown_method(mcp: Mcp) -> None:
    """A method that is not there"""
    (await mcp.h("conform/nobody")).require_error(200, NO_METHOD)


@case("F7m", "404, error -32601")
async def _unknown_method_modern(mcp: Mcp) -> None:
    """A method that is not there"""
    (await mcp.m("conform/nobody")).require_error(404, NO_METHOD)


@case("F8h", "400, error -32700")
async def _no_json(mcp: Mcp) -> None:
    """A body that is not JSON"""
    (await mcp.say(b"{bad", await mcp.spoken())).require_error(400, PARSE)


@case("F8m", "400, error -32700")
async def _no_json_modern(mcp: Mcp) -> None:
    """A body that is not JSON"""
    await mcp.m("tools/list")
    (await mcp.say(b"{bad", enveloped("tools/list")[1])).require_error(400, PARSE)


@case("F9h", "400")
async def _batch(mcp: Mcp) -> None:
    """A batch"""
    said = await mcp.say([request("ping")], await mcp.spoken())
    require(said.status == 400, said)


@case("F9m", "400, error -32600")
async def _batch_modern(mcp: Mcp) -> None:
    """A batch"""
    await mcp.m("tools/list")
    body, headers = enveloped("tools/list")
    (await mcp.say([body], headers)).require_error(400, REQUEST)


@case("F10", "400 without Mcp-Session-Id, 404 with an unknown one, and 404 with one that DELETE has ended")
async def _sessions(mcp: Mcp) -> None:
    """ping, where initialize gives a session"""
    version, session = await mcp.shaken()
    if not session:
        raise Untried("initialize gives no Mcp-Session-Id")
    ping = request("ping")
    said = await mcp.say(ping, {VERSION: version})
    require(said.status == 400, said)
    said = await mcp.say(ping, {VERSION: version, SESSION: NOBODY})
    require(said.status == 404, said)
    opened = await mcp.initialize()  # which ends it
    said = await mcp.say(ping, {VERSION: version, SESSION: opened.answer.headers[SESSION]})
    require(said.status == 404, said)


@case("F13", "405 with Allow, or a stream of events")
async def _get(mcp: Mcp) -> None:
    """GET, Accept: text/event-stream"""
    headers = {**await mcp.spoken(), "Accept": "text/event-stream"}
    said = await mcp.say(b"", headers, method="GET", head_only=True)
    stream = said.status == 200 and said.answer.kind == "text/event-stream"
    require(stream or (said.status == 405 and "allow" in said.answer.headers), said)
