"""Talks to a server of OpenEnv: over its WebSocket, its HTTP routes and its JSON-RPC."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from toolyard.agents.arguments import least_arguments
from toolyard.testing.conformance.case import Untried
from toolyard.testing.conformance.http import Answer, Http, Unmet, dumped, read_json, require, shortened
from toolyard.testing.conformance.known_calls import TRIED_TOOLS, KnownCall, KnowsCalls
from toolyard.testing.conformance.target import Target

NOBODY = "conform_nobody"
ERRORS = ("tool_not_found", "invalid_args", "execution_error", "timeout", "transport_error")


@dataclass(frozen=True, slots=True)
class Frame:
    """An answer on a socket, or the code with which the server closed it."""

    asked: str
    text: str
    closed: int | None = None

    def __str__(self) -> str:
        return f"{shortened(self.asked)} → {shortened(self.text) if self.closed is None else f'closed, {self.closed}'}"

    @property
    def value(self) -> dict[str, Any]:
        require(self.closed is None, self)
        try:
            found = read_json(self.text)
        except ValueError as error:
            raise Unmet(f"{self}, which is not JSON: {error}") from None
        require(isinstance(found, dict), self)
        value: dict[str, Any] = found
        return value

    def data(self, kind: str) -> dict[str, Any]:
        require(self.value.get("type") == kind and isinstance(self.value.get("data"), dict), self)
        found: dict[str, Any] = self.value["data"]
        return found

    @property
    def step(self) -> dict[str, Any]:
        """The result of a `reset` or a `step`."""
        told = self.data("observation")
        require(isinstance(told.get("observation"), dict) and isinstance(told.get("done"), bool), self)
        require(told.get("reward") is None or isinstance(told["reward"], int | float), self)
        require({"observation", "reward", "done"} <= told.keys(), self)
        return told

    @property
    def observation(self) -> dict[str, Any]:
        found: dict[str, Any] = self.step["observation"]
        return found

    def require_error(self, code: str) -> dict[str, Any]:
        error = self.data("error")
        require(error.get("code") == code and isinstance(error.get("message"), str), self)
        return error


class Socket:
    """One connection, which is one session."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, task: Mapping[str, Any], seconds: float) -> None:
        self._socket = socket
        self._task = task
        self._seconds = seconds

    async def text(self, said: str) -> Frame:
        """Send a text unchanged, and receive one answer."""
        await self._socket.send_str(said)
        return await self.next(said)

    async def next(self, asked: str = "connected") -> Frame:
        came = await self._socket.receive(self._seconds)
        if came.type is aiohttp.WSMsgType.TEXT:
            return Frame(asked, came.data)
        require(came.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED), f"{asked} → {came.type.name}")
        return Frame(asked, "", self._socket.close_code or 0)

    async def say(self, kind: str, data: Any = ...) -> Frame:
        message = {"type": kind} | ({} if data is ... else {"data": data})
        return await self.text(dumped(message).decode())

    async def reset(self, **data: Any) -> Frame:
        return await self.say("reset", {**self._task, **data})

    async def state(self) -> dict[str, Any]:
        return (await self.say("state")).data("state")

    async def list_tools(self) -> list[dict[str, Any]]:
        frame = await self.say("step", {"type": "list_tools"})
        if frame.value.get("type") == "error":
            raise Untried(f"this environment has no tools: {frame}")
        require(isinstance(frame.observation.get("tools"), list), frame)
        return list(frame.observation["tools"])

    async def call(self, name: str, arguments: Mapping[str, Any], *, typed: bool = True) -> Frame:
        kind = {"type": "call_tool"} if typed else {}
        return await self.say("step", {**kind, "tool_name": name, "arguments": dict(arguments)})


class OpenEnv(KnowsCalls):
    def __init__(self, http: Http, target: Target) -> None:
        self._http = http
        self._target = target
        self._base = ""
        self._sessions: set[str] = set()

    async def base(self) -> str:
        """The target's address, or `/openenv/{env}` below it on a server of several environments."""
        if not self._base:
            plain = self._target.url.rstrip("/")
            answer = await self._http.ask("GET", "/schema", url=plain)
            self._base = plain if is_schema(answer) else f"{plain}/openenv/{await self._environment(plain)}"
        return self._base

    async def _environment(self, plain: str) -> str:
        if self._target.environment:
            return self._target.environment
        names = (await self._http.ask("GET", "/list_environments", url=plain)).require(200).json
        return str(names[0])

    async def get(self, path: str) -> Answer:
        return await self._http.ask("GET", path, url=await self.base())

    async def post(self, path: str, body: Any) -> Answer:
        return await self._http.ask("POST", path, url=await self.base(), json=body)

    async def post_text(self, path: str, text: bytes) -> Answer:
        headers = {"Content-Type": "application/json"}
        return await self._http.ask("POST", path, url=await self.base(), content=text, headers=headers)

    async def rpc(self, method: str, params: Mapping[str, Any] | None = None) -> Answer:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": dict(params or {})}
        return (await self.post("/mcp", body)).require(200)

    async def new_session(self) -> str:
        answer = await self.rpc("openenv/session/create")
        session = result_of(answer).get("session_id")
        require(isinstance(session, str), answer)
        self._sessions.add(str(session))
        return str(session)

    async def end_session(self, session: str) -> Answer:
        self._sessions.discard(session)
        return await self.rpc("openenv/session/close", {"session_id": session})

    @asynccontextmanager
    async def socket(self, query: str = "") -> AsyncIterator[Socket]:
        async with self._http.socket(f"{await self.base()}/ws{query}") as socket:
            yield Socket(socket, self.task, self._http.seconds)

    @property
    def task(self) -> dict[str, Any]:
        return {"split": self._target.split, "index": self._target.index} if self._target.split else {}

    # Calls.

    async def _try_calls(self) -> Sequence[KnownCall | None]:
        async with self.socket() as socket:
            await socket.reset()
            offered = [(tool["name"], least_arguments(tool.get("input_schema"))) for tool in await socket.list_tools()]
            given = [(self._target.tool, dict(self._target.arguments))] if self._target.tool else offered
            return [await self._tried(socket, *one) for one in given[:TRIED_TOOLS]]

    async def _tried(self, socket: Socket, name: str, arguments: dict[str, Any]) -> KnownCall | None:
        await socket.reset()
        told = (await socket.call(name, arguments)).value
        if told["type"] != "observation" or told["data"]["observation"].get("error") is not None:
            return None
        return KnownCall(name, arguments, bool(told["data"]["done"]))

    async def close(self) -> None:
        for session in sorted(self._sessions):
            await self.end_session(session)


def is_schema(answer: Answer) -> bool:
    try:
        return answer.status == 200 and {"action", "observation", "state"} <= answer.object.keys()
    except Unmet:
        return False


async def speaks(openenv: OpenEnv) -> bool:
    return is_schema(await openenv.get("/schema"))


def result_of(answer: Answer) -> Mapping[str, Any]:
    found: Mapping[str, Any] = answer.object.get("result") or {}
    return found
