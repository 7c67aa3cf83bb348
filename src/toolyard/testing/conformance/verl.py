"""The cases of verl-tool's tool server: batches of texts in, observations out."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from toolyard.testing.conformance.case import Chapter, Kit, Untried
from toolyard.testing.conformance.http import Answer, Http, require
from toolyard.testing.conformance.target import Target

_TEXT = "Nothing in these words calls a tool."


@dataclass(frozen=True, slots=True)
class Observed:
    """The answer to a batch, whose lists are as long as the batch."""

    answer: Answer
    observations: Sequence[Any]
    dones: Sequence[bool]
    valids: Sequence[bool]

    @classmethod
    def of(cls, answer: Answer, count: int) -> Observed:
        require(answer.status == 200, answer)
        told = answer.object
        lists = [told.get(name) for name in ("observations", "dones", "valids")]
        require(all(isinstance(one, list) and len(one) == count for one in lists), answer)
        return cls(answer, told["observations"], told["dones"], told["valids"])

    def require_finished(self) -> None:
        count = len(self.dones)
        finished = ([""] * count, [True] * count, [True] * count)
        require((self.observations, self.dones, self.valids) == finished, self.answer)


class Verl:
    def __init__(self, http: Http, target: Target) -> None:
        self._http = http
        self._target = target
        self._open: set[str] = set()

    async def get(self, path: str) -> Answer:
        return await self._http.ask("GET", path)

    async def post(self, body: Any) -> Answer:
        """Send a body unchanged; `close` finishes its trajectories after the last case."""
        if isinstance(body, bytes):
            return await self._http.ask(
                "POST", "/get_observation", content=body, headers={"Content-Type": "application/json"}
            )
        self._open.update(map(str, body.get("trajectory_ids") or ()))
        return await self._http.ask("POST", "/get_observation", json=body)

    async def batch(self, ids: Sequence[Any], actions: Sequence[str], **more: Any) -> Observed:
        body = {"trajectory_ids": list(ids), "actions": list(actions), **more}
        if self._target.environment and "extra_fields" not in body:
            body["extra_fields"] = [self.about for _ in ids]
        return Observed.of(await self.post(body), len(ids))

    @property
    def about(self) -> dict[str, Any]:
        """The extra fields with which a trainer names the task."""
        if not self._target.environment:
            return {}
        task = {"split": self._target.split, "index": self._target.index} if self._target.split else {}
        return {"environment": self._target.environment, **task}

    async def finish(self, *ids: str) -> Observed:
        flags = [True] * len(ids)
        return await self.batch(ids, [""] * len(ids), finish=flags, is_last_step=flags)

    @property
    def action(self) -> str:
        """A text that calls a tool."""
        if self._target.action:
            return self._target.action
        if self._target.tool:
            call = json.dumps({"name": self._target.tool, "arguments": dict(self._target.arguments)})
            return f"<tool_call>{call}</tool_call>"
        raise Untried("no text is known that calls a tool; give one with --action")

    async def close(self) -> None:
        if ids := sorted(self._open):
            await self.finish(*ids)


def new_id() -> str:
    return f"conform-{uuid.uuid4().hex}"


async def _speaks(verl: Verl) -> bool:
    await verl.finish(new_id())
    return True


CHAPTER: Chapter[Verl] = Chapter("verl")
case = CHAPTER.case


@case(
    "E66",
    "numbers in processing_time_ms and queue_time_ms, and seconds in X-Process-Time; never null",
    difference="D-25",
)
async def _times(verl: Verl) -> None:
    """The times of an answer, where it tells them"""
    seen = await verl.batch([new_id()], [_TEXT])
    told = seen.answer.object
    times = [told[name] for name in ("processing_time_ms", "queue_time_ms") if name in told]
    require(all(type(one) in (int, float) for one in times), seen.answer)
    text = seen.answer.headers.get("x-process-time", "0")
    require(text.replace(".", "", 1).replace("e-", "", 1).isdigit(), f"X-Process-Time: {text}")


@case("E70", "valid, and an observation that is text, or an object whose obs is text")
async def _call(verl: Verl) -> None:
    """A text that calls a tool"""
    seen = await verl.batch([new_id()], [verl.action])
    require(seen.valids == [True], seen.answer)
    require(is_observation(seen.observations[0]), seen.answer)


def is_observation(value: Any) -> bool:
    if isinstance(value, dict):
        reward = value.get("reward")
        return isinstance(value.get("obs"), str) and (reward is None or type(reward) in (int, float))
    return isinstance(value, str)


@case("E77", 'not valid, not done, the observation "" or an object with obs ""')
async def _no_tool(verl: Verl) -> None:
    """A text that calls no tool"""
    seen = await verl.batch([new_id()], [_TEXT])
    require((seen.dones, seen.valids) == ([False], [False]), seen.answer)
    (observation,) = seen.observations
    require((observation.get("obs") if isinstance(observation, dict) else observation) == "", seen.answer)


@case("E77b", 'the text "", not an object: the evaluation service hands it to a tokenizer', difference="D-21")
async def _no_tool_text(verl: Verl) -> None:
    """The observation of a text that calls no tool"""
    seen = await verl.batch([new_id()], [_TEXT])
    require(seen.observations == [""], seen.answer)


@case("E78", 'the observation "", done, valid; an unknown trajectory is fine, and so is the second time')
async def _finish(verl: Verl) -> None:
    """finish: true at the top level, twice"""
    one = new_id()
    for _ in range(2):
        (await verl.finish(one)).require_finished()


@case("E79", 'the observation "", done, valid')
async def _finish_in_extra_fields(verl: Verl) -> None:
    """finish: true in extra_fields"""
    (await verl.batch([new_id()], [_TEXT], extra_fields=[{"finish": True}])).require_finished()


@case("E80", "both trajectories are finished", difference="D-24")
async def _finish_in_both(verl: Verl) -> None:
    """finish: true at the top level, false in extra_fields of the first"""
    seen = await verl.batch([new_id(), new_id()], ["", ""], extra_fields=[{"finish": False}, {}], finish=[True, True])
    seen.require_finished()


@case("E81", "answers in the order of the batch")
async def _order(verl: Verl) -> None:
    """A batch of three, of which the second finishes"""
    about = [{**verl.about, "finish": finish} for finish in (False, True, False)]
    seen = await verl.batch([new_id() for _ in range(3)], [_TEXT] * 3, extra_fields=about)
    require((list(seen.dones), list(seen.valids)) == ([False, True, False], [False, True, False]), seen.answer)


@case("E82", "422 each")
async def _broken(verl: Verl) -> None:
    """Lists of different lengths, empty lists, and a body that is not JSON"""
    (await verl.post({"trajectory_ids": [new_id()], "actions": ["", ""]})).require(422)
    (await verl.post({"trajectory_ids": [], "actions": []})).require(422)
    (await verl.post(b"{bad")).require(422)


@case("E83", "accepted: 200", difference="D-23")
async def _number(verl: Verl) -> None:
    """A trajectory whose id is a number"""
    await verl.batch([uuid.uuid4().int % 2**31], [_TEXT])


@case("E84", "accepted: 200")
async def _nulls(verl: Verl) -> None:
    """null in extra_fields, finish and is_last_step"""
    seen = await verl.post(
        {
            "trajectory_ids": [new_id()],
            "actions": [_TEXT],
            "extra_fields": None,
            "finish": None,
            "is_last_step": None,
        }
    )
    Observed.of(seen, 1)


@case("E85", "accepted: 200; trainers send values as Python writes them")
async def _not_a_number(verl: Verl) -> None:
    """NaN in extra_fields"""
    await verl.batch([new_id()], [_TEXT], extra_fields=[{**verl.about, "score": float("nan")}])


@case("E86", "accepted: 200", difference="D-22")
async def _other_lists(verl: Verl) -> None:
    """A list of other values beside the batch"""
    await verl.batch([new_id()], [_TEXT], public_tests=['{"inputs": ["1"], "outputs": ["2"]}'])


@case("E98", "the other one's answer is as it would be alone")
async def _isolated(verl: Verl) -> None:
    """A batch of two, of which one calls a tool"""
    action = verl.action
    seen = await verl.batch([new_id(), new_id()], [_TEXT, action])
    require((list(seen.valids), seen.dones[0]) == ([False, True], False), seen.answer)


@case("E100", "the same observation, done and valid for both")
async def _twice_at_once(verl: Verl) -> None:
    """The same body twice at once"""
    body = {"trajectory_ids": [new_id()], "actions": [_TEXT], "extra_fields": [verl.about]}
    one, other = [Observed.of(answer, 1) for answer in await asyncio.gather(verl.post(body), verl.post(body))]
    require((one.observations, one.dones, one.valids) == (other.observations, other.dones, other.valids), other.answer)


@case("E101", 'status "healthy", and finish as the last of the tools it names')
async def _health(verl: Verl) -> None:
    """GET /health; /verl/health where another protocol has that path"""
    answer = await verl.get("/health")
    if answer.status != 200 or answer.object.get("status") == "ok":
        answer = await verl.get("/verl/health")
    require(answer.status == 200 and answer.object.get("status") == "healthy", answer)
    require(answer.object.get("tools", ["finish"])[-1] == "finish", answer)


@case("E103", "200 and JSON: the loop reads observations[0], int(dones[0]), int(valids[0]), float(processing_time_ms)")
async def _agent_loop(verl: Verl) -> None:
    """The request of verl-tool's agent loop"""
    extra = {**verl.about, "index": 0, "question": "?"} if not verl.about else verl.about
    seen = await verl.batch([new_id()], [_TEXT], finish=[False], is_last_step=[False], extra_fields=[extra])
    require(seen.answer.kind == "application/json", seen.answer)
    require(is_observation(seen.observations[0]), seen.answer)
    require(type(seen.dones[0]) is bool and type(seen.valids[0]) is bool, seen.answer)
    require(float(seen.answer.object.get("processing_time_ms", 0)) >= 0, seen.answer)


KIT: Kit[Verl] = Kit("verl", Verl, _speaks, Verl.close, CHAPTER.cases)
