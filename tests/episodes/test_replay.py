"""Replaying calls of recorded episodes: the same, different, or impossible; and grading again."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import warm
from tests.command import TOOLYARD, WarmCommand
from tests.docs.pages import ROOT
from tests.wires.toolserver_wire import Node
from tests.wires.verl_wire import Trainer, call
from tests.wires.wire import H, Wire
from toolyard import Environment
from toolyard.core.output import JsonObject
from toolyard.testing import Running, running

pytestmark = pytest.mark.anyio

WORLD = '''
import asyncio, itertools, random
from typing import Annotated
from toolyard import AskAgain, Environment, ImageBlock, TextBlock, ToolError, ToolOutput, tool
from toolyard.core.errors import SandboxLost
from toolyard.core.tool import Given

class World(Environment):
    replayable = True

    def __init__(self, task_spec={}, secrets={}):
        super().__init__(task_spec, secrets)
        self.notes = []

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{"n": n} for n in range(3)]

    def setup(self):
        if self.task_spec.get("setup_boom"):
            raise ValueError("setup boom")

    def get_prompt(self):
        return f"Task {self.task_spec}"

    @tool
    async def note(self, text: str) -> ToolOutput:
        """Write."""
        self.notes.append(text)
        picture = ImageBlock(data="aGk=", mimeType="image/png")
        return ToolOutput(blocks=[TextBlock(text=" ".join(self.notes)), picture], reward=GRADE)

    @tool
    async def say_no(self) -> str:
        """Say no."""
        raise ToolError("no")

    @tool
    async def lose(self) -> str:
        """Lose."""
        raise SandboxLost("gone")

    @tool
    async def chance(self) -> str:
        """Not the same twice."""
        return str(random.random())

    @tool
    async def given(self, word: Annotated[str, Given()] = "none") -> str:
        """What the trainer says beside the call."""
        return word

    @tool
    async def slow_start(self) -> AskAgain:
        """Say nothing yet."""
        self.looks = itertools.count()
        return AskAgain("look", {})

    @tool
    async def look(self) -> object:
        """Look whether it is there."""
        return "there" if next(self.looks) >= 2 else AskAgain("look", {})

    @tool
    async def whisper(self) -> str:
        """A secret."""
        return self.secrets.get("token", "")

    @tool
    async def large(self, size: int) -> str:
        """Much."""
        return "x" * size

    @tool
    async def end(self) -> ToolOutput:
        """The end."""
        return ToolOutput(reward=1.0, finished=True)

    @classmethod
    def score(cls, episode):
        if episode["steps"] and episode["steps"][0]["tool"] == "chance":
            raise ValueError("score broke")
        return {"steps": len(episode["steps"]), "half": (episode["return"] or 0) / 2}
'''


def world(folder: Path, name: str = "world.py", grade: object = 0.5, **changes: str) -> Path:
    """The file of an environment, with some of its text replaced."""
    source = WORLD.replace("GRADE", repr(grade))
    for old, new in changes.items():
        source = source.replace(old.replace("_", " "), new)
    (folder / name).write_text(source)
    return folder / name


def environment(path: Path) -> type[Environment]:
    names: dict[str, object] = {"__name__": "world"}
    exec(compile(path.read_text(), str(path), "exec"), names)  # one of our files
    found = names["World"]
    assert isinstance(found, type)
    return found


def toolyard(*args: object) -> subprocess.CompletedProcess[str]:
    return warm.toolyard(*map(str, args), timeout=120)


def replayed(target: Path, store: Path, *more: object) -> tuple[int, Sequence[JsonObject], JsonObject]:
    """The exit code, a line for each episode, and the last line."""
    done = toolyard("replay", target, *more, "--store", store, "--json")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines, done.stderr
    keys = {"id", "result", "step", "difference", "old_return", "new_return"}
    assert all(line.keys() == keys for line in lines[:-1])
    assert lines[-1].keys() == {"same", "differs", "cannot"}
    return done.returncode, lines[:-1], lines[-1]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


async def play(server: Running, *calls: tuple[str, JsonObject], **create: object) -> None:
    async with Wire(server.url) as wire:
        sid = await wire.open(**(create or {"split": "train", "index": 1}))
        for name, arguments in calls:
            await wire.call(sid, name, dict(arguments), env="world")
        await wire.end(sid)


async def test_an_episode_that_goes_as_it_did_is_the_same(tmp_path, store):
    path = world(tmp_path)
    with running([environment(path)], record=str(store)) as server:
        await play(server, ("note", {"text": "a"}), ("nope", {}), ("note", {}), ("say_no", {}), ("note", {"text": "b"}))
        await play(server, ("end", {}), ("note", {"text": "late"}))
        await play(server)
        await play(server, ("note", {"text": "own"}), task_spec={"mine": True})
    code, lines, counts = replayed(path, store)
    assert (code, counts) == (0, {"same": 4, "differs": 0, "cannot": 0})
    assert sorted((line["old_return"], line["new_return"]) for line in lines if line["old_return"] is not None) == [
        *((0.5, 0.5), (1.0, 1.0), (1.0, 1.0)),
    ]


async def test_another_reward_is_found_at_its_step_and_both_returns_are_shown(tmp_path, store):
    path = world(tmp_path)
    with running([environment(path)], record=str(store)) as server:
        await play(server, ("say_no", {}), ("note", {"text": "a"}), ("end", {}))
    other = world(tmp_path, "other.py", grade=0.25)
    code, (line,), counts = replayed(other, store)
    assert (code, counts["differs"]) == (1, 1)
    assert (line["result"], line["step"], line["difference"]) == ("differs", 2, "reward was 0.5, is 0.25")
    assert (line["old_return"], line["new_return"]) == (1.5, 1.25)
    told = toolyard("replay", other, "--store", store, "--rewards")
    assert "1.5" in told.stdout
    assert "1.25" in told.stdout
    same_rewards = world(tmp_path, "words.py", **{'"_".join(self.notes)': '"|".join(self.notes) + "!"'})
    code, (line,), _ = replayed(same_rewards, store)
    assert (code, line["result"]) == (1, "differs")
    assert "-a\n+a!" in line["difference"]
    code, (line,), _ = replayed(same_rewards, store, "--rewards")
    assert (code, line["result"]) == (0, "same")


async def test_an_environment_that_is_not_the_same_twice_is_found_out(tmp_path, store):
    path = world(tmp_path)
    with running([environment(path)], record=str(store)) as server:
        await play(server, ("note", {"text": "a"}), ("chance", {}))
    code, (line,), _ = replayed(path, store)
    assert (code, line["result"], line["step"]) == (1, "differs", 2)


async def test_what_cannot_be_made_again_says_why_and_where(tmp_path, store):
    path = world(tmp_path)
    with running([environment(path)], record=str(store), output_bytes=10_000) as server:
        await play(server, ("note", {"text": "a"}), ("lose", {}))
        await play(server, ("whisper", {}), task_spec={}, secrets={"token": "s3cret-token"})
        await play(server, ("large", {"size": 20_000}))
        async with Wire(server.url) as wire:
            await wire.open()
            await asyncio.sleep(0.3)
            code, lines, counts = replayed(path, store)
    assert (code, counts) == (1, {"same": 0, "differs": 0, "cannot": 4})
    found = [(line["step"], line["difference"].split(":")[0]) for line in lines]
    assert sorted(found, key=str) == sorted(
        [
            (2, "the call came to an end that was not its own"),
            (1, "something in the call was not recorded"),
            (1, "its result was too large, and is recorded in part"),
            (None, "it is not complete"),
        ],
        key=str,
    )


async def test_an_environment_that_is_gone_or_cannot_be_set_up_is_said(tmp_path, store):
    path = world(tmp_path)
    with running([environment(path)], record=str(store)) as server:
        await play(server, ("note", {"text": "a"}))
    gone = world(tmp_path, "gone.py", **{"class_World(": "class Else("})
    code, (line,), _ = replayed(gone, store)
    assert (code, line["result"]) == (1, "cannot")
    assert "unknown environment 'world'" in line["difference"]
    broken = world(tmp_path, "broken.py")
    broken.write_text(broken.read_text().replace('if self.task_spec.get("setup_boom"):', "if True:"))
    code, (line,), _ = replayed(broken, store)
    assert (code, line["result"]) == (1, "cannot")
    assert "setup boom" in line["difference"]


async def test_a_fork_is_replayed_behind_its_parent(tmp_path, store):
    path = world(tmp_path)
    with running([environment(path)], record=str(store)) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open(split="train", index=0)
            await wire.call(sid, "note", {"text": "a"}, env="world")
            (fork,) = (await wire.post("/world/fork", headers=H(sid), json={})).json()["sids"]
            await wire.call(sid, "note", {"text": "b"}, env="world")
            await wire.call(fork, "note", {"text": "c"}, env="world")
            (second,) = (await wire.post("/world/fork", headers=H(fork), json={})).json()["sids"]
            await wire.call(second, "note", {"text": "d"}, env="world")
            for each in (sid, fork, second):
                await wire.end(each)
    code, lines, counts = replayed(path, store)
    assert (code, counts) == (0, {"same": 3, "differs": 0, "cannot": 0}), lines
    assert sorted(line["new_return"] for line in lines) == [0.5, 0.5, 1.0]


async def test_what_a_trainer_gave_beside_a_call_is_given_again(tmp_path, store):
    path = world(tmp_path)
    with running([environment(path)], record=str(store)) as server:
        async with Trainer(server.url) as trainer:
            seen = await trainer.act("t", call("given"), {"environment": "world", "word": "gold"})
            assert "gold" in str(seen.observation)
            await trainer.finish("t")
    code, _, counts = replayed(path, store)
    assert (code, counts["same"]) == (0, 1)


async def test_a_result_that_a_client_asked_for_again_is_compared_with_the_last(tmp_path, store):
    path = world(tmp_path)
    with running([environment(path)], record=str(store)) as server:
        async with Node(server.url) as node:
            await node.post("/get_cookies", json={"environment": "world"})
            answer = await node.asked("slow_start")
            while answer.status_code == 450:
                answer = await node.asked("look")
            assert answer.json() == "there"
            await node.answer("/release_session")
    code, _, counts = replayed(path, store)
    assert (code, counts) == (0, {"same": 1, "differs": 0, "cannot": 0})


async def test_only_the_chosen_are_replayed(tmp_path, store):
    path = world(tmp_path)
    with running([environment(path)], record=str(store)) as server:
        for index in range(3):
            await play(server, ("note", {"text": "a"}), split="train", index=index)
    _, lines, _ = replayed(path, store, "--index", 2)
    assert len(lines) == 1
    _, again, _ = replayed(path, store, lines[0]["id"])
    assert [line["id"] for line in again] == [lines[0]["id"]]
    assert toolyard("replay", path, "--store", store, "--reward", "much").returncode == 2
    assert toolyard("replay", path).returncode == 2
    assert toolyard("replay", path, "--store", tmp_path / "none.db").returncode == 2


async def test_scores_given_anew_stand_beside_the_old_ones(tmp_path, store):
    path = world(tmp_path)
    with running([environment(path)], record=str(store)) as server:
        await play(server, ("note", {"text": "a"}), ("end", {}))
        await play(server, ("chance", {}))
    done = toolyard("rescore", path, "--store", store, "--json")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 1
    assert lines[0]["scores"] == {"steps": 2.0, "half": 0.75}
    assert (lines[1]["scores"], lines[1]["problem"]) == (None, "ValueError: score broke")
    shown = json.loads(toolyard("episodes", "show", lines[0]["id"], "--store", store, "--json").stdout)
    assert {score["name"]: score["score"] for score in shown["scores"]} == {"steps": 2.0, "half": 0.75}
    assert shown["return"] == 1.5
    without = world(tmp_path, "without.py", **{"def_score(cls,_episode)": "def other(cls, episode)"})
    refused = toolyard("rescore", without, "--store", store)
    assert refused.returncode == 2
    assert "has no score()" in refused.stderr
    assert "replay --rewards" in " ".join(refused.stderr.split())


EXAMPLES = {"arithmetic": 6, "exam": 6, "maze": 6, "chart": 6, "code_runner": 6, "repair": 2}
"""How many episodes to play of each. Those of `repair` run tests in sandboxes."""


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "count"), EXAMPLES.items())
async def test_the_episodes_of_an_example_go_as_they_did(name, count, store):
    target = ROOT / "examples" / f"{name}.py"
    process = WarmCommand([TOOLYARD, "serve", str(target), "--port", "0", "--record", str(store)], env={})
    try:
        await play_at_random(process.until(r"http://127\.0\.0\.1:\d+").group(), count)
    finally:
        process.process.terminate()
        process.wait()
    code, lines, counts = replayed(target, store)
    assert (code, counts) == (0, {"same": count, "differs": 0, "cannot": 0}), lines


async def play_at_random(url: str, count: int) -> None:
    """Episodes of calls with arguments from the tools' schemas."""
    chance = random.Random(7)
    async with Wire(url) as wire:
        (env, *_) = (await wire.get("/list_environments")).json()
        splits = (await wire.get(f"/{env}/splits")).json()
        for number in range(count):
            sid = await wire.open(env_name=env, split=splits[number % len(splits)]["name"], index=0)
            await wire.get(f"/{env}/prompt", headers=H(sid))
            for spec in (await wire.get(f"/{env}/task_tools", headers=H(sid))).json()["tools"]:
                properties = (spec["input_schema"] or {}).get("properties", {})
                arguments = {name: drawn(about, chance) for name, about in properties.items()}
                await wire.post(f"/{env}/call", headers=H(sid), json={"name": spec["name"], "input": arguments})
            await wire.end(sid)


def drawn(about: JsonObject, chance: random.Random) -> object:
    if "enum" in about:
        return chance.choice(about["enum"])
    match about.get("type"):
        case "integer":
            return chance.randint(0, 9)
        case "number":
            return chance.random()
        case "boolean":
            return chance.random() < 0.5
        case _:
            return chance.choice(["1 + 1", "print(3)", "north", "7"])
