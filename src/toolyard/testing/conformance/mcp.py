"""The cases of the Model Context Protocol over HTTP, in both eras.

An `h` after a number stands for the era of handshakes, up to 2025-11-25; an `m` for the modern one, since 2026-07-28.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from yarl import URL

from toolyard.testing.arguments import least_arguments
from toolyard.testing.conformance.case import Kit, Untried
from toolyard.testing.conformance.events import read_events
from toolyard.testing.conformance.http import Answer, Headers, Http, Unmet, read_json, require
from toolyard.testing.conformance.target import Target

_NOBODY = "conform-nobody"
_ACCEPT = "application/json, text/event-stream"
_HANDSHAKE, _OLDER, _MODERN = "2025-11-25", "2025-06-18", "2026-07-28"
_KNOWN = ("2024-11-05", "2025-03-26", _OLDER, _HANDSHAKE)
_PREFIX = "io.modelcontextprotocol/"
_VERSION, _SESSION, _METHOD, _NAME = "MCP-Protocol-Version", "Mcp-Session-Id", "Mcp-Method", "Mcp-Name"
_CLIENT = {"name": "toolyard conform", "version": "1"}
_META = {f"{_PREFIX}protocolVersion": _MODERN, f"{_PREFIX}clientInfo": _CLIENT, f"{_PREFIX}clientCapabilities": {}}
_PARSE, _REQUEST, _NO_METHOD, _PARAMS = -32700, -32600, -32601, -32602
_MISMATCH, _NO_VERSION = -32020, -32022
_MOST_PAGES, _TRIED_TOOLS = 20, 8


@dataclass(frozen=True, slots=True)
class Said:
    """An answer and the messages in it: those of its events, or just one."""

    answer: Answer
    messages: Sequence[dict[str, Any]]

    @classmethod
    def of(cls, answer: Answer) -> Said:
        if answer.kind == "text/event-stream":
            return cls(answer, [read_json(event.data) for event in read_events(answer) if event.data])
        return cls(answer, [answer.object] if answer.kind == "application/json" and answer.body.strip() else [])

    def __str__(self) -> str:
        return str(self.answer)

    @property
    def status(self) -> int:
        return self.answer.status

    @property
    def message(self) -> dict[str, Any]:
        """The response itself, which comes last."""
        require(self.messages and self.messages[-1].get("jsonrpc") == "2.0", self)
        return self.messages[-1]

    @property
    def result(self) -> dict[str, Any]:
        require(self.status == 200 and isinstance(self.message.get("result"), dict), self)
        found: dict[str, Any] = self.message["result"]
        return found

    @property
    def error(self) -> dict[str, Any]:
        require(isinstance(self.message.get("error"), dict), self)
        found: dict[str, Any] = self.message["error"]
        require(isinstance(found.get("code"), int) and isinstance(found.get("message"), str), self)
        return found

    def require_error(self, status: int, code: int) -> dict[str, Any]:
        require(self.status == status and self.error["code"] == code, self)
        return self.error


class Mcp:
    """A client of both eras. It shakes hands once; its cases share the session that it may be given."""

    def __init__(self, http: Http, target: Target) -> None:
        self._http = http
        self._target = target
        bare = URL(target.url).path in ("", "/")
        self.url = f"{target.url.rstrip('/')}/mcp" if bare else target.url
        self._hands: tuple[str, str] | None = None
        """The version that was agreed on, and the session's id, if there is one."""
        self._eras: dict[str, Said] = {}
        self._calls: dict[str, tuple[dict[str, Any], Said] | None] = {}

    async def say(
        self, body: Any, headers: Headers = (), *, method: str = "POST", without: Sequence[str] = (), **more: Any
    ) -> Said:
        pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
        named = {name.lower() for name, _ in pairs}
        given = {"Accept": _ACCEPT, "Content-Type": "application/json"}
        usual = [(name, value) for name, value in given.items() if name.lower() not in named | set(without)]
        content = {"content": body} if isinstance(body, bytes) else {"json": body}
        sent = {**content, "label": label_of(body, dict(pairs))} if method == "POST" else {}
        return Said.of(
            await self._http.ask(method, "", url=self.url, headers=[*usual, *pairs], without=without, **sent, **more)
        )

    # The era of handshakes.

    async def initialize(self, version: str = _HANDSHAKE) -> Said:
        """Shake hands; the session that comes of it is ended at once."""
        params = {"protocolVersion": version, "capabilities": {}, "clientInfo": _CLIENT}
        said = await self.say(request("initialize", params))
        if (session := said.answer.headers.get(_SESSION, "")) and self._hands != (_HANDSHAKE, session):
            await self.end(session)
        return said

    async def end(self, session: str) -> Said:
        headers = {_SESSION: session, _VERSION: _HANDSHAKE}
        return await self.say(b"", headers, method="DELETE")

    async def shaken(self) -> tuple[str, str]:
        if self._hands is None:
            params = {"protocolVersion": _HANDSHAKE, "capabilities": {}, "clientInfo": _CLIENT}
            said = await self.say(request("initialize", params))
            self._eras["h"] = said
            if said.status != 200 or "result" not in said.message:
                raise Untried(f"the server shakes no hands: {said}")
            self._hands = str(said.result.get("protocolVersion")), said.answer.headers.get(_SESSION, "")
        return self._hands

    async def spoken(self) -> dict[str, str]:
        """The headers of a client that has shaken hands."""
        version, session = await self.shaken()
        return {_VERSION: version} | ({_SESSION: session} if session else {})

    async def h(self, method: str, params: Any = None, *, id: Any = 1, headers: Mapping[str, str] = {}) -> Said:
        said = await self.say(request(method, params, id), {**await self.spoken(), **headers})
        require(said.message.get("id") == id, f"{said}, with another id")
        return said

    async def notify(self, method: str, params: Any = None) -> Said:
        body = {"jsonrpc": "2.0", "method": method} | ({} if params is None else {"params": params})
        return await self.say(body, await self.spoken())

    # The modern era.

    async def discover(self) -> Said:
        if "m" not in self._eras:
            self._eras["m"] = await self.say(*enveloped("server/discover"))
        return self._eras["m"]

    async def speaks_modern(self) -> bool:
        said = await self.discover()
        return bool(said.messages) and "result" in said.message

    async def m(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        id: Any = 1,
        meta: Mapping[str, Any] = {},
        headers: Mapping[str, str | None] | Sequence[tuple[str, str]] = (),
    ) -> Said:
        """A request of the modern era. What `meta` or `headers` have as None is left out."""
        if not await self.speaks_modern():
            raise Untried(f"the server does not speak {_MODERN}")
        said = await self.say(*enveloped(method, params, id, meta, headers))
        require(said.message.get("id") == id, f"{said}, with another id")
        return said

    # Both.

    async def ask(self, era: str, method: str, params: Mapping[str, Any] | None = None) -> Said:
        return await (self.m(method, params) if era == "m" else self.h(method, params))

    async def capabilities(self, era: str) -> Mapping[str, Any]:
        if era == "m":
            await self.m("tools/list")
        else:
            await self.shaken()
        found: Mapping[str, Any] = self._eras[era].result.get("capabilities", {})
        return found

    async def tools(self, era: str) -> list[dict[str, Any]]:
        """All pages of them."""
        found: list[dict[str, Any]] = []
        cursor: dict[str, Any] = {}
        for _ in range(_MOST_PAGES):
            said = await self.ask(era, "tools/list", cursor)
            require(isinstance(said.result.get("tools"), list), said)
            found += said.result["tools"]
            if "nextCursor" not in said.result:
                break
            cursor = {"cursor": said.result["nextCursor"]}
        return found

    async def call(self, era: str, name: str, arguments: Mapping[str, Any], **more: Any) -> Said:
        return await self.ask(era, "tools/call", {"name": name, "arguments": dict(arguments), **more})

    async def known(self, era: str) -> tuple[dict[str, Any], Said]:
        """A call that succeeds, and the answer that it got."""
        if era not in self._calls:
            self._calls[era] = await self._find(era)
        if (found := self._calls[era]) is None:
            raise Untried("no tool succeeds with made-up arguments; name one with --tool and --arguments")
        return found

    async def _find(self, era: str) -> tuple[dict[str, Any], Said] | None:
        if self._target.tool:
            given, arguments = self._target.tool, dict(self._target.arguments)
            return {"name": given, "arguments": arguments}, await self.call(era, given, arguments)
        for tool in (await self.tools(era))[:_TRIED_TOOLS]:
            name, arguments = tool["name"], least_arguments(tool.get("inputSchema"))
            try:
                said = await self.call(era, name, arguments)
            except (Unmet, TimeoutError):  # a tool that works long, or an answer that cases will tell of
                continue
            if "result" in said.message and not said.result.get("isError"):
                return {"name": name, "arguments": arguments}, said
        return None

    async def close(self) -> None:
        if self._hands is not None and self._hands[1]:
            await self.end(self._hands[1])

    @property
    def is_local(self) -> bool:
        host = URL(self.url).host or ""
        try:
            return host == "localhost" or ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False

    @property
    def has_key(self) -> bool:
        return bool(self._target.api_key)


