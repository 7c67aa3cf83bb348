"""Asks a server of ORS about itself, opens sessions and calls tools."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from toolyard.agents.arguments import least_arguments
from toolyard.testing.conformance.case import Untried
from toolyard.testing.conformance.events import Event, read_events
from toolyard.testing.conformance.http import Answer, Headers, Http, Unmet, read_json, require
from toolyard.testing.conformance.known_calls import TRIED_TOOLS, KnownCall, KnowsCalls
from toolyard.testing.conformance.target import Target

SID = "X-Session-ID"
NOBODY = "conform-nobody"


@dataclass(frozen=True, slots=True)
class Called:
    """The answer to a call, and its events."""

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
        """The result, joined from its slices."""
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


class Ors(KnowsCalls):
    """Asks a server about itself once, and keeps the answers for all cases."""

    def __init__(self, http: Http, target: Target) -> None:
        self._http = http
        self._target = target
        self._open: set[str] = set()
        self._environments: list[str] = []
        self._task: tuple[str, int] | None = None

    async def get(self, path: str, headers: Headers = ()) -> Answer:
        return await self._http.ask("GET", path, headers=headers)

    async def post(self, path: str, body: Any = ..., headers: Headers = (), sid: str = "") -> Answer:
        named = [(SID, sid)] if sid else []
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
        """The split and the number of the task to play."""
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
        """Ask for a session; without a body, for one with the task to play."""
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
        answer = (await self.get(await self.env("task_tools"), {SID: sid})).require(200)
        require(isinstance(answer.object.get("tools"), list), answer)
        return list(answer.object["tools"])

    # Calls.

    async def asked(self, sid: str, name: str, arguments: Any = ..., **more: Any) -> Answer:
        body = {"name": name, **({} if arguments is ... else {"input": arguments}), **more}
        return await self.post(await self.env("call"), body, {"Accept": "text/event-stream"}, sid)

    async def call(self, sid: str, name: str, arguments: Any, **more: Any) -> Called:
        return Called.of(await self.asked(sid, name, arguments, **more))

    async def _try_calls(self) -> Sequence[KnownCall | None]:
        given = [(self._target.tool, dict(self._target.arguments))] if self._target.tool else await self._offered()
        return [await self._tried(name, arguments) for name, arguments in given]

    async def _offered(self) -> list[tuple[str, dict[str, Any]]]:
        async with self.session() as sid:
            tools = await self.tools(sid)
        return [(tool["name"], least_arguments(tool["input_schema"])) for tool in tools[:TRIED_TOOLS]]

    async def _tried(self, name: str, arguments: dict[str, Any]) -> KnownCall | None:
        async with self.session() as sid:
            try:
                called = await self.call(sid, name, arguments)
            except (Unmet, TimeoutError):  # a slow tool, or a server that a case reports
                return None
        return KnownCall(name, arguments, bool(called.output.get("finished"))) if called.succeeded else None

    async def play(self, sid: str, **more: Any) -> Called:
        call = await self.known()
        return await self.call(sid, call.tool, call.arguments, **more)

    @property
    def given_tool(self) -> str:
        return self._target.tool


def new_sid() -> str:
    return f"conform-{uuid.uuid4()}"


async def speaks(ors: Ors) -> bool:
    """OpenEnv lists environments under the same path, but hands out no ids."""
    answer = await ors.get("/list_environments")
    if answer.status != 200 or not isinstance(answer.json, list):
        return False
    return (await ors.post("/create_session", {})).status == 200


def refused(answer: Answer, status: int, detail: str) -> None:
    require(answer.status == status and answer.object.get("detail") == detail, answer)


def is_block(block: Any) -> bool:
    keys = {"text": {"text", "detail", "type"}, "image": {"data", "mimeType", "detail", "type"}}
    return isinstance(block, dict) and block.keys() == keys.get(block.get("type", ""))
