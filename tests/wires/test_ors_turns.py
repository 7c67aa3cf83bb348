"""ORS, several calls in one session: which of them overlap, and which succeed when the episode ends."""

from __future__ import annotations

import asyncio
import threading

import anyio
import pytest

from tests.wires.wire import Answer, Wire, until
from toolyard import Environment, ListToolsOutput, ToolOutput, ToolSpec, terminal, tool
from toolyard.testing import running

pytestmark = pytest.mark.anyio


class Yard(Environment):
    """Records when each of its tools begins and ends."""

    written: list[str] = []
    go = threading.Event()
    """Tools wait for it, so the test decides how long they run."""

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return []

    def get_prompt(self):
        return "?"

    def list_task_tools(self):
        return ListToolsOutput(tools=[ToolSpec(name="dynamic", description="", input_schema=None)])

    async def call_task_tool(self, name, arguments):
        return await self._work(name, arguments.get("n", ""))

    async def _work(self, name: str, n: str) -> str:
        self.written.append(f"+{name}{n}")
        while not self.go.is_set():
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.02)
        self.written.append(f"-{name}{n}")
        return f"{name}{n}"

    @tool
    async def one(self, n: str = "") -> str:
        """One at a time."""
        return await self._work("one", n)

    @tool
    def two(self, n: str = "") -> str:
        """One at a time, in a thread."""
        self.written.append(f"+two{n}")
        self.go.wait(10)
        self.written.append(f"-two{n}")
        return f"two{n}"

    @tool(concurrent=True)
    async def free(self, n: str = "") -> str:
        """Any number at once."""
        return await self._work("free", n)

    @tool(exclusive=True)
    async def alone(self, n: str = "") -> str:
        """Alone."""
        return await self._work("alone", n)

    @tool
    @terminal
    async def last(self, n: str = "") -> ToolOutput:
        """The agent's last words."""
        await self._work("last", n)
        return ToolOutput(reward=1.0, finished=True)

    @tool(concurrent=True)
    async def grade(self, n: str, seconds: float, finished: bool = True) -> ToolOutput:
        """Maybe the end."""
        self.written.append(f"+grade{n}")
        await asyncio.sleep(seconds)
        self.written.append(f"-grade{n}")
        return ToolOutput(reward=float(n), finished=finished)


class Calls:
    """Calls started one after the other, and their answers."""

    def __init__(self, wire: Wire, sid: str, group: anyio.abc.TaskGroup) -> None:
        self._wire, self._sid, self._group = wire, sid, group
        self.answers: dict[str, Answer] = {}

    async def start(self, name: str, n: str = "", **arguments: object) -> None:
        sent = anyio.Event()

        async def call() -> None:
            async with self._wire.follow(self._sid, name, {"n": n, **arguments}, env="yard") as stream:
                named = await stream.event()  # sent when the call is accepted, not when it runs
                sent.set()
                self.answers[name + n] = Answer([named, *await stream.rest()])

        self._group.start_soon(call)
        await sent.wait()


async def run(*names: str, meanwhile: list[str]) -> list[str]:
    """Call these tools in order; `meanwhile` must have begun before any may end. Returns the record."""
    Yard.written.clear()
    Yard.go.clear()
    with running([Yard], drain_seconds=1) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open()
            with anyio.fail_after(20):
                async with anyio.create_task_group() as group:
                    calls = Calls(wire, sid, group)
                    for name in names:
                        await calls.start(name.rstrip("123"), name.lstrip("abcdefghijklmnopqrstuvwxyz"))
                    await until(lambda: len(Yard.written) >= len(meanwhile))
                    await anyio.sleep(0.05)  # time for one more to begin wrongly
                    assert sorted(Yard.written) == sorted(f"+{name}" for name in meanwhile)
                    Yard.go.set()
            assert len(calls.answers) == len(names)
            return list(Yard.written)


