"""The cases of OpenEnv: episodes over a WebSocket, the HTTP routes beside it, and its own JSON-RPC."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from toolyard.testing.arguments import least_arguments
from toolyard.testing.conformance.case import Kit, Untried
from toolyard.testing.conformance.http import Answer, Http, Unmet, dumped, read_json, require, shortened
from toolyard.testing.conformance.target import Target

_NOBODY = "conform_nobody"
_TRIED_TOOLS = 8
_ERRORS = ("tool_not_found", "invalid_args", "execution_error", "timeout", "transport_error")


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
        """What an environment tells after `reset` or `step`."""
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
        """Send a text as it is, and take one answer."""
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


@dataclass(frozen=True, slots=True)
class Known:
    """A call that succeeds."""

    tool: str
    arguments: Mapping[str, Any]
    finishes: bool


class OpenEnv:
    def __init__(self, http: Http, target: Target) -> None:
        self._http = http
        self._target = target
        self._base = ""
        self._known: list[Known] | None = None
        self._sessions: set[str] = set()

    async def base(self) -> str:
        """The address given, or on a server of several environments `/openenv/{env}` below it."""
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

    async def known(self) -> Known:
        calls = await self._found()
        if not calls:
            raise Untried("no tool succeeds with made-up arguments; name one with --tool and --arguments")
        return min(calls, key=lambda call: call.finishes)

    async def finishing(self) -> Known:
        for call in await self._found():
            if call.finishes:
                return call
        raise Untried("no call was found that ends the episode; name one with --tool and --arguments")

    async def _found(self) -> list[Known]:
        if self._known is None:
            self._known = []
            async with self.socket() as socket:
                await socket.reset()
                offered = [
                    (tool["name"], least_arguments(tool.get("input_schema"))) for tool in await socket.list_tools()
                ]
                given = [(self._target.tool, dict(self._target.arguments))] if self._target.tool else []
                for name, arguments in given or offered[:_TRIED_TOOLS]:
                    await socket.reset()
                    told = (await socket.call(name, arguments)).value
                    if told["type"] == "observation" and told["data"]["observation"].get("error") is None:
                        self._known.append(Known(name, arguments, bool(told["data"]["done"])))
        return self._known

    async def close(self) -> None:
        for session in sorted(self._sessions):
            await self.end_session(session)


def is_schema(answer: Answer) -> bool:
    try:
        return answer.status == 200 and {"action", "observation", "state"} <= answer.object.keys()
    except Unmet:
        return False


async def _speaks(openenv: OpenEnv) -> bool:
    return is_schema(await openenv.get("/schema"))


KIT: Kit[OpenEnv] = Kit("openenv", OpenEnv, _speaks, OpenEnv.close)
case = KIT.case


# Routes.


@case("G2", 'status "healthy"')
async def _health(openenv: OpenEnv) -> None:
    """GET /health"""
    answer = await openenv.get("/health")
    require(answer.status == 200 and answer.object.get("status") == "healthy", answer)


@case("G3", "the objects action, observation and state; the title CallToolAction if the environment has tools")
async def _schema(openenv: OpenEnv) -> None:
    """GET /schema"""
    answer = (await openenv.get("/schema")).require(200)
    require(all(isinstance(answer.object.get(name), dict) for name in ("action", "observation", "state")), answer)
    async with openenv.socket() as socket:
        try:
            await socket.list_tools()
        except Untried:
            return
    require(answer.object["action"].get("title") in ("CallToolAction", "Action", "ListToolsAction"), answer)


@case("G4", "name and description, both text")
async def _metadata(openenv: OpenEnv) -> None:
    """GET /metadata"""
    answer = (await openenv.get("/metadata")).require(200)
    require(all(isinstance(answer.object.get(name), str) for name in ("name", "description")), answer)


@case("G5", "info.version, and all or none of the paths /reset, /step and /state")
async def _openapi(openenv: OpenEnv) -> None:
    """GET /openapi.json"""
    answer = (await openenv.get("/openapi.json")).require(200)
    require(isinstance(answer.object["info"].get("version"), str), answer)
    require(len({path in answer.object["paths"] for path in ("/reset", "/step", "/state")}) == 1, answer)


# Episodes.


@case("G6", "closed with 1000")
async def _close(openenv: OpenEnv) -> None:
    """A message of type close"""
    async with openenv.socket() as socket:
        frame = await socket.say("close")
    require(frame.closed == 1000, frame)


@case("G7", "an observation, reward null, done false")
async def _reset(openenv: OpenEnv) -> None:
    """reset"""
    async with openenv.socket() as socket:
        frame = await socket.reset()
    require(frame.step["reward"] is None and frame.step["done"] is False, frame)


@case("G8", "an observation")
async def _plain_reset(openenv: OpenEnv) -> None:
    """reset with {}"""
    async with openenv.socket() as socket:
        require((frame := await socket.say("reset", {})).step, frame)


@case("G9", "a fresh episode: step_count is 0 again")
async def _reset_again(openenv: OpenEnv) -> None:
    """reset, a step, reset"""
    call = await openenv.known()
    async with openenv.socket() as socket:
        await socket.reset()
        await socket.call(call.tool, call.arguments)
        require((state := await socket.state()).get("step_count") != 0, f"after a step: {state}")
        require((frame := await socket.reset()).step["done"] is False, frame)
        require((state := await socket.state()).get("step_count") == 0, f"after the second reset: {state}")


@case("G10", "that episode_id, and step_count 0")
async def _episode_id(openenv: OpenEnv) -> None:
    """reset with an episode_id, then state"""
    name = f"conform-{uuid.uuid4()}"
    async with openenv.socket() as socket:
        require((frame := await socket.reset(episode_id=name)).step, frame)
        state = await socket.state()
    require((state.get("episode_id"), state.get("step_count")) == (name, 0), state)


@case("G11", "an observation: they are ignored")
async def _unknown_keys(openenv: OpenEnv) -> None:
    """reset with keys that nobody knows"""
    async with openenv.socket() as socket:
        require((frame := await socket.reset(conform_nobody=[1])).step, frame)


@case("G12", "tools, before reset too, each with name, description and input_schema")
async def _list_tools(openenv: OpenEnv) -> None:
    """A step of type list_tools"""
    async with openenv.socket() as socket:
        before = await socket.list_tools()
        await socket.reset()
        for tool in (*before, *await socket.list_tools()):
            require({"name", "description", "input_schema"} <= tool.keys(), f"the tool {tool}")


async def called(openenv: OpenEnv, *, typed: bool) -> None:
    call = await openenv.known()
    async with openenv.socket() as socket:
        await socket.reset()
        frame = await socket.call(call.tool, call.arguments, typed=typed)
    told = frame.observation
    require(told.get("tool_name") == call.tool and "result" in told and told.get("error") is None, frame)


@case("G13", "an observation with tool_name, result and error: null; done is a boolean, reward a number or null")
async def _call(openenv: OpenEnv) -> None:
    """A step of type call_tool"""
    await called(openenv, typed=True)


@case("G14", "the same")
async def _untyped_call(openenv: OpenEnv) -> None:
    """A step that names a tool and no type"""
    await called(openenv, typed=False)


def require_refused(frame: Frame, *kinds: str) -> None:
    error = frame.observation.get("error")
    require(isinstance(error, dict) and error.get("error_type") in kinds, frame)
    require(frame.step["reward"] is None, frame)


@case("G15", "an observation with error_type tool_not_found, reward null")
async def _unknown_tool(openenv: OpenEnv) -> None:
    """A step that calls a tool that is not there"""
    await openenv.known()
    async with openenv.socket() as socket:
        await socket.reset()
        require_refused(await socket.call(_NOBODY, {}), "tool_not_found")


@case("G16", "an observation with error_type invalid_args, reward null")
async def _missing_argument(openenv: OpenEnv) -> None:
    """A step that calls a tool without a required argument"""
    async with openenv.socket() as socket:
        await socket.reset()
        wanting = [tool["name"] for tool in await socket.list_tools() if (tool["input_schema"] or {}).get("required")]
        if not wanting:
            raise Untried("no tool requires an argument")
        require_refused(await socket.call(wanting[0], {}), "invalid_args")


@case("G17", "an error, EXECUTION_ERROR, and the socket lives on")
async def _step_before_reset(openenv: OpenEnv) -> None:
    """A step that calls a tool, before reset"""
    call = await openenv.known()
    async with openenv.socket() as socket:
        (await socket.call(call.tool, call.arguments)).require_error("EXECUTION_ERROR")
        require((frame := await socket.reset()).step, frame)


@case("G18", "an observation with an error, or an error: nothing is graded twice")
async def _after_the_end(openenv: OpenEnv) -> None:
    """A step after done"""
    last = await openenv.finishing()
    async with openenv.socket() as socket:
        await socket.reset()
        await socket.call(last.tool, last.arguments)
        frame = await socket.call(last.tool, last.arguments)
    if frame.value["type"] != "error":
        require_refused(frame, *_ERRORS)


@case("G19", "UNKNOWN_TYPE and INVALID_JSON, and the socket lives on")
async def _strange_messages(openenv: OpenEnv) -> None:
    """A message of a type that is not there, and one that is not JSON"""
    async with openenv.socket() as socket:
        (await socket.say("conform")).require_error("UNKNOWN_TYPE")
        (await socket.text("{bad")).require_error("INVALID_JSON")
        require((frame := await socket.reset()).step, frame)


@case("G19b", "VALIDATION_ERROR, and the socket lives on")
async def _no_object(openenv: OpenEnv) -> None:
    """A message that is JSON and no object"""
    async with openenv.socket() as socket:
        (await socket.text("[1]")).require_error("VALIDATION_ERROR")
        require((frame := await socket.reset()).step, frame)


@case("G20", "VALIDATION_ERROR with a list of errors")
async def _no_data(openenv: OpenEnv) -> None:
    """A step without data"""
    async with openenv.socket() as socket:
        await socket.reset()
        frame = await socket.say("step")
    require(isinstance(frame.require_error("VALIDATION_ERROR").get("errors"), list), frame)


@case("G33", "two sessions: each has the episode_id of its own reset")
async def _two_sockets(openenv: OpenEnv) -> None:
    """reset on two sockets at once"""
    names = [f"conform-{uuid.uuid4()}" for _ in range(2)]
    async with openenv.socket() as one, openenv.socket() as other:
        frames = await asyncio.gather(one.reset(episode_id=names[0]), other.reset(episode_id=names[1]))
        if any(frame.value.get("data", {}).get("code") == "CAPACITY_REACHED" for frame in frames):
            raise Untried("the server has room for one session only")
        found = [(await socket.state()).get("episode_id") for socket in (one, other)]
    require(found == names, f"the states tell of {found}")


# HTTP without a socket, and JSON-RPC.


def require_rpc_error(answer: Answer, code: int) -> None:
    require(answer.status == 200 and answer.object.get("jsonrpc") == "2.0", answer)
    require((answer.object.get("error") or {}).get("code") == code, answer)


def result_of(answer: Answer) -> Mapping[str, Any]:
    found: Mapping[str, Any] = answer.object.get("result") or {}
    return found


@case("G23", "200 each: errors -32600, -32700 and -32601")
async def _rpc_errors(openenv: OpenEnv) -> None:
    """POST /mcp with {}, with no JSON, and with initialize: it is not MCP"""
    require_rpc_error(await openenv.post("/mcp", {}), -32600)
    require_rpc_error(await openenv.post_text("/mcp", b"{bad"), -32700)
    require_rpc_error(await openenv.rpc("initialize"), -32601)


@case("G24", "a session_id with which /ws answers; closed: true, and -32602 the second time")
async def _rpc_session(openenv: OpenEnv) -> None:
    """POST /mcp: openenv/session/create, then openenv/session/close twice"""
    session = await openenv.new_session()
    async with openenv.socket(f"?session_id={session}") as socket:
        require((frame := await socket.reset()).step, frame)
        answer = await openenv.rpc("tools/list", {"session_id": session})
        require(isinstance(result_of(answer).get("tools"), list), answer)
    answer = await openenv.end_session(session)
    require(result_of(answer).get("closed") is True, answer)
    require_rpc_error(await openenv.end_session(session), -32602)


@case("G25", "SESSION_ERROR, then closed")
async def _attached_twice(openenv: OpenEnv) -> None:
    """A second socket for a session that has one"""
    session = await openenv.new_session()
    async with openenv.socket(f"?session_id={session}") as one:
        await one.reset()
        async with openenv.socket(f"?session_id={session}") as other:
            (await other.next()).require_error("SESSION_ERROR")
            require((frame := await other.next()).closed is not None, frame)
    await openenv.end_session(session)


@case("G26", "a message of type mcp, whose result has the tools")
async def _rpc_on_the_socket(openenv: OpenEnv) -> None:
    """tools/list in a message of type mcp"""
    async with openenv.socket() as socket:
        await socket.reset()
        frame = await socket.say("mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}})
    told = frame.data("mcp")
    require(isinstance(told.get("result"), dict) and isinstance(told["result"].get("tools"), list), frame)


@case("G28", "the task of an index; 400 for one that is not there, 404 for an environment that is not there")
async def _tasks(openenv: OpenEnv) -> None:
    """The Task API: POST /{env}/num_tasks and /{env}/task"""
    names = (await openenv.get("/list_environments")).require(200).json
    splits = await openenv.get(f"/{names[0]}/splits")
    if splits.status == 501:
        raise Untried(f"the environment has no tasks: {splits}")
    split = splits.require(200).json[0]["name"]
    count = (await openenv.post(f"/{names[0]}/num_tasks", {"split": split})).require(200).object["num_tasks"]
    answer = await openenv.post(f"/{names[0]}/task", {"split": split, "index": 0})
    require(count == 0 or (answer.status == 200 and isinstance(answer.object.get("task"), dict)), answer)
    (await openenv.post(f"/{names[0]}/task", {"split": split, "index": count})).require(400)
    (await openenv.get(f"/{_NOBODY}/splits")).require(404)


@case("G29", "an observation, reward and done; nothing is left open")
async def _preview(openenv: OpenEnv) -> None:
    """POST /reset"""
    answer = await openenv.post("/reset", openenv.task)
    if answer.status == 404:
        raise Untried("the server runs in production mode, without /reset")
    require(answer.status == 200 and {"observation", "reward", "done"} <= answer.object.keys(), answer)


@case("G29b", "409, with words that say where to step")
async def _step_without_session(openenv: OpenEnv) -> None:
    """POST /step, which has no session to act on"""
    call = await openenv.known()
    action = {"type": "call_tool", "tool_name": call.tool, "arguments": dict(call.arguments)}
    answer = await openenv.post("/step", {"action": action})
    if answer.status == 404:
        raise Untried("the server runs in production mode, without /step")
    require(answer.status == 409 and "detail" in answer.object, answer)
