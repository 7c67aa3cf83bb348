"""Cases of OpenEnv: its HTTP routes, and its own JSON-RPC."""

from __future__ import annotations

import asyncio

from toolyard.testing.conformance.case import Chapter, Untried
from toolyard.testing.conformance.http import Answer, require
from toolyard.testing.conformance.openenv.probe import NOBODY, OpenEnv, result_of

_LOOKS, _PAUSE = 20, 0.1

CHAPTER: Chapter[OpenEnv] = Chapter("openenv")
case = CHAPTER.case


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


def require_rpc_error(answer: Answer, code: int) -> None:
    require(answer.status == 200 and answer.object.get("jsonrpc") == "2.0", answer)
    require((answer.object.get("error") or {}).get("code") == code, answer)


@case("G23", "200 each: errors -32600, -32700 and -32601")
async def _rpc_errors(openenv: OpenEnv) -> None:
    """POST /mcp with {}, with no JSON, and with initialize: it is not MCP"""
    require_rpc_error(await openenv.post("/mcp", {}), -32600)
    require_rpc_error(await openenv.post_text("/mcp", b"{bad"), -32700)
    require_rpc_error(await openenv.rpc("initialize"), -32601)


@case(
    "G24", "a session_id with which /ws answers; closed: true, or closing: true until the socket is gone; then -32602"
)
async def _rpc_session(openenv: OpenEnv) -> None:
    """POST /mcp: openenv/session/create, then openenv/session/close twice"""
    session = await openenv.new_session()
    async with openenv.socket(f"?session_id={session}") as socket:
        require((frame := await socket.reset()).step, frame)
        answer = await openenv.rpc("tools/list", {"session_id": session})
        require(isinstance(result_of(answer).get("tools"), list), answer)
    answer = await openenv.end_session(session)
    told = result_of(answer)
    require(told.get("closed") is True or told.get("closing") is True, answer)
    for _ in range(_LOOKS):  # the server may not have heard yet that the socket is closed
        again = await openenv.end_session(session)
        if result_of(again).get("closing") is not True:
            break
        await asyncio.sleep(_PAUSE)
    require_rpc_error(again, -32602)


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
    (await openenv.get(f"/{NOBODY}/splits")).require(404)


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
