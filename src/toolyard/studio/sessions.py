"""Sessions: those that are open now, on all gateways, and one of them to watch, to play in and to end."""

from __future__ import annotations

import asyncio
import heapq
import json
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from toolyard.asgi import HttpError
from toolyard.core.encoding import encode
from toolyard.core.errors import SessionClosed, SessionNotFound
from toolyard.core.output import Blocks, ImageBlock, JsonObject, TextBlock
from toolyard.core.tool import ListToolsOutput
from toolyard.placement.base import Origin, SessionSpec
from toolyard.runtime.runtime import Runtime
from toolyard.runtime.session import Session
from toolyard.studio.copying import Story, written
from toolyard.studio.feed import Budget, Log, blocks_json, picture_in
from toolyard.studio.parts import Parts, quoted
from toolyard.studio.visit import Page, Visit

WIRE = "studio"
_LISTED_MOST = 200
_API = "/studio/api/v1/sessions"
_PAUSE = 0.25
"""Seconds between two messages to a page. A fast session fills a message instead of sending many."""
_WAIT_SECONDS = 1.0
_PART = 50_000
"""Characters of a long text that a page gets when it asks for more."""

_CLOSED: Mapping[str, str] = {
    "deleted": "This session is closed.",
    "idle": "The server closed this session, because nobody used it for {idle:g} seconds (`--idle-seconds`).",
    "drained": "The server closed this session, because the server is shutting down.",
    "replaced": "Its client opened another environment under the same id.",
    "failed": "This session could not be set up.",
}


def pages(parts: Parts) -> Sequence[Page]:
    return [
        Page("GET", "sessions", listed),
        Page("GET", "sessions/*", watched),
        Page("GET", "api/v1/sessions", list_all),
        Page("GET", "api/v1/here/sessions", list_here),
        Page("POST", "api/v1/sessions", open_session),
        Page("GET", "api/v1/sessions/*", about),
        Page("GET", "api/v1/sessions/*/events", events),
        Page("GET", "api/v1/sessions/*/task", task),
        Page("GET", "api/v1/sessions/*/prompt", prompt),
        Page("GET", "api/v1/sessions/*/prompt/blocks/*", prompt_block),
        Page("GET", "api/v1/sessions/*/tools", tools),
        Page("GET", "api/v1/sessions/*/steps/*/blocks/*", step_block),
        Page("GET", "api/v1/sessions/*/steps/*/*", step_text),
        Page("GET", "api/v1/sessions/*/copy/*", copy),
        Page("POST", "api/v1/sessions/*/calls", call),
        Page("POST", "api/v1/sessions/*/fork", fork),
        Page("POST", "api/v1/sessions/*/ping", ping),
        Page("POST", "api/v1/sessions/*/close", close),
    ]


# Pages.


async def listed(visit: Visit) -> None:
    await visit.page("sessions.html")


async def watched(visit: Visit) -> None:
    name = visit.named[0]
    await visit.page("session.html", session=name, api=f"{_API}/{quoted(name)}")


# Lists.


async def list_all(visit: Visit) -> None:
    """The newest sessions of all gateways."""
    runtime = visit.parts.runtime
    mine = here(runtime)
    answers = await runtime.owners.ask_others("GET /studio/api/v1/here/sessions")
    found = [mine, *map(json.loads, answers.values())]
    rows = [row for one in found for row in one["sessions"]]
    await visit.json(
        {
            "count": sum(one["count"] for one in found),
            "sessions": heapq.nsmallest(_LISTED_MOST, rows, key=lambda row: row["age"]),
            "missing": runtime.owners.count - len(found),
        }
    )


async def list_here(visit: Visit) -> None:
    await visit.json(here(visit.parts.runtime))


def here(runtime: Runtime) -> dict[str, Any]:
    """The newest sessions of this gateway."""
    newest = heapq.nlargest(_LISTED_MOST, runtime.sessions.values(), key=lambda session: session.opened)
    return {"count": len(runtime.sessions), "sessions": [row_of(session) for session in newest]}


def row_of(session: Session) -> dict[str, Any]:
    spec, standing = session.spec, session.standing
    name = spec.environment.name().lower()
    return {
        "id": session.id,
        "href": f"/studio/sessions/{quoted(session.id)}",
        "api": f"{_API}/{quoted(session.id)}",
        "environment": name,
        "environment_href": f"/studio/environments/{quoted(name)}",
        "split": spec.task.split,
        "index": spec.task.index,
        "wire": spec.origin.wire,
        "run": spec.origin.run,
        "age": time.monotonic() - session.opened,
        "state": session.condition,
        "running": list(session.running_tools[:5]),
        "calls": standing.tally.calls,
        "return": standing.total,
        "finished": standing.finished,
        "forked_from": spec.forked_from,
    }


