"""The agent's door. A trainer asks for a token of a session; an agent with that token uses the session's tools.

`tokens` is the trainer's side, `door` the agent's, `answers` writes what an agent reads.
"""

from __future__ import annotations

from starlette.routing import BaseRoute

from toolyard.protocols.agent.options import Options
from toolyard.protocols.agent.tokens import Tokens
from toolyard.runtime.runtime import Runtime

__all__ = ["Options", "routes"]


def routes(runtime: Runtime, options: Options) -> list[BaseRoute]:
    return [Tokens(runtime, options)]
