"""Cases of ORS: from an id to a session, its prompt, its tools and its end."""

from __future__ import annotations

import uuid

from toolyard.testing.conformance.case import Chapter
from toolyard.testing.conformance.http import read_json, require
from toolyard.testing.conformance.ors.probe import NOBODY, SID, Called, Ors, is_block, new_sid, refused

CHAPTER: Chapter[Ors] = Chapter("ors")
case = CHAPTER.case


@case("E20", 'JSON {"sid": …}', difference="D-2")
async def _new_id_as_json(ors: Ors) -> None:
    """POST /create_session, Accept: */*"""
    answer = await ors.post("/create_session", {}, {"Accept": "*/*"})
    require(answer.status == 200 and answer.kind == "application/json", answer)
    require(answer.object.keys() == {"sid"} and uuid.UUID(answer.json["sid"]), answer)


@case("E21", "the events task_id, with the id, and end", difference="D-2")
async def _new_id_as_events(ors: Ors) -> None:
    """POST /create_session, Accept: text/event-stream"""
    called = Called.of(await ors.post("/create_session", {}, {"Accept": "text/event-stream"}))
    require(called.call_id and [event.name for event in called.events] == ["task_id", "end"], called.answer)
    end = called.events[-1].data
    require(not end or read_json(end) == {"sid": called.call_id}, called.answer)


@case("E22", 'another id each time, and no session: /ping is 404 "Active environment not found"')
async def _only_an_id(ors: Ors) -> None:
    """POST /create_session, twice"""
    accept = {"Accept": "text/event-stream"}
    one, other = [Called.of(await ors.post("/create_session", {}, accept)).call_id for _ in range(2)]
    require(one != other, f"the same id twice: {one}")
    refused(await ors.post("/ping", sid=one), 404, "Active environment not found")


@case("E23", '400 {"detail": "X-Session-ID header is required"}')
async def _without_id(ors: Ors) -> None:
    """POST /create without X-Session-ID"""
    refused(await ors.post("/create", await ors.task()), 400, "X-Session-ID header is required")


@case("E24", "422 each")
async def _which_task(ors: Ors) -> None:
    """POST /create with no task, with a split alone, with a task and an index"""
    task = await ors.task()
    for body in ({}, {"split": task["split"]}, {"task_spec": {}, **task}):
        (await ors.create(new_sid(), body)).require(422)


@case("E25", '400 "Invalid index"; the id is free: a right index opens the session')
async def _id_stays_free(ors: Ors) -> None:
    """POST /create with an index that is not there, then with one that is"""
    sid, (split, _) = new_sid(), await ors.place()
    wrong = {"env_name": await ors.environment(), "split": split, "index": await ors.count(split)}
    refused(await ors.create(sid, wrong), 400, "Invalid index")
    (await ors.create(sid)).require(200)


@case("E26", "404 \"unknown environment '…'\"")
async def _create_unknown(ors: Ors) -> None:
    """POST /create with an environment that is not there"""
    answer = await ors.create(new_sid(), {"env_name": NOBODY, "task_spec": {}})
    refused(answer, 404, f"unknown environment '{NOBODY}'")


@case("E27", '200 {"sid": …}', difference="D-11")
async def _secrets_in_the_body(ors: Ors) -> None:
    """POST /create with secrets in the body"""
    sid = new_sid()
    body = {"env_name": (await ors.environment()).upper(), **await ors.task(), "secrets": {"conform": "x"}}
    answer = await ors.create(sid, body)
    require(answer.status == 200 and answer.json == {"sid": sid}, answer)


@case("E28", '200 {"sid": …}', difference="D-11")
async def _secrets_in_a_header(ors: Ors) -> None:
    """POST /create with X-Secrets, base64 of JSON"""
    sid, secrets = new_sid(), "eyJjb25mb3JtIjp7InZhbHVlIjoieCJ9fQ=="  # {"conform":{"value":"x"}}
    answer = await ors.create(sid, headers={"X-Secrets": secrets})
    require(answer.status == 200 and answer.json == {"sid": sid}, answer)


@case("E29", '400 {"detail": "Session already exists"}', difference="D-20")
async def _twice(ors: Ors) -> None:
    """POST /create with the id of a living session"""
    async with ors.session() as sid:
        refused(await ors.create(sid), 400, "Session already exists")


@case("E31", "200, a bare array of text blocks (text, detail, type) and image blocks (data, mimeType, detail, type)")
async def _prompt(ors: Ors) -> None:
    """GET /{env}/prompt"""
    async with ors.session() as sid:
        answer = await ors.get(await ors.env("prompt"), {SID: sid})
    require(answer.status == 200 and isinstance(answer.json, list), answer)
    require(all(is_block(block) for block in answer.json), answer)


@case("E33", '200 {"status": "ok"} while the session lives, 404 "Active environment not found" after it')
async def _ping(ors: Ors) -> None:
    """POST /ping"""
    async with ors.session() as sid:
        answer = await ors.post("/ping", sid=sid)
        require(answer.status == 200 and answer.json == {"status": "ok"}, answer)
    refused(await ors.post("/ping", sid=sid), 404, "Active environment not found")


@case("E35", '200 {"sid": …} each time')
async def _delete_again(ors: Ors) -> None:
    """POST /delete of an unknown session, twice"""
    sid = new_sid()
    for _ in range(2):
        answer = await ors.end(sid)
        require(answer.status == 200 and answer.json == {"sid": sid}, answer)


@case("E36", "200: the id is free again")
async def _after_delete(ors: Ors) -> None:
    """POST /create with the id of a session that was deleted"""
    async with ors.session() as sid:
        pass
    (await ors.create(sid)).require(200)


@case("E38", "all tools of /tools, no name twice, and the one given with --tool", difference="D-1")
async def _task_tools(ors: Ors) -> None:
    """GET /{env}/task_tools"""
    shared = (await ors.get(await ors.env("tools"))).require(200).object["tools"]
    async with ors.session() as sid:
        names = [tool["name"] for tool in await ors.tools(sid)]
    require({tool["name"] for tool in shared} <= set(names) and len(names) == len(set(names)), names)
    require(not ors.given_tool or ors.given_tool in names, f"{ors.given_tool} is not one of {names}")


@case("E39", '404 {"detail": "Active environment not found"}')
async def _task_tools_of_nobody(ors: Ors) -> None:
    """GET /{env}/task_tools of an unknown session"""
    answer = await ors.get(await ors.env("task_tools"), {SID: new_sid()})
    refused(answer, 404, "Active environment not found")
