"""Named rewards: what every wire shows of them to trainers, and that no agent sees them."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing

import pytest

from tests.wires import mcp_wire
from tests.wires.dialects import DIALECTS, Mcp, Verl
from tests.worlds import OneTask
from toolyard import AsyncClient, TextBlock, ToolOutput, tool
from toolyard.client import ToolCallFailed
from toolyard.testing import running

pytestmark = pytest.mark.anyio

REWARDS = {"correct": 1.0, "style": 0.2}


class Graded(OneTask):
    """Named rewards, as an author may return them."""

    latch_finished = False

    @tool
    def grade(self) -> ToolOutput:
        """Grade."""
        return ToolOutput(blocks=[TextBlock(text="graded")], rewards=REWARDS, weights={"style": 0.5})

    @tool
    def overrule(self) -> ToolOutput:
        """Grade, with a sum of its own."""
        return ToolOutput(blocks=[TextBlock(text="graded")], rewards=REWARDS, reward=0.25, metadata={"valid": True})

    @tool
    def spoil(self, style: str, reward: float | None = None) -> ToolOutput:
        """Grade with a number that is none."""
        return ToolOutput(rewards={"correct": 1.0, "style": float(style)}, reward=reward)

    @tool
    def other(self) -> ToolOutput:
        """Something else under the same key."""
        return ToolOutput(blocks=[TextBlock(text="x")], metadata={"rewards": ["a", 1]})


@pytest.fixture(scope="module", params=["local", "process", "pool"])
def graded(request):
    with running([Graded], placement=request.param) as server:
        yield server


@pytest.fixture(params=DIALECTS, ids=lambda dialect: dialect.name)
async def session(request, graded):
    async with request.param(graded.url) as session:
        await session.open("graded", {})
        yield session
        await session.close()


async def test_the_reward_is_the_weighted_sum_and_its_parts_reach_every_trainer(session):
    came = await session.call("grade")
    assert (came.kind, came.text, came.reward) == ("ok", "graded", 1.1)
    assert session.named == (None if isinstance(session, Mcp) else REWARDS)


async def test_a_reward_that_is_given_is_not_a_sum(session):
    came = await session.call("overrule")
    assert (came.kind, came.reward) == ("ok", 0.25)
    assert session.named == (None if isinstance(session, Mcp) else REWARDS)


@pytest.mark.parametrize("style", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("reward", [None, 1.0])
async def test_a_named_reward_that_is_no_finite_number_is_a_bug_and_no_reward(session, style, reward):
    came = await session.call("spoil", style=style, reward=reward)
    assert (came.kind, came.reward) == ("failed", None)
    if session.tells_exceptions:
        assert came.text.endswith(f"its reward 'style' is {style}, and a reward is a finite number")


async def test_our_client_gives_them_by_name(graded):
    async with (
        AsyncClient(graded.url) as client,
        client.environments.get("graded").session(split="train", index=0) as session,
    ):
        output = await session.call_tool("grade")
        assert (output.reward, output.rewards, output.metadata) == (1.1, REWARDS, {"rewards": REWARDS})
        other = await session.call_tool("other")
        assert (other.rewards, other.metadata) == (None, {"rewards": ["a", 1]})
        with pytest.raises(ToolCallFailed, match="'style' is nan"):
            await session.call_tool("spoil", {"style": "nan"})


async def test_an_agent_sees_them_only_if_the_operator_says_so():
    seen = []
    for sees in (False, True):
        with running([Graded], agent_sees_rewards=sees) as server:
            async with Mcp(server.url) as session:
                await session.open("graded", {})
                headers = {"Accept": mcp_wire.ACCEPT, "MCP-Protocol-Version": mcp_wire.HANDSHAKE}
                body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "grade", "arguments": {}}}
                answer = await session.post(f"/mcp/s/{session._sid}", headers=headers, json=body)
                seen.append(answer.text)
                await session.close()
    assert "style" not in seen[0]
    assert '"toolyard/rewards":{"correct":1.0,"style":0.2}' in seen[1].replace(" ", "")


async def test_the_store_of_episodes_has_a_column_of_them(tmp_path):
    path = tmp_path / "runs.db"
    with running([Graded], record=str(path)) as server:
        for dialect in DIALECTS:
            async with dialect(server.url) as session:
                await session.open("graded", {})
                await session.call("grade")
                await session.close()
    with closing(sqlite3.connect(path)) as store:
        rows = store.execute("SELECT reward, rewards FROM steps WHERE tool = 'grade'").fetchall()
    assert [(reward, json.loads(rewards)) for reward, rewards in rows] == [(1.1, REWARDS)] * len(DIALECTS)


async def test_a_result_that_is_cut_keeps_its_rewards():
    class Long(Graded):
        @tool
        def grade(self) -> ToolOutput:
            """Grade at length."""
            return ToolOutput(
                blocks=[TextBlock(text="x" * 5000)], rewards=REWARDS, metadata={"notes": "y" * 5000}, finished=True
            )

    with running([Long], output_bytes=1000) as server:
        async with Verl(server.url) as session:
            await session.open("long", {})
            came = await session.call("grade")
    assert (came.reward, session.named, came.finished) == (1.2, REWARDS, True)


def test_a_test_of_an_author_reads_them_without_any_server():
    output = ToolOutput(rewards={"correct": True, "style": 2}, weights={"style": 0.25, "speed": 3})
    assert (output.reward, output.rewards) == (1.5, {"correct": 1.0, "style": 2.0})
    assert ToolOutput(rewards={}).reward is None
    assert "weights" not in output.model_dump()
