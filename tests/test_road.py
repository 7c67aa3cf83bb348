"""The way of a call: which functions of ours it passes. CONTRIBUTING shows it, and it must not get longer."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import httpx2
import pytest

import toolyard
from tests.docs.pages import ROOT
from toolyard import Environment, tool
from toolyard.core.forms import Tagged
from toolyard.server import Server
from toolyard.settings import Settings

pytestmark = pytest.mark.anyio

SOURCE = Path(toolyard.__file__).parent


class Echo(Environment):
    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{}]

    def get_prompt(self):
        return "Say something."

    @tool(form=Tagged("echo", "text"))
    async def echo(self, text: str) -> str:
        """Say it again.

        Args:
            text: What to say.
        """
        return text

    @tool
    def plainly(self, text: str) -> str:
        """Say it again, in a thread.

        Args:
            text: What to say.
        """
        return text


@dataclass
class Walk:
    """The functions of ours that were entered, in the order in which each was entered first.

    Those that listen to the journal are left out: they are no part of the way. Nor is the finder of modules, which
    Python asks whenever something is imported for the first time.
    """

    hops: dict[tuple[str, str], None] = field(default_factory=dict)

    @property
    def modules(self) -> set[str]:
        return {module for module, _ in self.hops}

    def enter(self, frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if frame.f_code.co_name == "find_spec":
            return
        if event == "call" and path.is_relative_to(SOURCE) and path.parent.name != "metrics":
            self.hops[path.relative_to(SOURCE).as_posix(), frame.f_code.co_qualname] = None


@contextmanager
def walking() -> Iterator[Walk]:
    """Record what this thread passes, and what the threads of plain functions do."""
    walk = Walk()
    sys.setprofile(walk.enter)
    threads.walk = walk
    try:
        yield walk
    finally:
        sys.setprofile(None)
        threads.walk = None


class Threads:
    """Those that begin while this module's servers run report to the walk of the moment."""

    walk: Walk | None = None

    def enter(self, frame: FrameType, event: str, about: object) -> None:
        if self.walk is not None:
            self.walk.enter(frame, event, about)


threads = Threads()


@asynccontextmanager
async def served(*environments: type[Environment], **settings: Any) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of an application in this very thread, where its steps can be counted."""
    app = Server(environments, settings=Settings(sweep_seconds=60, **settings)).app
    told: asyncio.Queue[Mapping[str, str]] = asyncio.Queue()
    heard: asyncio.Queue[Mapping[str, str]] = asyncio.Queue()
    life = asyncio.ensure_future(app({"type": "lifespan"}, told.get, heard.put))
    threading.setprofile(threads.enter)
    try:
        await told.put({"type": "lifespan.startup"})
        assert (await heard.get())["type"] == "lifespan.startup.complete"
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://127.0.0.1") as client:
            yield client
    finally:
        threading.setprofile(None)  # type: ignore[arg-type]
        await told.put({"type": "lifespan.shutdown"})
        await life


async def called(client: httpx2.AsyncClient, tool: str) -> Walk:
    """The walk of a tool call over ORS, when everything is warm."""
    headers = {"X-Session-ID": f"session of {tool}"}
    await client.post("/create", headers=headers, json={"task_spec": {}})
    for _ in range(3):
        with walking() as walk:
            answer = await client.post("/echo/call", headers=headers, json={"name": tool, "input": {"text": "hello"}})
        assert "hello" in answer.text
    return walk


async def acted(client: httpx2.AsyncClient, action: str, *trajectories: str, last: bool = False) -> Walk:
    """The walk of a request with an action for each of these trajectories."""
    count = len(trajectories)
    body = {"trajectory_ids": trajectories, "actions": [action] * count, "extra_fields": [{}] * count}
    await asyncio.sleep(0.02)  # what the request before this one has left to be done is no part of the way
    with walking() as walk:
        answer = await client.post("/get_observation", json={**body, "is_last_step": [last] * count})
    assert "hello" in answer.text
    return walk


def shown(title: str) -> Sequence[tuple[str, str]]:
    """The hops that CONTRIBUTING shows under this title."""
    _, _, rest = (ROOT / "CONTRIBUTING.md").read_text().partition(f"### {title}\n")
    block = re.search(r"^```text\n(.*?)^```$", rest, re.MULTILINE | re.DOTALL)
    assert block, f"CONTRIBUTING has no {title!r}"
    lines = [line.split() for line in block[1].splitlines()]
    return [(module, function) for module, function, *_ in lines if module != "the"]


def check(walk: Walk, title: str) -> None:
    """What is shown was passed, in that order."""
    hops = list(walk.hops)
    places = {hop: hops.index(hop) for hop in shown(title) if hop in walk.hops}
    assert list(places) == list(shown(title)), f"not passed: {set(shown(title)) - {*places}}"
    assert list(places) == sorted(places, key=lambda hop: places[hop])


async def test_a_tool_call_over_ors_passes_few_functions_and_those_that_contributing_shows():
    async with served(Echo) as client:
        walk = await called(client, "echo")
        assert len(walk.hops) <= 50, list(walk.hops)
        assert len(walk.modules) <= 17, " ".join(sorted(walk.modules))
        check(walk, "An ORS call")


async def test_a_plain_function_passes_few_more():
    async with served(Echo) as client:
        walk = await called(client, "plainly")
        assert ("core/tool.py", "Tool.fit") in walk.hops, "the thread was not recorded"
        assert len(walk.hops) <= 70, list(walk.hops)
        assert len(walk.modules) <= 18, walk.modules


async def test_a_verl_request_of_two_actions_passes_few_functions_and_those_that_contributing_shows():
    async with served(Echo) as client:
        check(await acted(client, "<echo>hello</echo>", "lone", last=True), "A verl action")
        for _ in range(3):
            walk = await acted(client, "<echo>hello</echo>", "one", "two")
        assert len(walk.hops) <= 60, list(walk.hops)
        assert len(walk.modules) <= 17, " ".join(sorted(walk.modules))


async def test_a_sandboxed_program_passes_the_functions_that_contributing_shows():
    async with served(tools="python_code", sandboxes_ready=1) as client:
        check(await acted(client, "<python>print('hello')</python>", "lone", last=True), "A sandboxed program")