# One session.


async def about(visit: Visit) -> None:
    """How a session stands; with `task`, also its task."""
    session = find(visit)
    row = row_of(session)
    if "task" in visit.query:
        row["task"] = Budget().text(task_of(session), f"{_API}/{quoted(session.id)}/task")
    await visit.json(row)


async def task(visit: Visit) -> None:
    await send_text(visit, task_of(find(visit)))


def task_of(session: Session) -> str:
    return encode(session.spec.task.spec).decode()


def find(visit: Visit) -> Session:
    """The session that the address names. Raises `HttpError` with a sentence about what became of it."""
    runtime, name = visit.parts.runtime, visit.named[0]
    try:
        return runtime.session(name)
    except SessionNotFound:
        log = visit.parts.feed.find(name)
        if log is not None and log.closed is not None:
            raise HttpError(410, closed_words(visit, log.closed)) from None
        raise HttpError(404, f"there is no open session {name[:200]!r}: it is over, or has never been") from None


def closed_words(visit: Visit, why: str) -> str:
    return _CLOSED[why].format(idle=visit.parts.options.idle_seconds)


def log_of(visit: Visit) -> Log:
    """What is known of a session that is followed, also for a while after its end."""
    if (log := visit.parts.feed.find(visit.named[0])) is None:
        return visit.parts.feed.follow(find(visit))
    return log


async def events(visit: Visit) -> None:
    """What happens in a session from now on, and what has happened since it is followed."""
    log = log_of(visit)
    await visit.events(_told(visit, log, visit.number("after", 0)))


async def _told(visit: Visit, log: Log, seen: int) -> AsyncIterator[object]:
    base = f"{_API}/{quoted(log.spec.session_id)}"
    log.viewers += 1
    try:
        while True:
            session = visit.parts.runtime.sessions.get(log.spec.session_id)
            budget, steps, revision = Budget(), log.newer(seen), log.revision
            log.fresh = 0
            yield {
                "revision": revision,
                "earlier": log.earlier,
                "dropped": log.dropped,
                "steps": [step.as_json(base, budget) for step in reversed(steps)],
                "prompt": blocks_json(log.prompt, f"{base}/prompt", budget) if log.prompt and not seen else None,
                "closed": None if log.closed is None else closed_words(visit, log.closed),
                "state": session.condition if session is not None else "closed",
            }
            seen = revision
            if log.closed is not None and log.revision == seen:
                return
            await asyncio.sleep(_PAUSE)
            quiet = 0
            while log.revision == seen and not visit.parts.runtime.draining:
                await log.after(seen, _WAIT_SECONDS)
                quiet += 1
                if quiet % 10 == 0:
                    yield None
    finally:
        log.viewers -= 1
        log.left = time.monotonic()


async def prompt(visit: Visit) -> None:
    """The prompt of a session that was opened in Studio. For others it is shown only if their clients ask for it."""
    session, log = find(visit), log_of(visit)
    if session.spec.origin.wire == WIRE and log.prompt is None:
        log.prompt = await session.prompt()
    base = f"{_API}/{quoted(session.id)}/prompt"
    await visit.json({"blocks": None if log.prompt is None else blocks_json(log.prompt, base, Budget())})


async def tools(visit: Visit) -> None:
    session = find(visit)
    found = await session.tools_before_setup() or await (await session.ready()).list_tools()
    await visit.json({"tools": list(forms_of(session, found))})


def forms_of(session: Session, found: ListToolsOutput) -> Sequence[JsonObject]:
    """What the forms of the tools are made from. The terminal tool is one of them: a person may want to answer."""
    listed: list[JsonObject] = [tool.model_dump() for tool in found.tools]
    if (terminal := found.terminal_tool) is not None:
        own = session.spec.environment._definition.terminal
        schema: Any = own.spec.input_schema if own is not None and own.name == terminal.name else None
        if schema is None and terminal.arg is not None:
            schema = {"type": "object", "properties": {terminal.arg: {"type": "string"}}, "required": [terminal.arg]}
        listed.append({"name": terminal.name, "description": terminal.description, "input_schema": schema})
    return listed


