"""Environments: what each of them is, its tasks to browse, and its tools."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence

from toolyard.asgi import HttpError
from toolyard.core.encoding import encode
from toolyard.core.environment import Environment, lists_task_tools
from toolyard.core.output import JsonObject
from toolyard.core.tool import ListToolsOutput
from toolyard.placement.base import list_tools
from toolyard.runtime.runtime import Runtime
from toolyard.studio.parts import Parts, quoted
from toolyard.studio.visit import Page, Visit

_TASKS_MOST = 200
"""Tasks in one answer. A page asks for those that are in view."""
_PREVIEW = 300
_TOOLS_MOST = 200
"""Tools on a page."""
_DEPTH_MOST = 4
"""How far the kind of a parameter follows what its schema refers to."""
_WRAPPED = re.compile(r"(?<=[^\s:])\n(?=[^\W\d_]|[(\"'`])")
"""The end of a line that goes on in the next: its author broke it to fit an editor."""


def pages(parts: Parts) -> Sequence[Page]:
    return [
        Page("GET", "environments", listed),
        Page("GET", "environments/*", environment),
        Page("GET", "api/v1/environments", list_all),
        Page("GET", "api/v1/environments/*/tasks", tasks),
        Page("GET", "api/v1/environments/*/tasks/*/*", task),
    ]


def served(runtime: Runtime) -> list[Mapping[str, object]]:
    return [
        {"name": name, "href": f"/studio/environments/{quoted(name)}", "about": about(one).partition("\n")[0]}
        for name, one in runtime.environments.items()
    ]


def about(environment: type[Environment]) -> str:
    """Its docstring; not one that it has from a class above it. A class of another framework has its own."""
    written = environment.written_as or environment
    return _WRAPPED.sub(" ", inspect.cleandoc(written.__doc__ or ""))


async def listed(visit: Visit) -> None:
    await visit.page("environments.html", environments=served(visit.parts.runtime))


async def list_all(visit: Visit) -> None:
    await visit.json({"environments": served(visit.parts.runtime)})


async def environment(visit: Visit) -> None:
    runtime = visit.parts.runtime
    found = runtime.environment(visit.named[0])
    name = found.name().lower()
    tools = list(shown_tools(await list_tools(found, runtime.placement)))
    await visit.page(
        "environment.html",
        name=name,
        about=about(found),
        facts=list(facts_of(found)),
        tools=tools[:_TOOLS_MOST],
        more=more_tools(found, len(tools)),
        splits=await runtime.tasks(found).splits(),
        play=f"/studio/play/{quoted(name)}",
        api=f"/studio/api/v1/environments/{quoted(name)}",
    )


def facts_of(environment: type[Environment]) -> Iterator[str]:
    if environment.uses_sandbox:
        yield "runs code in a sandbox"
    if environment.max_turns is not None:
        yield f"{environment.max_turns} calls at most"
    if environment.replayable:
        yield "can be repeated"


def more_tools(environment: type[Environment], shown: int) -> str:
    """What the list of tools leaves out, as a sentence."""
    if count := len(environment._definition.catalogue):
        return f"{count:,} more tools are not listed: agents search for them."
    if shown > _TOOLS_MOST:
        return f"The first {_TOOLS_MOST} of {shown:,} tools are listed."
    owners = [environment, *environment.toolsets]
    if shown and (
        any(map(lists_task_tools, owners)) or any(not t.shared for t in environment._definition.tools.values())
    ):
        return "A task may have more tools: open a session to see them."
    return ""


def shown_tools(found: ListToolsOutput) -> Iterator[JsonObject]:
    for tool in found.tools:
        parameters = list(parameters_of(tool.input_schema))
        about = _WRAPPED.sub(" ", tool.description)
        yield {"name": tool.name, "description": about, "parameters": parameters, "terminal": False}
    if (end := found.terminal_tool) is not None:
        parameters = [{"name": end.arg, "kind": "string", "description": ""}] if end.arg else []
        yield {"name": end.name, "description": end.description, "parameters": parameters, "terminal": True}


def parameters_of(schema: JsonObject | None) -> Iterator[JsonObject]:
    properties = (schema or {}).get("properties")
    required = (schema or {}).get("required") or ()
    for name, one in properties.items() if isinstance(properties, dict) else ():
        known = one if isinstance(one, dict) else {}
        kind = kind_of(known, schema or {}, null=name in required)
        if name not in required:
            default = known.get("default")
            kind += ", optional" if default is None else f", {encode(default).decode()[:60]} if left out"
        yield {"name": name, "kind": kind, "description": str(known.get("description") or "")}


def kind_of(schema: JsonObject, root: JsonObject, *, null: bool = True, depth: int = 0) -> str:
    """In a few words, what a parameter takes. With `null`, also whether it takes that."""
    if isinstance(choices := schema.get("enum"), list):
        return " | ".join(encode(choice).decode() for choice in choices[:12]) + " | …" * (len(choices) > 12)
    if depth < _DEPTH_MOST and isinstance(found := referred(schema, root), dict):
        name = str(schema["$ref"]).rpartition("/")[2]
        return name if "properties" in found else kind_of(found, root, null=null, depth=depth + 1)
    if isinstance(kind := schema.get("type"), str):
        items = schema.get("items")
        if kind == "array" and isinstance(items, dict) and items and depth < _DEPTH_MOST:
            return f"list of {kind_of(items, root, depth=depth + 1)}"
        return "list" if kind == "array" else kind
    alternatives = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(alternatives, list) and depth < _DEPTH_MOST:
        known = [one for one in alternatives if isinstance(one, dict) and (null or one.get("type") != "null")]
        return " or ".join(dict.fromkeys(kind_of(one, root, depth=depth + 1) for one in known[:12]))
    return str(schema["$ref"]).rpartition("/")[2] if "$ref" in schema else "any"


def referred(schema: JsonObject, root: JsonObject) -> object:
    """What the schema refers to within its root."""
    found: object = root
    path = str(schema.get("$ref", ""))
    for name in path.removeprefix("#/").split("/") if path.startswith("#/") else [""]:
        found = found.get(name) if isinstance(found, dict) else None
    return found


async def tasks(visit: Visit) -> None:
    """Some tasks of a split, each cut to a line."""
    runtime = visit.parts.runtime
    environment = runtime.environment(visit.named[0])
    split, known = visit.query.get("split", ""), runtime.tasks(environment)
    total = await known.count(split)
    start = min(max(visit.number("start", 0), 0), max(total - 1, 0))
    count = min(max(visit.number("count", 50), 1), _TASKS_MOST)
    found = await known.between(split, start, start + count)
    base = f"/studio/api/v1/environments/{quoted(visit.named[0])}/tasks/{quoted(split)}"
    rows = [preview(one, start + number, base) for number, one in enumerate(found)]
    await visit.json({"split": split, "start": start, "total": total, "tasks": rows})


def preview(task: JsonObject, index: int, base: str) -> JsonObject:
    written = encode(task).decode()
    return {"index": index, "text": written[:_PREVIEW], "length": len(written), "href": f"{base}/{index}"}


async def task(visit: Visit) -> None:
    name, split, index = visit.named
    if not (index.isascii() and index.isdigit() and len(index) < 16):
        raise HttpError(404, f"{index[:100]!r} is no number of a task")
    runtime = visit.parts.runtime
    found = await runtime.tasks(runtime.environment(name)).at(split, int(index))
    await visit.text(encode(found.spec).decode())
