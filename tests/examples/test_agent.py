"""The agent that is told a URL: it plays, and only its trainer hears of the reward."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import TOOLYARD
from tests.peers import venvs
from toolyard import Client
from toolyard.loading import load_targets
from toolyard.testing import running

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPT = EXAMPLES / "agent" / "trainer.py"


@pytest.mark.timeout(120)
def test_the_agent_plays_and_the_trainer_reads_what_came_of_it():
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "agent: submit 4898: Correct.\n"
        "agent: once more: episode_finished\n"
        "trainer: reward 1.0, finished True, 2 calls\n"
        "agent: submit 0: Wrong: the answer is 206.5.\n"
        "agent: once more: episode_finished\n"
        "trainer: reward 0.0, finished True, 2 calls\n"
    )


OVER = "mistaken: 'submit' was not run: the episode has finished"


@pytest.mark.thorough
def test_the_agent_with_the_mcp_package_plays_for_the_same_trainer():
    done = subprocess.run([sys.executable, SCRIPT, "mcp_agent.py"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[0] == "agent: submit 4898: Correct."
    assert said[1].startswith(f"agent: once more: {OVER}")
    assert said[2] == "trainer: reward 1.0, finished True, 2 calls"
    assert said[5] == "trainer: reward 0.0, finished True, 2 calls"


@pytest.mark.thorough
@pytest.mark.timeout(600)  # the first run makes the virtual environment
def test_the_agent_needs_only_the_mcp_package_and_a_url():
    python = venvs.interpreter(venvs.MCP_2)
    environments = load_targets([str(EXAMPLES / "arithmetic.py")]).environments
    with (
        running(environments) as server,
        Client(server.url) as client,
        client.environments.get("arithmetic").session(split="train", index=0) as session,
    ):
        for url in (session.agent_url().url, f"{server.url}/mcp/arithmetic?split=train&index=0"):
            command = [python, EXAMPLES / "agent" / "mcp_agent.py"]
            environ = venvs.environ(AGENT_URL=url)
            done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 0, done.stderr
            assert done.stdout.startswith("agent: submit 4898: Correct.\nagent: once more: " + OVER)
        assert session.outcome().total == 1.0


HOST = """
import asyncio, json, sys
from fastmcp import Client

async def main():
    async with Client(json.load(sys.stdin)) as client:
        print(sorted(tool.name for tool in await client.list_tools()))
        print((await client.get_prompt("task")).messages[0].content.text[:36])
        print((await client.call_tool("look_at_map", {})).content[0].text[0])

asyncio.run(main())
"""


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize("peer", [venvs.MCP_2, venvs.MCP_1], ids=lambda peer: peer.name)
def test_a_host_that_reads_the_configuration_of_editors_plays_the_maze(peer):
    configuration = json.loads((EXAMPLES / "agent" / "mcp.json").read_text())
    configuration["mcpServers"]["maze"] |= {"command": str(TOOLYARD), "cwd": str(EXAMPLES.parent)}
    done = subprocess.run(
        [venvs.interpreter(peer), "-c", HOST],
        input=json.dumps(configuration),
        env=venvs.environ(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "['look_at_map', 'move']\nYou are in a maze of 6 by 6 rooms, i\n@\n"
