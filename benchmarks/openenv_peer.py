"""OpenEnv's own server in its own virtual environment, with a tool that returns its argument."""

from __future__ import annotations

from typing import Literal, TypeAlias

from benchmarks.cache import cache
from benchmarks.servers import Contender, venvs

Way: TypeAlias = Literal["lean", "fastmcp"]
WAYS: tuple[Way, ...] = ("lean", "fastmcp")
"""Styles of its environment: it calls its tool itself, on the event loop; or its tools are FastMCP's, as OpenEnv
documents it for environments with tools."""

SERVE = '''
import sys, uuid, uvicorn
from fastmcp import FastMCP
from openenv.core.env_server.http_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Observation, State

PROMPT = "What is 2 + 2?"

class Played:
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, **more):
        self._state = State(episode_id=episode_id or str(uuid.uuid4()), step_count=0)
        return Observation(done=False, reward=None, metadata={"prompt": [{"type": "text", "text": PROMPT}]})

    async def reset_async(self, seed=None, episode_id=None, **more):
        return self.reset(seed, episode_id)

    @property
    def state(self):
        return self._state

class Lean(Played, Environment):
    def step(self, action, timeout_s=None, **more):
        self._state.step_count += 1
        text = action.arguments["text"]
        return CallToolObservation(tool_name="echo", result={"data": text}, reward=0.0, done=False)

    async def step_async(self, action, timeout_s=None, **more):
        return self.step(action)

class WithFastMcp(Played, MCPEnvironment):
    def __init__(self):
        tools = FastMCP("echo")

        @tools.tool
        async def echo(text: str) -> str:
            """Say the text back."""
            return text

        super().__init__(tools)

    def _step_impl(self, action, timeout_s=None, **more):
        raise NotImplementedError

way, port = sys.argv[1:]
made = {"lean": Lean, "fastmcp": WithFastMcp}[way]
app = create_fastapi_app(made, CallToolAction, CallToolObservation, max_concurrent_envs=100_000)
uvicorn.run(app, port=int(port), loop="uvloop", http="httptools", access_log=False)
'''


def openenv(way: Way) -> Contender:
    python = venvs.interpreter(venvs.OPENENV)
    return Contender("openenv", "openenv", python, [str(python), "-c", SERVE, way], cache())
