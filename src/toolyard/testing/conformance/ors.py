"""The cases of the Open Reward Standard: discovery, sessions, calls and their events."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from toolyard.testing.arguments import least_arguments
from toolyard.testing.conformance.case import Kit, Untried
from toolyard.testing.conformance.events import Event, read_events
from toolyard.testing.conformance.http import Answer, Headers, Http, Unmet, read_json, require
from toolyard.testing.conformance.target import Target

_SID = "X-Session-ID"
_NOBODY = "conform-nobody"
_TYPES = ("train", "validation", "test")
_TRIED_TOOLS = 8
"""So many tools are called with made-up arguments, in search of a call that succeeds."""
_SLICE = 4096


@dataclass(frozen=True, slots=True)
class Called:
    """The answer to a call, and the events it is made of."""

    answer: Answer
    events: Sequence[Event]

    @classmethod
    def of(cls, answer: Answer) -> Called:
        require(answer.status == 200 and answer.kind == "text/event-stream", answer)
        return cls(answer, read_events(answer))

    @property
    def call_id(self) -> str:
        require(self.events and self.events[0].name == "task_id", self.answer)
        return self.events[0].data

    @property
    def result(self) -> dict[str, Any]:
        """What the slices add up to."""
        require(self.events and self.events[-1].name == "end", self.answer)
        value = read_json("".join(event.data for event in self.events if event.name in ("chunk", "end")))
        require(isinstance(value, dict) and isinstance(value.get("ok"), bool), self.answer)
        found: dict[str, Any] = value
        return found

    @property
    def output(self) -> dict[str, Any]:
        require(self.result["ok"], self.answer)
        found: dict[str, Any] = self.result["output"]
        return found

    @property
    def failure(self) -> str:
        require(not self.result["ok"], self.answer)
        return str(self.result["error"])

    @property
    def error(self) -> str:
        """The text of the only event, `error`."""
        require([event.name for event in self.events][-1:] == ["error"], self.answer)
        return self.events[-1].data

    @property
    def succeeded(self) -> bool:
        return self.events[-1].name == "end" and self.result["ok"] is True


@dataclass(frozen=True, slots=True)
class Known:
    """A call that succeeds."""

    tool: str
    arguments: Mapping[str, Any]
    finishes: bool


class Ors:
    """Asks a server about itself once, and remembers it for all cases."""

    def __init__(self, http: Http, target: Target) -> None:
        self._http = http
        self._target = target
        self._open: set[str] = set()
        self._environments: list[str] = []
        self._task: tuple[str, int] | None = None
        self._known: list[Known] | None = None

    async def get(self, path: str, headers: Headers = ()) -> Answer:
        return await self._http.ask("GET", path, headers=headers)

    async def post(self, path: str, body: Any = ..., headers: Headers = (), sid: str = "") -> Answer:
        named = [(_SID, sid)] if sid else []
        pairs = headers.items() if isinstance(headers, Mapping) else headers
        return await self._http.ask("POST", path, json=body, headers=[*named, *pairs])

    # What there is.

    async def environments(self) -> list[str]:
        if not self._environments:
            answer = (await self.get("/list_environments")).require(200)
            require(isinstance(answer.json, list) and answer.json, answer)
            self._environments = list(answer.json)
        return self._environments

    async def environment(self) -> str:
        return self._target.environment or (await self.environments())[0]

    async def env(self, rest: str) -> str:
        return f"/{await self.environment()}/{rest}"

    async def splits(self) -> list[str]:
        answer = (await self.get(await self.env("splits"))).require(200)
        return [split["name"] for split in answer.json]

    async def count(self, split: str) -> int:
        answer = (await self.post(await self.env("num_tasks"), {"split": split})).require(200)
        count = answer.object.get("num_tasks")
        require(isinstance(count, int), answer)
        return int(str(count))

    async def place(self) -> tuple[str, int]:
        """The split and the number of the task that is played."""
        if self._task is None:
            wanted = [self._target.split] if self._target.split else await self.splits()
            for split in wanted:
                if await self.count(split) > 0:
                    self._task = split, self._target.index
                    break
            else:
                raise Untried("no split has a task")
        return self._task

    async def task(self) -> dict[str, Any]:
        split, index = await self.place()
        return {"split": split, "index": index}

    # Sessions.

    async def create(self, sid: str, body: Mapping[str, Any] | None = None, headers: Headers = ()) -> Answer:
        """Ask for a session; without a body, for one with the task that is played."""
        body = {"env_name": await self.environment(), **await self.task()} if body is None else body
        self._open.add(sid)
        return await self.post("/create", dict(body), headers, sid)

    async def end(self, sid: str) -> Answer:
        answer = await self.post("/delete", sid=sid)
        self._open.discard(sid)
        return answer

    @asynccontextmanager
    async def session(self) -> AsyncIterator[str]:
        sid = new_sid()
        (await self.create(sid)).require(200)
        try:
            yield sid
        finally:
            await self.end(sid)

    async def close(self) -> None:
        for sid in sorted(self._open):
            await self.end(sid)

    async def tools(self, sid: str) -> list[dict[str, Any]]:
        answer = (await self.get(await self.env("task_tools"), {_SID: sid})).require(200)
        require(isinstance(answer.object.get("tools"), list), answer)
        return list(answer.object["tools"])

    # Calls.

    async def asked(self, sid: str, name: str, arguments: Any = ..., **more: Any) -> Answer:
        body = {"name": name, **({} if arguments is ... else {"input": arguments}), **more}
        return await self.post(await self.env("call"), body, {"Accept": "text/event-stream"}, sid)

    async def call(self, sid: str, name: str, arguments: Any, **more: Any) -> Called:
        return Called.of(await self.asked(sid, name, arguments, **more))

    async def known(self) -> Known:
        """A call that succeeds; if there is one that does not end the episode, such a one."""
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
            async with self.session() as sid:
                offered = [(tool["name"], least_arguments(tool["input_schema"])) for tool in await self.tools(sid)]
            given = [(self._target.tool, dict(self._target.arguments))] if self._target.tool else []
            for name, arguments in given or offered[:_TRIED_TOOLS]:
                if (call := await self._tried(name, arguments)) is not None:
                    self._known.append(call)
        return self._known

    async def _tried(self, name: str, arguments: dict[str, Any]) -> Known | None:
        async with self.session() as sid:
            try:
                called = await self.call(sid, name, arguments)
            except (Unmet, TimeoutError):  # a tool that works long, or a server that cases will tell of
                return None
        return Known(name, arguments, bool(called.output.get("finished"))) if called.succeeded else None

    async def play(self, sid: str, **more: Any) -> Called:
        call = await self.known()
        return await self.call(sid, call.tool, call.arguments, **more)

    @property
    def given_tool(self) -> str:
        return self._target.tool


def new_sid() -> str:
    return f"conform-{uuid.uuid4()}"


async def _speaks(ors: Ors) -> bool:
    """OpenEnv lists environments under the same path, but hands out no ids."""
    answer = await ors.get("/list_environments")
    if answer.status != 200 or not isinstance(answer.json, list):
        return False
    return (await ors.post("/create_session", {})).status == 200


KIT: Kit[Ors] = Kit("ors", Ors, _speaks, Ors.close)
case = KIT.case


def refused(answer: Answer, status: int, detail: str) -> None:
    require(answer.status == status and answer.object.get("detail") == detail, answer)


# Discovery and routing.


@case("E1", '200, the body exactly {"status": "ok"}')
async def _health(ors: Ors) -> None:
    """GET /health"""
    answer = await ors.get("/health")
    require(answer.status == 200 and answer.json == {"status": "ok"}, answer)


@case("E2", "200, an array of different names in lower case")
async def _environments(ors: Ors) -> None:
    """GET /list_environments"""
    answer = await ors.get("/list_environments")
    names = answer.json
    require(answer.status == 200 and isinstance(names, list) and names, answer)
    require(all(isinstance(name, str) and name == name.lower() for name in names), answer)
    require(len(set(names)) == len(names), answer)


@case("E3", "the same splits as in lower case, each with a name and a type: train, validation or test")
async def _splits(ors: Ors) -> None:
    """GET /{ENV}/splits, the name in upper case"""
    name = await ors.environment()
    answer, plain = await ors.get(f"/{name.upper()}/splits"), await ors.get(f"/{name}/splits")
    require(answer.status == 200 and answer.json == plain.json, answer)
    for split in answer.json:
        require(split.keys() == {"name", "type"} and split["type"] in _TYPES, answer)


@case("E4", "308 to /{default}/splits?a=b, with no body")
async def _redirect(ors: Ors) -> None:
    """GET /splits?a=b"""
    answer = await ors.get("/splits?a=b")
    wanted = f"/{(await ors.environments())[0]}/splits?a=b"
    require(answer.status == 308 and answer.headers.get("location", "").endswith(wanted) and not answer.body, answer)


@case("E5", "404 (or 308 to a path that is 404)", difference="D-6")
async def _unknown_environment(ors: Ors) -> None:
    """GET /{unknown}/tools"""
    answer = await ors.get(f"/{_NOBODY}/tools")
    if answer.status == 308:
        answer = await ors.get(answer.headers.get("location", ""))
    require(answer.status == 404 and "detail" in answer.object, answer)


@case("E6", "200, a list of JSON objects, and env_name as the path had it")
async def _tasks(ors: Ors) -> None:
    """POST /{Env}/tasks with a split"""
    split, _ = await ors.place()
    name = (await ors.environment()).title()
    answer = await ors.post(f"/{name}/tasks", {"split": split})
    if answer.status == 400 and "index-based" in answer.body.decode():
        raise Untried("this environment lists no tasks")
    require(answer.status == 200 and answer.object.get("env_name") == name, answer)
    require(all(isinstance(task, dict) for task in answer.object["tasks"]), answer)


@case("E7", '400 {"detail": "Invalid split"}')
async def _unknown_split(ors: Ors) -> None:
    """POST /{env}/tasks with a split that is not there"""
    refused(await ors.post(await ors.env("tasks"), {"split": _NOBODY}), 400, "Invalid split")


@case("E9", '422, a list of problems, the first at ["body", "split"]')
async def _no_split(ors: Ors) -> None:
    """POST /{env}/tasks without a split"""
    answer = await ors.post(await ors.env("tasks"), {})
    require(answer.status == 422 and answer.object["detail"][0]["loc"] == ["body", "split"], answer)


@case("E10", "422, a problem of type extra_forbidden")
async def _extra_key(ors: Ors) -> None:
    """POST /{env}/tasks with a key that nobody knows"""
    split, _ = await ors.place()
    answer = await ors.post(await ors.env("tasks"), {"split": split, "conform": 1})
    require(answer.status == 422 and answer.object["detail"][0]["type"] == "extra_forbidden", answer)


@case("E11", "200, an integer, and as many tasks as are listed")
async def _count(ors: Ors) -> None:
    """POST /{env}/num_tasks"""
    split, _ = await ors.place()
    answer = await ors.post(await ors.env("num_tasks"), {"split": split})
    require(answer.status == 200 and type(answer.object.get("num_tasks")) is int, answer)
    listed = await ors.post(await ors.env("tasks"), {"split": split})
    require(listed.status != 200 or len(listed.object["tasks"]) == answer.json["num_tasks"], answer)


@case("E12", "the last task, the same as its number gives, and env_name beside it", difference="D-8")
async def _last_task(ors: Ors) -> None:
    """POST /{env}/task with index -1"""
    split, _ = await ors.place()
    path, last = await ors.env("task"), await ors.count(split) - 1
    answer = await ors.post(path, {"split": split, "index": -1})
    same = await ors.post(path, {"split": split, "index": last})
    require(answer.status == 200 and isinstance(answer.object.get("task"), dict), answer)
    require(answer.object["task"] == same.object.get("task"), answer)
    require(answer.object.get("env_name") == await ors.environment(), answer)


@case("E13", '400 {"detail": "Invalid index"}')
async def _bad_index(ors: Ors) -> None:
    """POST /{env}/task with the first index beyond either end"""
    split, _ = await ors.place()
    count = await ors.count(split)
    for index in (count, -count - 1):
        refused(await ors.post(await ors.env("task"), {"split": split, "index": index}), 400, "Invalid index")


@case("E14", "the same answer as /task", difference="D-7")
async def _alias(ors: Ors) -> None:
    """POST /{env}/get_task"""
    body = await ors.task()
    answer = await ors.post(await ors.env("get_task"), body)
    require(answer.status == 200, answer)
    require(answer.object["task"] == (await ors.post(await ors.env("task"), body)).object["task"], answer)


async def tasks_from(ors: Ors, **limits: int | None) -> list[Any]:
    split, _ = await ors.place()
    answer = (await ors.post(await ors.env("task_range"), {"split": split, **limits})).require(200)
    return list(answer.object["tasks"])


@case("E15", "the tasks from that one to the end, and env_name beside them", difference="D-8")
async def _range_from_the_end(ors: Ors) -> None:
    """POST /{env}/task_range with a negative start"""
    split, _ = await ors.place()
    answer = await ors.post(await ors.env("task_range"), {"split": split, "start": -1})
    last = await ors.post(await ors.env("task"), {"split": split, "index": -1})
    require(answer.status == 200 and answer.object["tasks"] == [last.object["task"]], answer)
    require(answer.object.get("env_name") == await ors.environment(), answer)


@case("E16", "no error: limits beyond either end are the ends, and start >= stop is no task")
async def _range_limits(ors: Ors) -> None:
    """POST /{env}/task_range with limits that are not there"""
    split, _ = await ors.place()
    count = await ors.count(split)
    require(len(tasks := await tasks_from(ors, start=count - 1, stop=count + 100)) == 1, f"to the end: {len(tasks)}")
    require(len(tasks := await tasks_from(ors, start=-count - 100, stop=1)) == 1, f"from before all: {len(tasks)}")
    require((tasks := await tasks_from(ors, start=1, stop=0)) == [], f"start 1, stop 0: {len(tasks)}")


@case("E18", "each with exactly name, description and input_schema, an object or null", difference="D-15")
async def _tools(ors: Ors) -> None:
    """GET /{env}/tools"""
    answer = await ors.get(await ors.env("tools"))
    require(answer.status == 200 and isinstance(answer.object.get("tools"), list), answer)
    for tool in answer.json["tools"]:
        require(tool.keys() == {"name", "description", "input_schema"}, f"the tool {tool}")
        require(isinstance(tool["description"], str), f"the tool {tool}")
        require(tool["input_schema"] is None or isinstance(tool["input_schema"], dict), f"the tool {tool}")


@case("E19", "200: a base URL that ends with a slash makes this path")
async def _double_slash(ors: Ors) -> None:
    """POST //ping of a living session"""
    async with ors.session() as sid:
        (await ors.post("//ping", sid=sid)).require(200)