def label_of(body: Any, headers: Mapping[str, str]) -> str:
    """How an answer tells of the request: its method, and the version if it is the modern one."""
    if not isinstance(body, Mapping):
        return ""
    name = body.get("params", {}).get("name", "")
    version = headers.get(_VERSION, "")
    era = f" ({version})" if version and version not in _KNOWN else ""
    return f"{body.get('method')} {name}".rstrip() + era


def request(method: str, params: Any = None, id: Any = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method} | ({} if params is None else {"params": params})


def enveloped(
    method: str,
    params: Mapping[str, Any] | None = None,
    id: Any = 1,
    meta: Mapping[str, Any] = {},
    headers: Mapping[str, str | None] | Sequence[tuple[str, str]] = (),
) -> tuple[dict[str, Any], list[tuple[str, str]]]:
    """The body and the headers of a request of the modern era."""
    about = {name: value for name, value in {**_META, **meta}.items() if value is not None}
    named = (params or {}).get("uri" if method == "resources/read" else "name")
    usual: dict[str, str | None] = {_VERSION: _MODERN, _METHOD: method}
    if method in ("tools/call", "prompts/get", "resources/read") and isinstance(named, str):
        usual[_NAME] = named
    if isinstance(headers, Mapping):
        pairs = [(name, value) for name, value in {**usual, **headers}.items() if value is not None]
    else:
        pairs = [*((name, value) for name, value in usual.items() if value is not None), *headers]
    return request(method, {**(params or {}), "_meta": about}, id), pairs


