"""Cases of ORS: calls, their results as events, and calls that are picked up again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from toolyard.agents.arguments import least_arguments
from toolyard.testing.conformance.case import Chapter, Untried
from toolyard.testing.conformance.http import require
from toolyard.testing.conformance.ors.probe import NOBODY, Called, Ors, is_block, new_sid, refused

_SLICE = 4096

CHAPTER: Chapter[Ors] = Chapter("ors")
case = CHAPTER.case


@case("E40", "the events task_id and end; ok, and an output of blocks, metadata, reward and finished")
async def _call(ors: Ors) -> None:
    """POST /{env}/call"""
    await ors.known()
    async with ors.session() as sid:
        called = await ors.play(sid)
    require(called.call_id and called.events[-1].name == "end", called.answer)
    require(called.result.keys() == {"ok", "output"}, called.answer)
    output = called.output
    require(output.keys() == {"blocks", "metadata", "reward", "finished"}, called.answer)
    require(isinstance(output["finished"], bool) and all(map(is_block, output["blocks"])), called.answer)
    require(output["reward"] is None or type(output["reward"]) in (int, float), called.answer)


@case("E41", "422 each")
async def _bad_input(ors: Ors) -> None:
    """POST /{env}/call with no input, with null, with a list"""
    async with ors.session() as sid:
        name = (await ors.tools(sid))[0]["name"]
        inputs: tuple[Any, ...] = (..., None, [])
        for arguments in inputs:
            (await ors.asked(sid, name, arguments)).require(422)


@case("E42", "ok: false, error begins \"'…' is not a valid tool\"")
async def _unknown_tool(ors: Ors) -> None:
    """POST /{env}/call of a tool that is not there"""
    async with ors.session() as sid:
        called = await ors.call(sid, NOBODY, {})
    require(called.failure.startswith(f"'{NOBODY}' is not a valid tool"), called.answer)


@case("E43", 'ok: false, error "Tool input validation error: …"')
async def _missing_argument(ors: Ors) -> None:
    """POST /{env}/call without a required argument"""
    async with ors.session() as sid:
        wanting = [tool["name"] for tool in await ors.tools(sid) if required(tool)]
        if not wanting:
            raise Untried("no tool requires an argument")
        called = await ors.call(sid, wanting[0], {})
    require(called.failure.startswith("Tool input validation error: "), called.answer)


def required(tool: Mapping[str, Any]) -> Sequence[str]:
    found: Sequence[str] = (tool["input_schema"] or {}).get("required", [])
    return found


@case("E44", "accepted: no validation error", difference="D-14")
async def _number_as_text(ors: Ors) -> None:
    """POST /{env}/call with a number written as text"""
    async with ors.session() as sid:
        for tool in await ors.tools(sid):
            schemas = (tool["input_schema"] or {}).get("properties", {})
            numbers = [name for name in required(tool) if schemas.get(name, {}).get("type") in ("number", "integer")]
            if numbers:
                least = least_arguments(tool["input_schema"])
                called = await ors.call(sid, tool["name"], least | {name: str(least[name]) for name in numbers})
                result = called.result if called.events[-1].name == "end" else {}
                require("validation" not in str(result.get("error")), called.answer)
                return
    raise Untried("no tool requires a number")


@case("E46", "ok: false, not a valid tool")
async def _methods(ors: Ors) -> None:
    """POST /{env}/call of methods that are no tools: setup, get_prompt, _call_tool"""
    async with ors.session() as sid:
        for name in ("setup", "get_prompt", "_call_tool"):
            called = await ors.call(sid, name, {})
            require(called.failure.startswith(f"'{name}' is not a valid tool"), called.answer)


@case("E49", f"chunk events and an end, none longer than {_SLICE} characters", difference="D-5")
async def _chunks(ors: Ors) -> None:
    """A result of more than 4096 characters"""
    called = await long_call(ors)
    names = [event.name for event in called.events]
    require(names[0] == "task_id" and set(names[1:-1]) == {"chunk"} and names[-1] == "end", f"events {names}")
    longest = max(len(event.data) for event in called.events)
    require(longest <= _SLICE, f"{longest} characters in one event")
    require(called.result, called.answer)


@case("E52", "no data begins or ends with whitespace: clients strip it", difference="D-4")
async def _edges(ors: Ors) -> None:
    """The slices of a result of more than 4096 characters"""
    called = await long_call(ors)
    cut = [event for event in called.events if event.data != event.data.strip()]
    require(not cut, f"{len(cut)} of {len(called.events)} events, such as …{cut[0].data[-20:]!r}" if cut else "")


async def long_call(ors: Ors) -> Called:
    await ors.known()
    async with ors.session() as sid:
        called = await ors.play(sid)
    if sum(len(event.data) for event in called.events if event.name != "task_id") <= _SLICE:
        raise Untried("the call's result fits into one event; name one whose result does not, with --tool")
    return called


@case("E56", "the same id and the same result, and the repeat's name and input do not matter")
async def _again(ors: Ors) -> None:
    """POST /{env}/call with the task_id of a call that is over"""
    await ors.known()
    async with ors.session() as sid:
        called = await ors.play(sid)
        again = await ors.call(sid, NOBODY, {}, task_id=called.call_id)
    require(again.call_id == called.call_id and again.result == called.result, again.answer)


@case(
    "E58", "the tool runs, the task_id event repeats that id, and a second request replays the result", difference="D-3"
)
async def _own_id(ors: Ors) -> None:
    """POST /{env}/call with a task_id that the client chose"""
    await ors.known()
    async with ors.session() as sid:
        called = await ors.play(sid, task_id="conform-1")
        again = await ors.play(sid, task_id="conform-1")
    require(called.succeeded and called.call_id == "conform-1", called.answer)
    require(again.result == called.result, again.answer)


@case("E59", 'the event error, "unknown task_id", and nothing runs')
async def _unknown_ids(ors: Ors) -> None:
    """POST /{env}/call with an id that looks like the server's own, and with an empty one"""
    await ors.known()
    async with ors.session() as sid:
        issued = (await ors.play(sid)).call_id
        for call_id in (issued[:-4] + ("0000" if issued[-4:] != "0000" else "1111"), ""):
            again = await ors.play(sid, task_id=call_id)
            require(again.error == "unknown task_id", again.answer)


@case("E60", 'the event error, "unknown task_id"', difference="D-17")
async def _foreign_id(ors: Ors) -> None:
    """POST /{env}/call with the task_id of another session's call"""
    await ors.known()
    async with ors.session() as one, ors.session() as other:
        called = await ors.play(one)
        taken = await ors.play(other, task_id=called.call_id)
    require(taken.error == "unknown task_id", taken.answer)


@case("E62", "ok: false: nothing is graded twice", difference="D-12")
async def _after_the_end(ors: Ors) -> None:
    """POST /{env}/call after a result with finished: true"""
    last = await ors.finishing()
    async with ors.session() as sid:
        await ors.call(sid, last.tool, last.arguments)
        called = await ors.call(sid, last.tool, last.arguments)
    require(called.failure, called.answer)


@case("E64", '404 {"detail": "Active environment not found"}, not events')
async def _call_of_nobody(ors: Ors) -> None:
    """POST /{env}/call of an unknown session"""
    answer = await ors.asked(new_sid(), NOBODY, {})
    require(answer.kind == "application/json", answer)
    refused(answer, 404, "Active environment not found")
