"""A client of MCP over HTTP that speaks both eras, and can send what no client should."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from yarl import URL

from toolyard.agents.arguments import least_arguments
from toolyard.testing.conformance.case import Untried
from toolyard.testing.conformance.events import read_events
from toolyard.testing.conformance.http import Answer, Headers, Http, Unmet, read_json, require
from toolyard.testing.conformance.target import Target

NOBODY = "conform-nobody"
_ACCEPT = "application/json, text/event-stream"
HANDSHAKE, OLDER, MODERN = "2025-11-25", "2025-06-18", "2026-07-28"
KNOWN = ("2024-11-05", "2025-03-26", OLDER, HANDSHAKE)
PREFIX = "io.modelcontextprotocol/"
VERSION, SESSION, METHOD, NAME = "MCP-Protocol-Version", "Mcp-Session-Id", "Mcp-Method", "Mcp-Name"
CLIENT = {"name": "toolyard conform", "version": "1"}
META = {f"{PREFIX}protocolVersion": MODERN, f"{PREFIX}clientInfo": CLIENT, f"{PREFIX}clientCapabilities": {}}
PARSE, REQUEST, NO_METHOD, PARAMS = -32700, -32600, -32601, -32602
MISMATCH, NO_VERSION = -32020, -32022
_MOST_PAGES, _TRIED_TOOLS = 20, 8


@dataclass(frozen=True, slots=True)
class Said:
    """An answer and its messages: one per event, or a single one."""

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
        """The response, which is the last message."""
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
    """A client of both eras. It shakes hands once; the cases share that session, if the server opens one."""

    def __init__(self, http: Http, target: Target) -> None:
        self._http = http
        self._target = target
        bare = URL(target.url).path in ("", "/")
        self.url = f"{target.url.rstrip('/')}/mcp" if bare else target.url
        self._hands: tuple[str, str] | None = None
        """The negotiated version, and the session's id, if there is one."""
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

    async def initialize(self, version: str = HANDSHAKE) -> Said:
        """Shake hands, and end the session at once, if the server opened one."""
        params = {"protocolVersion": version, "capabilities": {}, "clientInfo": CLIENT}
        said = await self.say(request("initialize", params))
        if (session := said.answer.headers.get(SESSION, "")) and self._hands != (HANDSHAKE, session):
            await self.end(session)
        return said

    async def end(self, session: str) -> Said:
        headers = {SESSION: session, VERSION: HANDSHAKE}
        return await self.say(b"", headers, method="DELETE")

    async def shaken(self) -> tuple[str, str]:
        if self._hands is None:
            params = {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": CLIENT}
            said = await self.say(request("initialize", params))
            self._eras["h"] = said
            if said.status != 200 or "result" not in said.message:
                raise Untried(f"the server shakes no hands: {said}")
            self._hands = str(said.result.get("protocolVersion")), said.answer.headers.get(SESSION, "")
        return self._hands

    async def spoken(self) -> dict[str, str]:
        """The headers of a client after the handshake."""
        version, session = await self.shaken()
        return {VERSION: version} | ({SESSION: session} if session else {})

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
        """Send a request of the modern era. A None in `meta` or `headers` leaves that entry out."""
        if not await self.speaks_modern():
            raise Untried(f"the server does not speak {MODERN}")
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
        """The tools of all pages."""
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
        """A call that succeeds, and its answer."""
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
            except (Unmet, TimeoutError):  # a slow tool, or an answer that a case reports
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
    """The request's name in reports: its method, and the version in the modern era."""
    if not isinstance(body, Mapping):
        return ""
    name = body.get("params", {}).get("name", "")
    version = headers.get(VERSION, "")
    era = f" ({version})" if version and version not in KNOWN else ""
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
    about = {name: value for name, value in {**META, **meta}.items() if value is not None}
    named = (params or {}).get("uri" if method == "resources/read" else "name")
    usual: dict[str, str | None] = {VERSION: MODERN, METHOD: method}
    if method in ("tools/call", "prompts/get", "resources/read") and isinstance(named, str):
        usual[NAME] = named
    if isinstance(headers, Mapping):
        pairs = [(name, value) for name, value in {**usual, **headers}.items() if value is not None]
    else:
        pairs = [*((name, value) for name, value in usual.items() if value is not None), *headers]
    return request(method, {**(params or {}), "_meta": about}, id), pairs


async def speaks(mcp: Mcp) -> bool:
    if await mcp.speaks_modern():
        return True
    said = await mcp.initialize()
    return said.status == 200 and "serverInfo" in said.result