@pytest.mark.parametrize("name", ["one", "two", "dynamic"])
async def test_calls_of_one_tool_run_one_after_the_other_in_order(name: str):
    written = await run(f"{name}1", f"{name}2", f"{name}3", meanwhile=[f"{name}1"])
    assert written == [f"{sign}{name}{n}" for n in "123" for sign in "+-"]


async def test_calls_of_different_tools_overlap():
    await run("one", "two", "free", "dynamic", meanwhile=["one", "two", "free", "dynamic"])


async def test_a_concurrent_tool_overlaps_itself():
    await run("free1", "free2", "free3", meanwhile=["free1", "free2", "free3"])


@pytest.mark.parametrize("name", ["alone", "last"])
async def test_an_exclusive_tool_waits_for_all_that_run_and_holds_back_all_that_come(name: str):
    written = await run("one1", "free1", "dynamic1", name, "free2", "two2", meanwhile=["one1", "free1", "dynamic1"])
    begun, ended = written.index(f"+{name}"), written.index(f"-{name}")
    assert all(written.index(f"-{earlier}") < begun for earlier in ("one1", "free1", "dynamic1"))
    assert ended == begun + 1
    if name == "alone":
        assert all(written.index(f"+{later}") > ended for later in ("free2", "two2"))
    else:
        assert written[-1] == f"-{name}"  # the episode ended: nothing runs after it


async def test_a_waiting_call_does_not_hold_back_one_that_may_run():
    await run("one1", "one2", "free1", "two1", meanwhile=["one1", "free1", "two1"])


async def test_two_exclusive_calls_run_one_after_the_other():
    written = await run("alone1", "alone2", meanwhile=["alone1"])
    assert written == ["+alone1", "-alone1", "+alone2", "-alone2"]


async def test_the_first_end_of_an_episode_wins_and_results_after_it_are_discarded():
    Yard.written.clear()
    with running([Yard]) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open()
            async with anyio.create_task_group() as group:
                calls = Calls(wire, sid, group)
                await calls.start("grade", "1", seconds=0.5)
                await calls.start("grade", "2", seconds=0.5, finished=False)
                await calls.start("grade", "3", seconds=0.1)
            assert calls.answers["grade3"].output["reward"] == 3.0
            for late in ("grade1", "grade2"):
                assert calls.answers[late].failure["reason"] == "episode_finished"
            assert sorted(Yard.written) == ["+grade1", "+grade2", "+grade3", "-grade1", "-grade2", "-grade3"]


async def test_a_call_that_waits_for_its_turn_when_the_episode_ends_never_runs():
    Yard.written.clear()
    Yard.go.set()
    with running([Yard]) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open()
            async with anyio.create_task_group() as group:
                calls = Calls(wire, sid, group)
                await calls.start("grade", "1", seconds=0.2)
                await calls.start("alone")
            assert calls.answers["alone"].failure["reason"] == "episode_finished"
            assert Yard.written == ["+grade1", "-grade1"]


async def test_sessions_do_not_wait_for_each_other():
    Yard.written.clear()
    Yard.go.clear()
    with running([Yard]) as server:
        async with Wire(server.url) as wire:
            sids = [await wire.open() for _ in range(3)]
            async with anyio.create_task_group() as group:
                for number, sid in enumerate(sids):
                    await Calls(wire, sid, group).start("alone", str(number))
                await until(lambda: len(Yard.written) == 3)
                Yard.go.set()
            assert sorted(Yard.written) == sorted(f"{sign}alone{n}" for n in range(3) for sign in "+-")


async def test_a_deleted_session_frees_who_waits_for_a_turn():
    Yard.written.clear()
    Yard.go.clear()
    with running([Yard]) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open()
            async with anyio.create_task_group() as group:
                calls = Calls(wire, sid, group)
                await calls.start("one", "1")
                await calls.start("one", "2")
                await calls.start("alone")
                await wire.end(sid)
            assert {name: answer.events[-1].name for name, answer in calls.answers.items()} == {
                "one1": "error",
                "one2": "error",
                "alone": "error",
            }
            assert Yard.written == ["+one1"]