# Sessions.


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
    answer = await ors.create(new_sid(), {"env_name": _NOBODY, "task_spec": {}})
    refused(answer, 404, f"unknown environment '{_NOBODY}'")


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
        answer = await ors.get(await ors.env("prompt"), {_SID: sid})
    require(answer.status == 200 and isinstance(answer.json, list), answer)
    require(all(is_block(block) for block in answer.json), answer)


def is_block(block: Any) -> bool:
    keys = {"text": {"text", "detail", "type"}, "image": {"data", "mimeType", "detail", "type"}}
    return isinstance(block, dict) and block.keys() == keys.get(block.get("type", ""))


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
    answer = await ors.get(await ors.env("task_tools"), {_SID: new_sid()})
    refused(answer, 404, "Active environment not found")


# Calls.


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


@case("E42", "ok: false, error \"'…' is not a valid tool\"")
async def _unknown_tool(ors: Ors) -> None:
    """POST /{env}/call of a tool that is not there"""
    async with ors.session() as sid:
        called = await ors.call(sid, _NOBODY, {})
    require(called.failure == f"'{_NOBODY}' is not a valid tool", called.answer)


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
            require(called.failure == f"'{name}' is not a valid tool", called.answer)


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
        again = await ors.call(sid, _NOBODY, {}, task_id=called.call_id)
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
    answer = await ors.asked(new_sid(), _NOBODY, {})
    require(answer.kind == "application/json", answer)
    refused(answer, 404, "Active environment not found")
