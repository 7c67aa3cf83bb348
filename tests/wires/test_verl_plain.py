"""Batches for tools that are plain functions, which run in threads together."""

from __future__ import annotations

import threading
import uuid
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.wires.verl_wire import Trainer, answered, call
from toolyard import Environment, Split, tool
from toolyard.core.forms import Tagged
from toolyard.testing import Running, running

pytestmark = pytest.mark.anyio

made: Counter[str] = Counter()
"""How often the constructor ran for a trajectory of this name."""
doors: defaultdict[str, threading.Event] = defaultdict(threading.Event)


class Mute(Tagged):
    def answer(self, text: str, result: str) -> str:
        raise ValueError("nothing can be written")


class Hands(Environment):
    def __init__(self, task_spec={}, secrets={}):
        super().__init__(task_spec, secrets)
        made[task_spec.get("name", "")] += 1
        if task_spec.get("boom"):
            raise ValueError("constructor boom")
        self.turns = 0

    @classmethod
    def list_splits(cls):
        return [Split(name="train", type="train")]

    @classmethod
    def list_tasks(cls, split):
        return [{}]

    def get_prompt(self):
        return "Do something."

    @tool(form=Tagged("say", "text", before="", after=""))
    def say(self, text: str) -> str:
        """Say it, and in which turn."""
        self.turns += 1
        return f"{text} {self.turns}"

    @tool
    def knock(self, door: str) -> str:
        """Wait until somebody opens."""
        return "in" if doors[door].wait(20) else "nobody opened"

    @tool
    def unlock(self, door: str) -> str:
        """Open."""
        doors[door].set()
        return "open"

    @tool(form=Mute("mumble", "text"))
    def mumble(self, text: str) -> str:
        """Say it, so that nobody can write it down."""
        return text

    @tool(form=Mute("whisper", "text"))
    async def whisper(self, text: str) -> str:
        """The same as a coroutine."""
        return text

    @tool
    async def look(self) -> str:
        """A coroutine."""
        self.turns += 1
        return f"looked {self.turns}"


@pytest.fixture(scope="module")
def hands() -> Iterator[Running]:
    with running([Hands]) as server:
        yield server


@pytest.fixture
async def trainer(hands: Running) -> AsyncIterator[Trainer]:
    async with Trainer(hands.url) as trainer:
        yield trainer


@pytest.fixture
def name() -> str:
    return uuid.uuid4().hex


async def test_many_trajectories_keep_their_own_state_from_the_first_action(trainer, name):
    ids = [f"{name}-{n}" for n in range(700)]
    for turn in (1, 2):
        told = await trainer.batch(ids, [f"<say>{n}</say>" for n in range(700)])
        assert [one.text for one in told] == [f"{n} {turn}" for n in range(700)]
    await trainer.finish(*ids)


async def test_one_that_takes_its_time_holds_up_no_other_of_the_batch_however_far_behind(trainer, name):
    ids = [f"{name}-{n}" for n in range(700)]
    actions = [call("knock", door=name), *["<say>hello</say>"] * 698, call("unlock", door=name)]
    for _ in range(2):
        first, *_, last = await trainer.batch(ids, actions)
        assert (first.text, last.text) == (answered("in"), answered("open"))
        doors[name].clear()
    await trainer.finish(*ids)


async def test_a_constructor_that_fails_is_called_once_and_the_others_act(trainer, name):
    ids = [f"{name}-{n}" for n in range(3)]
    extras = [{"name": one, "boom": n == 1} for n, one in enumerate(ids)]
    first, wrong, last = await trainer.batch(ids, ["<say>x</say>"] * 3, extra_fields=extras)
    assert (first.text, last.text) == ("x 1", "x 1")
    assert (wrong.done, wrong.valid) == (True, False)
    assert "constructor boom" in wrong.observation["error"]
    assert [made[one] for one in ids] == [1, 1, 1]


async def test_plain_functions_coroutines_ends_and_idle_talk_in_one_batch(trainer, name):
    ids = [f"{name}-{n}" for n in range(5)]
    actions = ["<say>a</say>", call("look"), "just talk", "<say>last</say>", ""]
    for turn in (1, 2):
        said, looked, talked, last, gone = await trainer.batch(
            ids, actions, finish=[False] * 4 + [True], is_last_step=[False] * 3 + [True, True]
        )
        assert said == (f"a {turn}", False, True)
        assert looked == (answered(f"looked {turn}"), False, True)
        assert (talked.done, talked.valid) == (False, False)
        assert last == ("last 1", False, True)  # opened anew each time
        assert gone == ("", True, True)


@pytest.mark.parametrize("tag", ["mumble", "whisper"])
async def test_a_form_that_cannot_write_a_result_spoils_no_other_of_the_batch(trainer, name, tag):
    ids = [f"{name}-{n}" for n in range(3)]
    for turn in (1, 2):
        first, wrong, last = await trainer.batch(ids, ["<say>a</say>", f"<{tag}>b</{tag}>", "<say>c</say>"])
        assert (first.text, last.text) == (f"a {turn}", f"c {turn}")
        assert (wrong.done, wrong.valid) == (True, False)
        assert "nothing can be written" in wrong.observation["error"]


class Unmade(Hands):
    """Its constructor needs no thread, so its first thread is that of a call."""

    __init__ = Environment.__init__

    @tool
    def hear(self) -> str:
        """Nothing much."""
        return "heard"


async def test_calls_for_which_there_is_no_thread_are_lost_and_not_scored(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    with running([Unmade]) as server:
        async with Trainer(server.url) as trainer:
            with monkeypatch.context() as patched:
                patched.setattr(threading.Thread, "start", refuse)
                told = await trainer.batch(["x", "y"], [call("hear")] * 2)
            assert [(one.done, one.valid) for one in told] == [(True, False)] * 2
            assert all(one.observation["retryable"] and one.observation["reward"] is None for one in told)
            assert (await trainer.act("x", call("hear"))).text == answered("heard")