async def prompt_block(visit: Visit) -> None:
    log = log_of(visit)
    await send_block(visit, log.prompt or (), visit.named[1])


async def step_block(visit: Visit) -> None:
    await send_block(visit, log_of(visit).step(whole_number(visit.named[1])).blocks, visit.named[2])


async def send_block(visit: Visit, blocks: Blocks, number: str) -> None:
    at = whole_number(number)
    if at >= len(blocks):
        raise HttpError(404, f"there are {len(blocks)} parts, no number {at}")
    block = blocks[at]
    if isinstance(block, ImageBlock):
        await visit.picture(picture_in(block), block.mimeType)
    elif isinstance(block, TextBlock):
        await send_text(visit, block.text)


async def step_text(visit: Visit) -> None:
    """The arguments of a call, or what the model wrote."""
    step = log_of(visit).step(whole_number(visit.named[1]))
    match visit.named[2]:
        case "arguments":
            await send_text(visit, step.arguments.decode())
        case "said":
            await send_text(visit, step.said)
        case other:
            raise HttpError(404, f"a call has no {other[:100]!r}")


async def send_text(visit: Visit, text: str) -> None:
    """A part of a long text, from `start` on; or, with `save`, all of it as a file."""
    if "save" in visit.query:
        await visit.text(text, file_name="result.txt")
    else:
        start = max(visit.number("start", 0), 0)
        await visit.text(text[start : start + _PART])


def whole_number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise HttpError(404, f"{text[:100]!r} is no number")
    return int(text)


async def copy(visit: Visit) -> None:
    """The calls of a session, to make them again elsewhere."""
    await copied(visit, Story.of(log_of(visit)))


async def copied(visit: Visit, story: Story) -> None:
    """A story as the program that the address names."""
    host, secure = visit.request.header(b"host"), visit.query.get("scheme") == "https"
    await visit.text(written(story, visit.named[1], host=host, secure=secure, asks_key=visit.parts.key.is_needed))


# What changes a session.


async def open_session(visit: Visit) -> None:
    """Open a session. It is one like any other, and lives on the gateway that this request has reached."""
    runtime, asked = visit.parts.runtime, await visit.body()
    environment = runtime.environment(str(asked.get("environment", "")))
    tasks = runtime.tasks(environment)
    split, index = asked.get("split"), asked.get("index", 0)
    if split is None:
        splits = await tasks.splits()
        if not splits:
            raise HttpError(409, f"{environment.name()} has no split, so there is no task to open")
        split = splits[0].name
    if not isinstance(split, str) or not isinstance(index, int) or isinstance(index, bool):
        raise HttpError(400, "`split` is the name of a split, and `index` the number of a task")
    session_id = runtime.owners.draw(lambda: uuid.uuid4().hex)
    spec = SessionSpec(session_id, environment, await tasks.at(split, index), origin=Origin(WIRE))
    session = await runtime.open(spec)
    visit.parts.feed.follow(session, pinned=True)
    await visit.json(row_of(session), 201)


async def call(visit: Visit) -> None:
    """Begin a call. Its result comes with the events of the session."""
    asked, session = await visit.body(), find(visit)
    name, arguments = asked.get("tool"), asked.get("arguments", {})
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise HttpError(400, "`tool` is the name of a tool, and `arguments` an object")
    log = visit.parts.feed.follow(session)
    number = log.number + 1
    try:
        session.start(name, arguments, kept=False)
    except SessionClosed:
        raise HttpError(410, "This session is closed.") from None
    await visit.json({"number": number}, 202)


async def fork(visit: Visit) -> None:
    """Open another session that goes on from where this one is."""
    runtime, session = visit.parts.runtime, find(visit)
    family = session.id.partition(".")[0]
    made = runtime.owners.draw(lambda: f"{family}.{uuid.uuid4().hex}")
    log = visit.parts.feed.follow(session)
    strategy = await runtime.fork(session, [made])
    forked = runtime.session(made)
    visit.parts.feed.continue_in(log, forked)
    await visit.json({**row_of(forked), "strategy": strategy}, 201)


async def ping(visit: Visit) -> None:
    find(visit).touch()
    await visit.json({})


async def close(visit: Visit) -> None:
    session = find(visit)
    visit.parts.feed.follow(session)
    await visit.parts.runtime.close(session.id)
    await visit.json({})
