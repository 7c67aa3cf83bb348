"""/metrics as Prometheus reads it, by the parser of its own client; and /health when a server accepts no sessions."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.sandboxes.worlds import Declared, Runner
from tests.wires.verl_wire import Steps, Trainer
from tests.wires.wire import H, Wire, until
from tests.worlds import MathEnv, OtherEnv
from toolyard import Environment, TextBlock, ToolOutput, tool
from toolyard.protocols.metrics.text import family
from toolyard.testing import running
from toolyard.version import __version__

pytestmark = pytest.mark.anyio


class Numbers:
    """One reading of /metrics."""

    def __init__(self, answer: httpx2.Response) -> None:
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        families = list(text_string_to_metric_families(answer.text))
        self.families = {family.name: family for family in families}
        assert len(self.families) == len(families), "two have the same name but for the _total of a counter"
        assert all(family.documentation and family.type for family in self.families.values())

    def value(self, name: str, **labels: str) -> float:
        """The sum of the samples with these labels."""
        family = next(self.families[n] for n in (name, name.removesuffix("_total")) if n in self.families)
        return sum(one.value for one in family.samples if one.name == name and labels.items() <= one.labels.items())

    def labels(self, name: str) -> list[dict[str, str]]:
        return [dict(sample.labels) for sample in self.families[name].samples]

    def buckets(self, name: str, **labels: str) -> dict[str, float]:
        found = [one for one in self.families[name].samples if one.name == f"{name}_bucket"]
        return {one.labels["le"]: one.value for one in found if labels.items() <= one.labels.items()}


async def numbers(wire: httpx2.AsyncClient) -> Numbers:
    return Numbers(await wire.get("/metrics"))


async def test_sessions_and_calls_are_counted_by_environment_state_and_outcome():
    with running([MathEnv, OtherEnv]) as server:
        async with Wire(server.url) as wire:
            one, two = await wire.open(), await wire.open(env_name="otherenv", task_spec={"q": "?"})
            await wire.call(one, "noparam")
            await wire.call(one, "noparam")
            await wire.call(one, "boom")
            await wire.call(one, "read_file", {"path": "x"})
            await wire.call(one, "big", {})
            await wire.call(one, "no_such")
            await wire.call(two, "other", env="otherenv")
            await wire.end(two)
            found = await numbers(wire)
    math = {"environment": "mathenv"}
    assert found.value("toolyard_sessions", **math, state="ready") == 1
    assert found.value("toolyard_sessions", environment="otherenv") == 0
    assert found.value("toolyard_sessions_opened_total", environment="otherenv") == 1
    assert found.value("toolyard_sessions_closed_total", environment="otherenv", reason="deleted") == 1
    outcomes = {"ok": 2, "tool_raised": 1, "tool_failed": 1, "bad_arguments": 1, "no_such_tool": 1}
    for outcome, count in outcomes.items():
        assert found.value("toolyard_calls_total", **math, outcome=outcome) == count, outcome
    assert found.value("toolyard_calls_total", **math) == 6
    assert found.value("toolyard_calls_total", environment="otherenv", outcome="ok") == 1
    assert found.buckets("toolyard_call_run_seconds", **math)["+Inf"] == 6
    assert found.buckets("toolyard_call_queue_seconds", environment="otherenv")["+Inf"] == 1


async def test_calls_that_run_and_wait_are_told_apart_and_timed_apart():
    with running([MathEnv], max_concurrent_calls=2) as server:
        async with Wire(server.url) as wire:
            sids = [await wire.open() for _ in range(2)]
            asking = [(sids[0], "block"), (sids[0], "block"), (sids[1], "slow"), (sids[1], "slow")]
            async with anyio.create_task_group() as group:
                for sid, name in asking:
                    group.start_soon(wire.call, sid, name, {"seconds": 0.3})
                await until(lambda: server.server.runtime.calls == 4)
                found = await numbers(wire)
            after = await numbers(wire)
    assert found.value("toolyard_calls_in_progress", state="running") == 3
    assert found.value("toolyard_calls_in_progress", state="waiting") == 1
    assert found.value("toolyard_calls_waiting_for_slot") == 1
    assert after.value("toolyard_calls_in_progress") == 0
    queue, run = (after.buckets(f"toolyard_call_{what}_seconds") for what in ("queue", "run"))
    assert (queue["0.1"], queue["+Inf"]) == (2, 4)
    assert (run["0.1"], run["+Inf"]) == (0, 4)


async def test_a_setup_that_goes_on_and_one_that_failed_are_states():
    with running([MathEnv]) as server:
        async with Wire(server.url) as wire:
            await wire.open(task_spec={"setup_seconds": 60})
            failed = await wire.open(task_spec={"setup_boom": True})
            assert (await wire.get("/mathenv/prompt", headers=H(failed))).status_code == 500
            found = await numbers(wire)
    assert found.value("toolyard_sessions", state="starting") == 1
    assert found.value("toolyard_sessions", state="failed") == 1
    assert found.value("toolyard_session_setups_failed_total") == 1


async def test_buckets_grow_and_their_last_is_the_count():
    with running([MathEnv]) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open()
            for seconds in (0, 0, 0.03, 0.2):  # timers may be a little early
                await wire.call(sid, "slow", {"seconds": seconds})
            found = await numbers(wire)
    family = found.families["toolyard_call_run_seconds"]
    buckets = list(found.buckets(family.name).values())
    assert buckets == sorted(buckets)
    totals = {one.name.removeprefix(f"{family.name}_"): one.value for one in family.samples if "le" not in one.labels}
    assert totals["count"] == buckets[-1] == 4
    assert 0.22 <= totals["sum"] < 5
    assert found.buckets(family.name)["0.01"] == 2


class Died(Environment):
    """Ends its process."""

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return []

    def get_prompt(self):
        return "?"

    @tool
    def kill(self) -> str:
        """Kill this process."""
        os.kill(os.getpid(), signal.SIGKILL)
        return "still here"


async def test_processes_of_sessions_are_counted_and_a_lost_one_is_a_state():
    with running([Died], placement="process") as server:
        async with Wire(server.url) as wire:
            before = await numbers(wire)
            one, _ = await wire.open(), await wire.open()
            found = await numbers(wire)
            answer = await wire.call(one, "kill", env="died")
            await until(lambda: server.server.runtime.placement.processes == 1)
            after = await numbers(wire)
    assert "error" in answer.names[-1] or not answer.result["ok"]
    assert before.labels("toolyard_placement_info") == [{"placement": "process"}]
    assert [at.value("toolyard_placement_processes") for at in (before, found, after)] == [0, 2, 1]
    assert after.value("toolyard_calls_total", outcome="lost") == 1
    assert after.value("toolyard_sessions", state="lost") == 1
    assert after.value("toolyard_sessions", state="ready") == 1


async def test_a_server_says_what_it_is_and_what_it_uses():
    with running([MathEnv], sweep_seconds=0.02) as server:
        async with Wire(server.url) as wire:
            await until(lambda: server.server.runtime.journal.swept)
            with anyio.fail_after(10):
                while not (found := await numbers(wire)).buckets("toolyard_loop_lag_seconds")["+Inf"]:
                    await anyio.sleep(0.02)
    assert found.labels("toolyard_build_info")[0]["version"] == __version__
    assert found.labels("toolyard_placement_info") == [{"placement": "local"}]
    assert found.value("toolyard_ready") == 1
    assert found.value("toolyard_sessions_limit") == 20_000
    assert found.value("process_resident_memory_bytes") > 2**20
    assert found.value("process_cpu_seconds_total") > 0
    assert 3 < found.value("process_open_fds") < found.value("process_max_fds")
    assert "toolyard_sandbox_info" not in found.families, "none is in use"


async def test_the_isolation_and_the_sandboxes_are_told_once_there_are_any():
    with running([Runner], sandboxes_ready=1) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open(task_spec={})
            await wire.call(sid, "python", {"code": "1"}, env="runner")
            found = await numbers(wire)
            report = server.server.sandboxes.report
    assert found.labels("toolyard_sandbox_info") == [{"backend": report.backend, "level": report.level}]
    assert found.value("toolyard_sandboxes", state="in_use") >= 1


def test_a_label_may_hold_any_character():
    odd = 'a "b" \\ c\nd \\n é'
    (read,) = text_string_to_metric_families("".join(family("x", "gauge", "X.", [("", {"odd": odd}, 1)])))
    assert [(sample.labels, sample.value) for sample in read.samples] == [({"odd": odd}, 1)]


# Where it is served, and to whom.


async def test_it_needs_the_key_as_everything_but_health_does():
    with running([MathEnv], api_key="s3cret") as server:
        async with Wire(server.url) as wire:
            for path in ("/metrics", "/toolyard/metrics"):
                assert (await wire.get(path)).status_code == 401
                assert (await wire.get(path, headers={"Authorization": "Bearer s3cret"})).status_code == 200


@pytest.mark.parametrize("protocol", [(), ("ors",), ("toolserver",), ("verl", "ors"), ("metrics",)])
async def test_it_is_served_whatever_protocol_is_asked_for(protocol):
    with running([MathEnv], protocol=protocol) as server:
        async with Wire(server.url) as wire:
            assert (await numbers(wire)).value("toolyard_sessions") == 0
            assert (await wire.get("/health")).json() == {"status": "ok"}
            assert (await wire.post("/metrics")).status_code == 405


class Two(Steps):
    """Tools that never wait: one that takes no time, and one that does."""

    @tool
    async def quick(self) -> str:
        return "quick"

    @tool
    async def slow(self) -> str:
        time.sleep(0.002)  # noqa: ASYNC251  # as an author might: it is in everybody's way
        return "slow"

    @tool
    async def shown(self) -> ToolOutput:
        return ToolOutput(blocks=[TextBlock(text=await self.slow())])

    @tool
    async def raises(self) -> str:
        raise ValueError(await self.slow())


async def test_every_call_of_a_batch_is_counted_with_the_time_that_it_took():
    ids = [f"t{n}" for n in range(140)]
    actions = ["<slow></slow>" if n % 70 == 0 else "<quick></quick>" for n in range(140)]
    with running([Two], protocol=("verl", "metrics")) as server:
        async with Trainer(server.url) as trainer:
            await trainer.batch(ids, ["nothing"] * 140)
            before = await numbers(trainer)
            assert [one.text.strip()[:14] for one in await trainer.batch(ids, actions)].count("<result>\nslow\n") == 2
            found = await numbers(trainer)
    assert before.value("toolyard_calls_total", outcome="ok") == 0
    assert found.value("toolyard_calls_total", environment="two", outcome="ok") == 140
    buckets = found.buckets("toolyard_call_run_seconds", environment="two")
    assert 138 >= buckets["0.001"] >= 100
    assert buckets["+Inf"] == 140
    took = {one.name: one.value for one in found.families["toolyard_call_run_seconds"].samples}
    assert took["toolyard_call_run_seconds_sum"] >= 0.004


@pytest.mark.parametrize(
    ("outcome", "action"),
    [("ok", "<slow></slow>"), ("ok", "<shown></shown>"), ("tool_raised", "<raises></raises>")],
)
async def test_no_call_of_a_batch_is_counted_with_the_time_of_another(outcome, action):
    """They run one after the other, so together they took no longer than the batch."""
    ids = [f"t{n}" for n in range(20)]
    with running([Two], protocol=("verl", "metrics")) as server:
        async with Trainer(server.url) as trainer:
            await trainer.batch(ids, ["nothing"] * 20)
            began = time.monotonic()
            await trainer.batch(ids, [action] * 20)
            seconds = time.monotonic() - began
            found = await numbers(trainer)
    assert found.value("toolyard_calls_total", environment="two", outcome=outcome) == 20
    took = {one.name: one.value for one in found.families["toolyard_call_run_seconds"].samples}
    assert 0.04 <= took["toolyard_call_run_seconds_sum"] <= seconds


async def test_for_verl_alone_the_root_is_that_of_the_original_and_ours_is_beside_it():
    with running([Steps], protocol=("verl",)) as server:
        async with Trainer(server.url) as trainer:
            assert "active_requests" in (await trainer.get("/metrics")).json()
            await trainer.act("t", "<note>one</note>")
            await trainer.act("t", "<note>two</note>")
            found = Numbers(await trainer.get("/toolyard/metrics"))
    assert found.value("toolyard_calls_total", outcome="ok") == 2
    assert found.value("toolyard_sessions", state="ready") == 1


# Health.


async def test_a_full_server_says_so_until_a_session_ends():
    with running([MathEnv], max_sessions=1) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open()
            answer = await wire.get("/health")
            reason = "all 1 sessions of this server are in use"
            assert (answer.status_code, answer.json()) == (503, {"status": "full", "reasons": [reason]})
            assert (await numbers(wire)).value("toolyard_ready") == 0
            await wire.end(sid)
            assert (await wire.get("/health")).content == b'{"status":"ok"}'
            assert (await numbers(wire)).value("toolyard_ready") == 1


async def test_a_server_whose_calls_wait_in_the_longest_queue_says_so():
    with running([MathEnv], max_concurrent_calls=1, max_queued_calls=0) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open()
            async with wire.follow(sid, "slow", {"seconds": 0.5}) as stream:
                await stream.event()
                answer = await wire.get("/health")
                await stream.rest()
            assert answer.status_code == 503
            assert answer.json() == {
                "status": "full",
                "reasons": ["1 calls are running or waiting, and no more are taken"],
            }
            assert (await wire.get("/health")).status_code == 200


async def test_a_server_that_is_stopped_says_so_while_calls_end():
    with running([MathEnv], max_sessions=1) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open()
            async with wire.follow(sid, "slow", {"seconds": 1}) as stream:
                await stream.event()
                server.server.stop()
                await until(lambda: server.server.runtime.draining)
                answer = await wire.get("/health")
                assert (await stream.event()).name == "end"
    assert answer.status_code == 503
    assert answer.json()["status"] == "draining"
    assert answer.json()["reasons"] == [
        "the server is shutting down",
        "all 1 sessions of this server are in use",
    ]


@contextmanager
def no_new_files() -> Iterator[None]:
    """This process, and so the server, can open no more files; open ones stay open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_a_server_that_cannot_start_processes_says_so_until_it_can():
    with running([Died], placement="process") as server:
        async with Wire(server.url) as wire:
            assert (await wire.get("/health")).json() == {"status": "ok"}
            with no_new_files():
                refused = await wire.post("/create", headers=H("s"), json={"task_spec": {}})
                health = await wire.get("/health")
            assert refused.status_code == 503
            assert health.status_code == 503
            assert health.json() == {"status": "unavailable", "reasons": ["no process for a session could be started"]}
            await wire.open()
            assert (await wire.get("/health")).json() == {"status": "ok"}


async def test_a_server_whose_sandboxes_do_not_start_says_so_but_not_why_if_it_needs_them():
    with running([Runner], sandbox="podman") as server:
        async with Wire(server.url) as wire:
            sid = await wire.open(task_spec={})
            answer = await wire.call(sid, "python", {"code": "1"}, env="runner")
            assert "podman" in str(answer.events[-1].data)
            assert (await wire.get("/health")).json() == {"status": "ok"}, "other environments do not need any"
    with running([Declared]) as server:
        async with Wire(server.url) as wire:
            assert (await wire.get("/health")).json()["status"] == "ok"
            server.server.sandboxes.failed = time.monotonic()
            health = await wire.get("/health")
    assert health.status_code == 503
    assert health.json() == {"status": "unavailable", "reasons": ["sandboxes could not be started"]}