async def _speaks(mcp: Mcp) -> bool:
    if await mcp.speaks_modern():
        return True
    said = await mcp.initialize()
    return said.status == 200 and "serverInfo" in said.result


KIT: Kit[Mcp] = Kit("mcp", Mcp, _speaks, Mcp.close)
case = KIT.case


# Opening, in the era of handshakes.


@case("F1", "200: the same protocolVersion, capabilities, and serverInfo with name and version")
async def _initialize(mcp: Mcp) -> None:
    """initialize with 2025-11-25"""
    await mcp.shaken()
    said = await mcp.initialize()
    result = said.result
    require(result.get("protocolVersion") == _HANDSHAKE, said)
    require(isinstance(result.get("capabilities"), dict), said)
    require({"name", "version"} <= result["serverInfo"].keys(), said)


@case("F2", "a known version comes back; for others the server names one that it knows, and it is no error")
async def _versions(mcp: Mcp) -> None:
    """initialize with 2025-06-18, 1999-01-01 and 2026-07-28"""
    await mcp.shaken()
    said = await mcp.initialize(_OLDER)
    require(said.result.get("protocolVersion") == _OLDER, said)
    for version in ("1999-01-01", _MODERN):
        said = await mcp.initialize(version)
        require(said.result.get("protocolVersion") in _KNOWN, said)


@case("F3", "200, error -32602")
async def _empty_handshake(mcp: Mcp) -> None:
    """initialize with empty params"""
    await mcp.shaken()
    said = await mcp.say(request("initialize", {}))
    said.require_error(200, _PARAMS)


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
    (await mcp.m("ping")).require_error(404, _NO_METHOD)


@case("F7h", "200, error -32601")
async def _unknown_method(mcp: Mcp) -> None:
    """A method that is not there"""
    (await mcp.h("conform/nobody")).require_error(200, _NO_METHOD)


@case("F7m", "404, error -32601")
async def _unknown_method_modern(mcp: Mcp) -> None:
    """A method that is not there"""
    (await mcp.m("conform/nobody")).require_error(404, _NO_METHOD)


