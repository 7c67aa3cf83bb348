"""A trajectory is a session: its task, its lifetime, and what it learns of rewards, ends and failures."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.wires.verl_wire import Steps, Trainer, answered, call, ended, gate
from tests.wires.wire import H, until
from tests.worlds import MathEnv, OtherEnv, torn_down
from toolyard.testing import Running, running

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def steps() -> Iterator[Running]:
    with running([Steps, MathEnv, OtherEnv]) as server:
        yield server


@pytest.fixture
async def trainer(steps: Running) -> AsyncIterator[Trainer]:
    gate.opened.clear()
    async with Trainer(steps.url) as trainer:
        yield trainer
    gate.opened.set()


@pytest.fixture
def name() -> str:
    return uuid.uuid4().hex


async def test_a_client_of_ors_neither_takes_the_name_of_a_trajectory_nor_reaches_one(trainer, name):
    body = {"env_name": "mathenv", "task_spec": {"q": "A"}}
    for sid in (f"verl:{name}", f"node:{name}:mathenv"):
        refused = await trainer.post("/create", headers=H(sid), json=body)
        assert (refused.status_code, refused.json()["detail"].partition(":")[0]) == (
            400,
            "a session id cannot begin with verl",
        )
    assert (await trainer.act(name, "<note>a</note>")).text == "\n<notes>a</notes>\n"
    for path in ("/ping", "/delete", "/delete_session"):
        assert (await trainer.post(path, headers=H(f"verl:{name}"))).status_code == 400
    assert (await trainer.get("/steps/prompt", headers=H(f"verl:{name}"))).status_code == 400
    assert (await trainer.act(name, "<note>b</note>")).text == "\n<notes>a b</notes>\n"


# Order.


async def test_the_actions_of_one_trajectory_in_one_batch_run_in_their_order(trainer, name):
    other = f"{name}-other"
    ids = [name, other, name, name, other]
    answers = await trainer.batch(ids, [f"<note>{n}</note>" for n in range(5)])
    assert [one.text for one in answers] == [
        f"\n<notes>{notes}</notes>\n" for notes in ("0", "1", "0 2", "0 2 3", "1 4")
    ]


async def test_an_action_after_the_end_in_the_same_batch_begins_anew(trainer, name):
    answers = await trainer.batch(
        [name] * 4, ["<note>a</note>", "", "<note>b</note>", "<note>c</note>"], finish=[False, True, False, False]
    )
    assert [one.text for one in answers] == [
        "\n<notes>a</notes>\n",
        "",
        "\n<notes>b</notes>\n",
        "\n<notes>b c</notes>\n",
    ]


async def test_trajectories_do_not_wait_for_each_other(trainer, name):
    waiting = asyncio.ensure_future(
        trainer.batch([name, f"{name}-2"], [call("wait", key=name), call("wait", key=f"{name}-2")])
    )
    await until(lambda: gate.came[name] and gate.came[f"{name}-2"])
    assert (await trainer.act(f"{name}-3", "<note>x</note>")).valid
    gate.opened.set()
    assert all(one.valid for one in await waiting)


async def test_a_thousand_trajectories_in_one_batch_keep_their_own_state(trainer, name):
    ids = [f"{name}-{n}" for n in range(1000)]
    for turn in range(2):
        answers = await trainer.batch(ids, [f"<note>{n}</note>" for n in range(1000)])
        assert [one.text for one in answers] == [
            f"\n<notes>{' '.join([str(n)] * (turn + 1))}</notes>\n" for n in range(1000)
        ]
    await trainer.finish(*ids)


async def test_actions_of_one_trajectory_in_two_requests_share_its_state(trainer, name):
    first, second = await asyncio.gather(trainer.act(name, "<note>a</note>"), trainer.act(name, "<note>b</note>"))
    assert {first.text, second.text} in (
        {"\n<notes>a</notes>\n", "\n<notes>a b</notes>\n"},
        {"\n<notes>b</notes>\n", "\n<notes>b a</notes>\n"},
    )


# The task.


async def test_extra_fields_choose_the_environment_and_the_task(trainer, name):
    assert (await trainer.act(name, "", {"split": "train", "index": 2})).text == "This is task 2."
    told = await trainer.act(f"{name}-2", "", {"environment": "MathEnv", "split": "train", "index": 3})
    assert told == ("3", False, False)
    assert (
        await trainer.act(f"{name}-3", "", {"env_name": "otherenv", "split": "train", "index": 1})
    ).text == "other 1"
    assert (await trainer.act(f"{name}-4", "", {"task_spec": {"name": "mine"}})).text == "This is mine."
    assert (await trainer.act(f"{name}-5", "", {"name": "of the dataset"})).text == "This is of the dataset."


async def test_what_the_first_action_said_holds_for_the_trajectory(trainer, name):
    await trainer.act(name, "<note>x</note>", {"split": "train", "index": 1})
    assert (await trainer.act(name, "", {"split": "train", "index": 2})).text == "This is task 1."


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"environment": "nope"}, "unknown environment 'nope'"),
        ({"split": "nope", "index": 0}, "nope"),
        ({"split": "train", "index": 99}, "99"),
        ({"constructor_boom": True}, "constructor boom"),
    ],
)
async def test_a_trajectory_that_cannot_begin_is_told_why_and_is_over(trainer, name, extra, said):
    wrong, right = await trainer.batch(
        [name, f"{name}-2"], ["<note>x</note>"] * 2, extra_fields=[extra, {"split": "train", "index": 0}]
    )
    assert (wrong.done, wrong.valid) == (True, False)
    assert wrong.text == ""
    assert said in wrong.observation["error"]
    assert said in wrong.observation["invalid_reason"]
    assert right.valid, "and the next one in the batch is as if nothing had been"


async def test_what_the_trainer_gives_is_not_the_models_to_set(trainer, name):
    assert (await trainer.act(name, call("given"), {"word": "first"})).text == answered("first")
    assert (await trainer.act(name, call("given"), {"word": "second"})).text == answered("second")
    assert (await trainer.act(name, call("given"))).text == answered("first"), "what the trajectory began with"
    assert (await trainer.act(name, call("given", word="mine", free="x"))).text == answered("first x")


# Outcomes.


@pytest.mark.parametrize("extra", [{}, {"extra_fields": [{"note": "a"}, {"note": "b"}, {"note": "c"}]}])
async def test_each_item_of_a_batch_knows_its_own_trajectory_and_the_task_stays_as_it_was(trainer, name, extra):
    ids = [f"{name} {n}" for n in range(3)]
    notes = [one["note"] for one in extra.get("extra_fields", [])] or [""] * 3
    told = [answered(f"{one} {note} {['note'] * bool(note)}") for one, note in zip(ids, notes, strict=True)]
    for _ in range(3):  # the first one opens the sessions
        assert [one.text for one in await trainer.batch(ids, [call("who")] * 3, **extra)] == told


async def test_a_finished_episode_takes_no_more_calls_and_says_so(trainer, name):
    first = await trainer.act(name, call("submit", answer="4"), {"environment": "mathenv", "task_spec": {"q": name}})
    assert first == ({"obs": answered("ok 4"), "reward": 1.0}, True, True)
    second = await trainer.act(name, call("submit", answer="5"))
    assert "the episode has finished" in second.text
    assert (second.done, second.valid) == (True, False)
    await trainer.finish(name)
    assert torn_down.count(name) == 1


async def test_a_tool_that_says_no_was_called_rightly(trainer, name):
    assert await trainer.act(name, call("fail")) == (answered("Tool 'fail' failed: not today"), False, True)


async def test_a_picture_is_sent_only_to_whoever_sent_one(trainer, name):
    blind = await trainer.act(name, call("see"))
    assert blind.observation == answered("<image>")
    seeing = await trainer.act(name, call("see"), {"images": ["data:image/png;base64,aGk="]})
    assert seeing.observation == {"obs": answered("<image>"), "image": "data:image/png;base64,aGk="}


async def test_beside_a_lone_picture_there_is_a_line_of_text(trainer, name):
    lone = await trainer.act(name, call("see", alone=True))
    assert lone.observation == answered("[an image: image/png]")


async def test_a_task_of_its_own_tools_is_driven_by_text(trainer, name):
    extra = {"environment": "mathenv", "task_spec": {"extra": True}}
    assert (await trainer.act(name, call("dyn", x="5"), extra)).text == answered("dyn got 5")
    missing = await trainer.act(name, call("nope"), extra)
    assert "'nope' is not a valid tool" in missing.text
    assert not missing.valid


# Lifetime.


async def test_a_trajectory_that_nobody_asks_for_is_closed(name):
    with running([Steps], idle_seconds=0.3, sweep_seconds=0.05) as server:
        async with Trainer(server.url) as trainer:
            await trainer.act(name, "<note>x</note>", {"name": name})
            await until(lambda: name in ended)
            assert not server.server.runtime.sessions
            assert (await trainer.act(name, "<note>y</note>")).text == "\n<notes>y</notes>\n", "it begins anew"


async def test_one_trajectory_too_many_is_refused_and_the_others_go_on(name):
    with running([Steps], max_sessions=2) as server:
        async with Trainer(server.url) as trainer:
            ids = [f"{name}-{n}" for n in range(3)]
            answers = await trainer.batch(ids, ["<note>x</note>"] * 3)
            refused = [one for one in answers if not one.valid]
            assert len(refused) == 1
            assert refused[0].done
            full = "all 2 sessions of this server are in use"
            told = {"obs": full, "error": full, "reason": "overloaded", "retryable": True, "reward": None}
            assert refused[0].observation == told
            held = [name for name, one in zip(ids, answers, strict=True) if one.valid]
            await trainer.finish(held[0])
            assert (await trainer.act(f"{name}-new", "<note>x</note>")).valid


async def test_the_constructor_teardown_and_state_belong_to_one_trajectory(trainer, steps, name):
    ids = [f"{name}-{n}" for n in range(20)]
    await trainer.batch(ids, ["<note>x</note>"] * 20, extra_fields=[{"name": one} for one in ids])
    assert {f"verl:{one}" for one in ids} <= set(steps.server.runtime.sessions)
    await trainer.finish(*ids)
    assert sorted(one for one in ended if one.startswith(name)) == sorted(ids)
    assert not {f"verl:{one}" for one in ids} & set(steps.server.runtime.sessions)
