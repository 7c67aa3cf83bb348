"""Cases of MCP: what HTTP must say, in an era that the server speaks."""

from __future__ import annotations

from typing import Any

from toolyard.testing.conformance.case import Chapter, Untried
from toolyard.testing.conformance.http import require
from toolyard.testing.conformance.mcp.probe import Mcp, enveloped, request

CHAPTER: Chapter[Mcp] = Chapter("mcp")
case = CHAPTER.case


async def spoken_list(mcp: Mcp) -> tuple[dict[str, Any], dict[str, str]]:
    """tools/list in an era that the server speaks: the body and the headers."""
    if await mcp.speaks_modern():
        body, headers = enveloped("tools/list")
        return body, dict(headers)
    return request("tools/list"), await mcp.spoken()


@case("F26", "served for */*; 406 for text/html")
async def _accept(mcp: Mcp) -> None:
    """tools/list with other values of Accept"""
    body, headers = await spoken_list(mcp)
    said = await mcp.say(body, {**headers, "Accept": "*/*"})
    require("result" in said.message, said)
    said = await mcp.say(body, {**headers, "Accept": "text/html"})
    require(said.status == 406, said)


@case("F27", "served for application/json; charset=utf-8; 400 or 415 for text/plain")
async def _content_type(mcp: Mcp) -> None:
    """tools/list with other values of Content-Type"""
    body, headers = await spoken_list(mcp)
    said = await mcp.say(body, {**headers, "Content-Type": "application/json; charset=utf-8"})
    require("result" in said.message, said)
    said = await mcp.say(body, {**headers, "Content-Type": "text/plain"})
    require(said.status in (400, 415), said)


@case("F28", "421 for Host: evil.example, unless a key keeps such pages out; 403 for Origin: http://evil.example")
async def _gate(mcp: Mcp) -> None:
    """tools/list to a loopback address, as a web page would send it"""
    if not mcp.is_local:
        raise Untried("the server is not on a loopback address")
    body, headers = await spoken_list(mcp)
    if not mcp.has_key:
        said = await mcp.say(body, {**headers, "Host": "evil.example"})
        require(said.status == 421, f"{said}, for Host: evil.example")
    said = await mcp.say(body, {**headers, "Origin": "http://evil.example"})
    require(said.status == 403, f"{said}, for Origin: http://evil.example")


@case("F49", "401, without resource_metadata")
async def _key(mcp: Mcp) -> None:
    """tools/list without the key"""
    if not mcp.has_key:
        raise Untried("no key was given with --api-key")
    body, headers = await spoken_list(mcp)
    said = await mcp.say(body, headers, without=["X-API-Key", "Authorization"])
    require(said.status == 401, said)
    require("resource_metadata" not in said.answer.headers.get("www-authenticate", ""), said)
