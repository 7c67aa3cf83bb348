"""An author's code may block for as long as it likes: nobody else waits for it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from statistics import median

import anyio
import pytest

from tests.wires.wire import H, Wire, call_body
from toolyard import Environment, ListToolsOutput, TextBlock, Toolset, ToolSpec, tool
from toolyard.testing import running

pytestmark = [pytest.mark.anyio, pytest.mark.alone, pytest.mark.thorough]

SECONDS = 1.5
"""How long each hook blocks; those of the second half of the list below, a third of it."""

MOST = 0.25
"""The slowest ping that scheduling on a busy machine may explain."""

USUAL = 0.02
"""Half of the pings are faster than this, however much blocks."""

PNG = b"\x89PNG\r\n\x1a\n"


class Blocks:
    """Something that blocks where it is told to, and counts how many are in it."""

    def __init__(self) -> None:
        self.where = ""
        self.inside = 0
        self.lock = threading.Lock()

    def at(self, place: str) -> None:
        if place == self.where:
            with self.lock:
                self.inside += 1
            time.sleep(seconds_of(place))


blocks = Blocks()


class LazyTasks(Sequence):
    """A dataset that reads from a slow disk."""

    def __len__(self):
        blocks.at("len")
        return 3

    def __getitem__(self, index):
        blocks.at("getitem")
        return {"n": index}


class Picture:
    def _repr_png_(self):
        blocks.at("picture")
        return PNG


class Needs(Toolset):
    def __init__(self, env):
        blocks.at("toolset")
        super().__init__(env)

    @tool
    def look(self) -> str:
        """Look."""
        return "?"


class Blocking(Environment):
    """Every hook of it can block."""

    toolsets = [Needs]

    def __init__(self, task_spec, secrets):
        blocks.at("constructor")
        super().__init__(task_spec, secrets)

    @classmethod
    def list_splits(cls):
        blocks.at("list_splits")
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        blocks.at("list_tasks")
        return LazyTasks()

    @classmethod
    def list_tools(cls):
        blocks.at("list_tools")
        return super().list_tools()

    def setup(self):
        blocks.at("setup")

    def teardown(self):
        blocks.at("teardown")

    def get_prompt(self):
        blocks.at("prompt")
        return [TextBlock(text="?")]

    def get_messages(self):
        blocks.at("messages")
        return []

    def list_task_tools(self):
        blocks.at("list_task_tools")
        return ListToolsOutput(tools=[ToolSpec(name="dynamic", description="", input_schema=None)])

    def call_task_tool(self, name, arguments):
        blocks.at("dynamic")
        return "?"

    def score_group(self, candidates):
        blocks.at("score_group")
        return [1.0 for _ in candidates]

    @tool
    def plain(self) -> str:
        """Block."""
        blocks.at("tool")
        return "?"

    @tool
    async def modern(self) -> str:
        """Do not block."""
        await asyncio.sleep(0)
        return "?"

    @tool
    async def draw(self) -> object:
        """Return something that takes its time to become a picture."""
        return Picture()


class Counting(Blocking):
    """Asked for one task at a time."""

    @classmethod
    def num_tasks(cls, split):
        blocks.at("num_tasks")
        return 3

    @classmethod
    def get_task(cls, split, index):
        blocks.at("get_task")
        return {"n": index}


TASK = {"split": "train", "index": 1}

# What is asked of the server, by what blocks in it. A session "s" is open beforehand.
ASKED: dict[str, tuple[str, str, object]] = {
    "tool": ("POST", "/blocking/call", call_body("plain")),
    "prompt": ("GET", "/blocking/prompt", None),
    "constructor": ("POST", "/create", {"task_spec": {}}),
    "setup": ("GET", "/blocking/prompt", None),
    "list_splits": ("GET", "/blocking/splits", None),
    "list_tasks": ("POST", "/blocking/tasks", {"split": "train"}),
    # and shorter
    "teardown": ("POST", "/delete", None),
    "toolset": ("GET", "/blocking/prompt", None),
    "dynamic": ("POST", "/blocking/call", call_body("dynamic")),
    "picture": ("POST", "/blocking/call", call_body("draw")),
    "score_group": ("POST", "/blocking/score_group", {"candidates": [{"messages": []}]}),
    "messages": ("GET", "/blocking/messages", None),
    "list_task_tools": ("GET", "/blocking/task_tools", None),
    "len": ("POST", "/blocking/num_tasks", {"split": "train"}),
    "getitem": ("POST", "/blocking/task", TASK),
    "list_tools": ("GET", "/blocking/tools", None),
    "num_tasks": ("POST", "/counting/num_tasks", {"split": "train"}),
    "get_task": ("POST", "/counting/task", TASK),
}

LONG = ["tool", "prompt", "constructor", "setup", "list_splits", "list_tasks"]
AT_ONCE = [*LONG, "teardown", "dynamic", "get_task"]


def seconds_of(place: str) -> float:
    return SECONDS if place in LONG else SECONDS / 3


async def pings_while(wire: Wire, still: Callable[[], bool]) -> list[float]:
    """How long each /ping of a session that has nothing to do with it took, and each /health."""
    took = []
    while still():
        for ask in (wire.post("/ping", headers=H("bystander")), wire.get("/health")):
            before = time.perf_counter()
            assert (await ask).status_code == 200
            took.append(time.perf_counter() - before)
        await anyio.sleep(0.01)
    return took


async def blocked(where: str, times: int) -> tuple[list[float], float, int]:
    """Let so many requests run into what blocks: how long the pings took, how long all took, and how many blocked."""
    blocks.where, blocks.inside = "", 0
    method, path, body = ASKED[where]
    with running([Blocking, Counting]) as server:
        async with Wire(server.url) as wire, Wire(server.url) as bystander:
            await wire.open("bystander")
            await wire.get("/blocking/prompt", headers=H("bystander"))  # its own setup is over
            sids = [f"s{n}" for n in range(times)]
            starting = where in ("setup", "toolset")
            if starting:
                blocks.where = where
            if where != "constructor":
                for sid in sids:
                    await wire.open(sid)
            left = times

            async def ask(sid: str) -> None:
                nonlocal left
                response = await wire.request(method, path, headers=H(sid), json=body)
                assert response.status_code == 200, response.text
                left -= 1

            blocks.where = where
            started = time.perf_counter()
            async with anyio.create_task_group() as group:
                for sid in sids:
                    group.start_soon(ask, sid)
                pings = await pings_while(bystander, lambda: left > 0)
            took, inside = time.perf_counter() - started, blocks.inside
            blocks.where = ""
    return pings, took, inside


@pytest.mark.parametrize("where", ASKED)
async def test_what_blocks_in_one_session_delays_no_other(where: str):
    pings, took, inside = await blocked(where, 1)
    assert inside >= 1, "nothing blocked, so this would prove nothing"
    assert took > seconds_of(where) * 0.9
    assert median(pings) < USUAL
    assert max(pings) < MOST


@pytest.mark.parametrize("where", AT_ONCE)
async def test_thirty_sessions_that_block_at_once_delay_no_other(where: str):
    pings, took, inside = await blocked(where, 30)
    assert inside == (1 if where.startswith("list_") else 30)  # a list is asked for once
    assert seconds_of(where) * 0.9 < took < seconds_of(where) * 2.5, "they block side by side"
    assert median(pings) < USUAL
    assert max(pings) < MOST
