"""Cases of OpenEnv: episodes over a WebSocket, one connection each."""

from __future__ import annotations

import asyncio
import uuid

from toolyard.testing.conformance.case import Chapter, Untried
from toolyard.testing.conformance.http import require
from toolyard.testing.conformance.openenv.probe import ERRORS, NOBODY, Frame, OpenEnv

CHAPTER: Chapter[OpenEnv] = Chapter("openenv")
case = CHAPTER.case


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
        require_refused(await socket.call(NOBODY, {}), "tool_not_found")


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
        require_refused(frame, *ERRORS)


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
