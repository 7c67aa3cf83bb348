"""Cases of ORS: which environments, splits, tasks and tools there are."""

from __future__ import annotations

from typing import Any

from toolyard.testing.conformance.case import Chapter, Untried
from toolyard.testing.conformance.http import require
from toolyard.testing.conformance.ors.probe import NOBODY, Ors, refused

_TYPES = ("train", "validation", "test")

CHAPTER: Chapter[Ors] = Chapter("ors")
case = CHAPTER.case


@case("E1", '200, the body exactly {"status": "ok"}; only "isolation" may stand beside it')
async def _health(ors: Ors) -> None:
    """GET /health"""
    answer = await ors.get("/health")
    told = answer.json
    require(answer.status == 200 and isinstance(told, dict), answer)
    require({**told, "isolation": None} == {"status": "ok", "isolation": None}, answer)


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
    answer = await ors.get(f"/{NOBODY}/tools")
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
    refused(await ors.post(await ors.env("tasks"), {"split": NOBODY}), 400, "Invalid split")


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