@case("F8h", "400, error -32700")
async def _no_json(mcp: Mcp) -> None:
    """A body that is not JSON"""
    (await mcp.say(b"{bad", await mcp.spoken())).require_error(400, _PARSE)


@case("F8m", "400, error -32700")
async def _no_json_modern(mcp: Mcp) -> None:
    """A body that is not JSON"""
    await mcp.m("tools/list")
    (await mcp.say(b"{bad", enveloped("tools/list")[1])).require_error(400, _PARSE)


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
    (await mcp.say([body], headers)).require_error(400, _REQUEST)


@case("F10", "400 without Mcp-Session-Id, 404 with an unknown one, and 404 with one that DELETE has ended")
async def _sessions(mcp: Mcp) -> None:
    """ping, where initialize gives a session"""
    version, session = await mcp.shaken()
    if not session:
        raise Untried("initialize gives no Mcp-Session-Id")
    ping = request("ping")
    said = await mcp.say(ping, {_VERSION: version})
    require(said.status == 400, said)
    said = await mcp.say(ping, {_VERSION: version, _SESSION: _NOBODY})
    require(said.status == 404, said)
    opened = await mcp.initialize()  # which ends it
    said = await mcp.say(ping, {_VERSION: version, _SESSION: opened.answer.headers[_SESSION]})
    require(said.status == 404, said)


@case("F13", "405 with Allow, or a stream of events")
async def _get(mcp: Mcp) -> None:
    """GET, Accept: text/event-stream"""
    headers = {**await mcp.spoken(), "Accept": "text/event-stream"}
    said = await mcp.say(b"", headers, method="GET", head_only=True)
    stream = said.status == 200 and said.answer.kind == "text/event-stream"
    require(stream or (said.status == 405 and "allow" in said.answer.headers), said)


# Opening, in the modern era.


@case("F15", "supportedVersions with 2026-07-28, capabilities, ttlMs, cacheScope, resultType, serverInfo in _meta")
async def _discover(mcp: Mcp) -> None:
    """server/discover"""
    await mcp.m("tools/list")
    said = await mcp.discover()
    result = said.result
    require(_MODERN in result.get("supportedVersions", []) and isinstance(result.get("capabilities"), dict), said)
    require({"ttlMs", "cacheScope"} <= result.keys() and result.get("resultType") == "complete", said)
    require({"name", "version"} <= result["_meta"][f"{_PREFIX}serverInfo"].keys(), said)


@case("F16", "400, error -32020 each")
async def _method_header(mcp: Mcp) -> None:
    """tools/list without Mcp-Method, and with another one"""
    for header in (None, "prompts/list"):
        (await mcp.m("tools/list", headers={_METHOD: header})).require_error(400, _MISMATCH)


@case("F17", "400, error -32020 each")
async def _name_header(mcp: Mcp) -> None:
    """tools/call without Mcp-Name, and with another one"""
    for header in (None, "conform-other"):
        said = await mcp.m("tools/call", {"name": _NOBODY, "arguments": {}}, headers={_NAME: header})
        said.require_error(400, _MISMATCH)


@case("F18", "not -32020 for base64 of the name; -32020 for what is no base64")
async def _encoded_name(mcp: Mcp) -> None:
    """tools/call with Mcp-Name: =?base64?…?="""
    params = {"name": _NOBODY, "arguments": {}}
    said = await mcp.m("tools/call", params, headers={_NAME: "=?base64?Y29uZm9ybS1ub2JvZHk=?="})
    require("error" not in said.message or said.error["code"] != _MISMATCH, said)
    (await mcp.m("tools/call", params, headers={_NAME: "=?base64?%%%?="})).require_error(400, _MISMATCH)


@case("F19", "spaces around a value do not matter; a header that comes twice is 400, error -32020")
async def _spaces_and_twice(mcp: Mcp) -> None:
    """tools/list with spaces around Mcp-Method, and with two of them"""
    said = await mcp.m("tools/list", headers={_METHOD: "  tools/list "})
    require("result" in said.message, said)
    (await mcp.m("tools/list", headers=[(_METHOD, "tools/list")])).require_error(400, _MISMATCH)


