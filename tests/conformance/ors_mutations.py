"""For each case of ORS, a server that fails it."""

from __future__ import annotations

from collections.abc import Mapping

from tests.conformance.mutant import Exchange, Mutation, at, body, drop, header, put, second_time, status, text, told

_EVENTS = "text/event-stream"
_OK = "event: task_id\ndata: t-1\n\nevent: end\ndata: {}\n\n"
_RAN = body(_OK.format('{"ok":true,"output":{"blocks":[],"metadata":null,"reward":null,"finished":false}}'), _EVENTS)
_INVALID = body(_OK.format('{"ok":false,"error":"Tool input validation error: no number"}'), _EVENTS)
_UNKNOWN = body("event: error\ndata: unknown task_id\n\n", _EVENTS)


def has_id(exchange: Exchange) -> bool:
    return "task_id" in exchange.asked


def has_number_as_text(exchange: Exchange) -> bool:
    return any(isinstance(value, str) and value[:1].isdigit() for value in exchange.asked["input"].values())


ORS: Mapping[str, Mutation] = {
    "E1": at("/health", put(version=1)),
    "E2": at("/list_environments", told(lambda names: [name.title() for name in names])),
    "E3": at("/MATHENV/splits", text("validation", "other")),
    "E4": at("/splits?a=b", header("Location", "/mathenv/splits")),
    "E5": at("/conform-nobody/tools", status(200), body('{"tools":[]}')),
    "E6": at("/Mathenv/tasks", put(env_name="mathenv")),
    "E7": at("/tasks", put(detail="no such split")),
    "E9": at("/tasks", text('["body","split"]', '["split"]')),
    "E10": at("/tasks", status(200)),
    "E11": at("/num_tasks", told(lambda answer: {"num_tasks": answer["num_tasks"] + 1})),
    "E12": at("/task", drop("env_name")),
    "E13": at("/task", status(404, was=400)),
    "E14": at("/get_task", status(404)),
    "E15": at("/task_range", drop("env_name")),
    "E16": at("/task_range", text('"tasks":[]', '"tasks":[{}]')),
    "E18": at("/tools", told(lambda answer: {"tools": [{**tool, "shared": True} for tool in answer["tools"]]})),
    "E19": at("//ping", status(404)),
    "E20": at("/create_session", header("Content-Type", _EVENTS)),
    "E21": at("/create_session", text("event: task_id", "event: id")),
    "E22": at("/ping", status(200)),
    "E23": at("/create", status(200)),
    "E24": at("/create", status(400, was=422)),
    "E25": at("/create", second_time(status(400))),
    "E26": at("/create", text("unknown environment", "no such environment")),
    "E27": at("/create", status(422), when=lambda exchange: "secrets" in exchange.asked),
    "E28": at("/create", status(400), when=lambda exchange: "X-Secrets" in exchange.sent),
    "E29": at("/create", status(200)),
    "E31": at("/prompt", text('"detail":null,', "")),
    "E33": at("/ping", status(200)),
    "E35": at("/delete", status(404)),
    "E36": at("/create", second_time(status(400))),
    "E38": at("/task_tools", told(lambda answer: {"tools": answer["tools"][1:]})),
    "E39": at("/task_tools", status(200), body('{"tools":[]}')),
    "E40": at("/call", text('"metadata":null,', "")),
    "E41": at("/call", status(400, was=422)),
    "E42": at("/call", text("is not a valid tool", "is unknown")),
    "E43": at("/call", text("Tool input validation error", "Wrong")),
    "E44": at("/call", _INVALID, when=has_number_as_text),
    "E46": at("/call", _RAN),
    "E49": at("/call", text("event: chunk", "event: part")),
    "E52": at("/call", text("data: ", "data:  ")),
    "E56": at("/call", _RAN, when=has_id),
    "E58": at("/call", _UNKNOWN, when=has_id),
    "E59": at("/call", _RAN, when=lambda exchange: exchange.asked.get("task_id") == ""),
    "E60": at("/call", _RAN, when=has_id),
    "E62": at("/call", text('"ok":false', '"ok":true')),
    "E64": at("/call", status(200), header("Content-Type", _EVENTS)),
}
