"""OpenEnv as its own package serves it, with an environment of tools made with FastMCP."""

import json
import sys
import uuid

import uvicorn
from fastmcp import FastMCP
from openenv.core.env_server import http_server
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Observation, State

arguments = json.loads(sys.argv[1])


class Sums(MCPEnvironment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        server = FastMCP("sums")

        @server.tool
        def add(a: int, b: int) -> int:
            """Add two numbers."""
            return a + b

        super().__init__(server)
        self._state = State(episode_id=str(uuid.uuid4()), step_count=0)

    def reset(self, seed=None, episode_id=None, **more):
        self._state = State(episode_id=episode_id or str(uuid.uuid4()), step_count=0)
        return Observation(done=False, reward=None)

    def _step_impl(self, action, timeout_s=None, **more):
        return Observation(done=False, reward=None)

    async def step_async(self, action, timeout_s=None, **more):
        self._state.step_count += 1
        return await super().step_async(action, timeout_s=timeout_s, **more)

    @property
    def state(self):
        return self._state


app = http_server.create_fastapi_app(Sums, CallToolAction, CallToolObservation, max_concurrent_envs=8)
uvicorn.run(app, host="127.0.0.1", port=arguments["port"], log_level="warning")