@case("F20", "400, error -32022 with data.supported and data.requested")
async def _unknown_version(mcp: Mcp) -> None:
    """tools/list in version 2027-01-01"""
    later = "2027-01-01"
    said = await mcp.m("tools/list", meta={f"{_PREFIX}protocolVersion": later}, headers={_VERSION: later})
    data = said.require_error(400, _NO_VERSION).get("data")
    require(isinstance(data, dict) and data.get("requested") == later and _MODERN in data.get("supported", []), said)


@case("F21", "400, error -32020")
async def _two_versions(mcp: Mcp) -> None:
    """tools/list whose header and _meta name different versions"""
    (await mcp.m("tools/list", headers={_VERSION: "2027-01-01"})).require_error(400, _MISMATCH)


@case("F22", "400, error -32602 without clientCapabilities; served without clientInfo")
async def _meta(mcp: Mcp) -> None:
    """tools/list without parts of _meta"""
    (await mcp.m("tools/list", meta={f"{_PREFIX}clientCapabilities": None})).require_error(400, _PARAMS)
    said = await mcp.m("tools/list", meta={f"{_PREFIX}clientInfo": None})
    require("result" in said.message, said)


@case("F23", "405 with Allow: POST; no answer carries Mcp-Session-Id")
async def _other_methods(mcp: Mcp) -> None:
    """GET and DELETE"""
    said = await mcp.m("tools/list")
    require(_SESSION not in said.answer.headers, f"{said}, with {_SESSION}")
    for method in ("GET", "DELETE"):
        said = await mcp.say(b"", enveloped("tools/list")[1], method=method, head_only=True)
        require(said.status == 405 and said.answer.headers.get("allow") == "POST", said)


@case("F24", "202; in a version that is not there 400, error -32022")
async def _notification(mcp: Mcp) -> None:
    """A notification"""
    await mcp.m("tools/list")
    body = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": _NOBODY}}
    headers = {_VERSION: _MODERN, _METHOD: body["method"]}
    said = await mcp.say(body, {name: str(value) for name, value in headers.items()})
    require(said.status == 202, said)
    said = await mcp.say(body, {_VERSION: "2027-01-01", _METHOD: "notifications/cancelled"})
    said.require_error(400, _NO_VERSION)


@case("F25", "404, error -32601")
async def _initialize_modern(mcp: Mcp) -> None:
    """initialize"""
    params = {"protocolVersion": _MODERN, "capabilities": {}, "clientInfo": _CLIENT}
    (await mcp.m("initialize", params)).require_error(404, _NO_METHOD)


# HTTP.


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
    """tools/list to a loopback address, as a web page would have it sent"""
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


# Tools, prompts and resources, in both eras.


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
    said = await mcp.ask(era, "tools/list", {"cursor": _NOBODY})
    said.require_error(400 if era == "m" else 200, _PARAMS)


async def check_prompts(mcp: Mcp, era: str) -> None:
    if "prompts" not in await mcp.capabilities(era):
        raise Untried("the server has no prompts")
    said = await mcp.ask(era, "prompts/list")
    require(isinstance(said.result.get("prompts"), list), said)
    said = await mcp.ask(era, "prompts/get", {"name": _NOBODY})
    said.require_error(400 if era == "m" else 200, _PARAMS)


async def check_resources(mcp: Mcp, era: str) -> None:
    if "resources" not in await mcp.capabilities(era):
        raise Untried("the server has no resources")
    said = await mcp.ask(era, "resources/templates/list")
    require(isinstance(said.result.get("resourceTemplates"), list), said)
    said = await mcp.ask(era, "resources/read", {"uri": "conform://nobody"})
    error = said.require_error(400 if era == "m" else 200, _PARAMS)
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
    require(f"{_PREFIX}serverInfo" in result.get("_meta", {}), result)


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
    (await mcp.call("h", _NOBODY, {})).require_error(200, _PARAMS)


@case("F35m", "400, error -32602")
async def _unknown_tool_modern(mcp: Mcp) -> None:
    """tools/call of a tool that is not there"""
    await mcp.known("m")
    (await mcp.call("m", _NOBODY, {})).require_error(400, _PARAMS)


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
    said = await mcp.notify("notifications/cancelled", {"requestId": _NOBODY, "reason": "conformance"})
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
