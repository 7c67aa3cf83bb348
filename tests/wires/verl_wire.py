"""Common to tests of verl-tool's wire: a trainer that checks every answer strictly, and a world."""

from __future__ import annotations

import json
import threading
from collections import Counter
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import anyio
import anyio.lowlevel
import httpx2

from tests.wires.wire import Wire, strict_json
from toolyard import Environment, ImageBlock, Split, TextBlock, ToolError, ToolOutput, tool
from toolyard.core.errors import SandboxLost
from toolyard.core.forms import Tagged
from toolyard.core.tool import Given

KEYS = {"observations", "dones", "valids", "processing_time_ms", "queue_time_ms"}


class Observed(NamedTuple):
    observation: Any
    done: bool
    valid: bool

    @property
    def text(self) -> str:
        text = self.observation if isinstance(self.observation, str) else self.observation["obs"]
        assert isinstance(text, str)
        return text


def observed(response: httpx2.Response, count: int) -> list[Observed]:
    """Read an answer. Fails on the first thing that a client of verl-tool could not handle."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/json"
    assert float(response.headers["x-process-time"]) >= 0
    answer = strict_json(response.content)
    assert set(answer) == KEYS
    assert type(answer["processing_time_ms"]) is type(answer["queue_time_ms"]) is float
    assert answer["processing_time_ms"] > 0
    for flag in (*answer["dones"], *answer["valids"]):
        assert type(flag) is bool
    found = list(map(Observed, answer["observations"], answer["dones"], answer["valids"]))
    assert len(found) == len(answer["observations"]) == len(answer["dones"]) == len(answer["valids"]) == count
    for one in found:
        assert isinstance(one.text, str)
        if isinstance(one.observation, dict):
            assert isinstance(one.observation.get("reward", 0), int | float | None)
    return found


class Trainer(Wire):
    """Sends actions as verl-tool's clients do."""

    async def batch(self, ids: list[Any], actions: list[str], **more: Any) -> list[Observed]:
        body = {"trajectory_ids": ids, "actions": actions, **more}
        return observed(await self.post("/get_observation", json=body), len(ids))

    async def act(self, trajectory: str, action: str, extra: dict[str, Any] | None = None, **more: Any) -> Observed:
        fields = {} if extra is None else {"extra_fields": [extra]}
        (one,) = await self.batch([trajectory], [action], **fields, **more)
        return one

    async def finish(self, *ids: str) -> None:
        ended = await self.batch(list(ids), [""] * len(ids), finish=[True] * len(ids), is_last_step=[True] * len(ids))
        assert ended == [("", True, True)] * len(ids)


@dataclass
class Gate:
    """Holds calls until it is opened, and counts them."""

    opened: threading.Event
    came: Counter[str]

    async def passed(self, key: str) -> None:
        self.came[key] += 1
        with anyio.fail_after(20):
            while not self.opened.is_set():
                await anyio.sleep(0.005)


gate = Gate(threading.Event(), Counter())
ended: list[str] = []
"""The name of every trajectory whose teardown() ran."""


class Steps(Environment):
    """Remembers its notes, in order."""

    latch_finished = False

    def __init__(self, task_spec={}, secrets={}):
        super().__init__(task_spec, secrets)
        if task_spec.get("constructor_boom"):
            raise ValueError("constructor boom")
        self.notes: list[str] = []

    @classmethod
    def list_splits(cls):
        return [Split(name="train", type="train")]

    @classmethod
    def list_tasks(cls, split):
        return [{"name": f"task {n}"} for n in range(3)]

    def setup(self):
        if self.task_spec.get("setup_boom"):
            raise ValueError("setup boom")

    def teardown(self):
        ended.append(self.task_spec.get("name", ""))

    def get_prompt(self):
        return f"This is {self.task_spec.get('name', 'nothing')}."

    @tool(form=Tagged("note", "text", before="\n<notes>", after="</notes>\n"))
    async def note(self, text: str) -> str:
        """Write something down."""
        self.notes.append(text)
        await anyio.lowlevel.checkpoint()
        return " ".join(self.notes)

    @tool
    async def wait(self, key: str) -> str:
        """Wait until somebody opens the gate."""
        await gate.passed(key)
        return f"{key} came {gate.came[key]} times"

    @tool
    def boom(self) -> str:
        """Break."""
        raise ValueError("it broke")

    @tool
    async def fail(self) -> str:
        """Say no."""
        raise ToolError("not today")

    @tool
    async def lose(self) -> str:
        """Lose the sandbox."""
        raise SandboxLost("the sandbox is gone")

    @tool
    async def guess(self, number: int, last: bool = True) -> ToolOutput:
        """Right, if it is 7."""
        right = float(number == 7)
        return ToolOutput(blocks=[TextBlock(text=f"{number}!")], reward=right, finished=last)

    @tool
    async def see(self, alone: bool = False) -> ToolOutput:
        """A picture."""
        words = [] if alone else [TextBlock(text="<image>")]
        return ToolOutput(blocks=[*words, ImageBlock(data="aGk=", mimeType="image/png")])

    @tool
    async def given(self, word: Annotated[str, Given()] = "none", free: Annotated[str, Given(open=True)] = "") -> str:
        """What the trainer says."""
        return f"{word} {free}".strip()

    @tool
    async def who(self, trajectory_id: Annotated[str, Given()] = "", note: Annotated[str, Given()] = "") -> str:
        """Which trajectory this is, and what is known of it."""
        return f"{trajectory_id} {note} {sorted(self.task_spec)}"


def call(name: str, **arguments: Any) -> str:
    """The text of a model that calls a tool."""
    return "I will.\n<tool_call>" + json.dumps({"name": name, "arguments": arguments}) + "</tool_call>"


def answered(text: str) -> str:
    return f"\n<tool_response>\n{text}\n</tool_response>\n"
