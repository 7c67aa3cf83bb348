"""One module per wire protocol. Each has a function `routes(runtime, options) -> list[BaseRoute]`, and `Options`, the
settings that it needs.

To add a protocol, write `protocols/<name>.py` with both, and add its line below, above ORS, which takes every path
that no other protocol takes.
"""

PROTOCOLS = {
    "mcp": "toolyard.protocols.mcp",
    "openenv": "toolyard.protocols.openenv",
    "verl": "toolyard.protocols.verl",
    "toolserver": "toolyard.protocols.toolserver",
    "fusion": "toolyard.protocols.fusion",
    "agent": "toolyard.protocols.agent",
    "metrics": "toolyard.protocols.metrics",
    "sessions": "toolyard.protocols.sessions",
    "ors": "toolyard.protocols.ors",
}
ALWAYS = frozenset({"metrics", "sessions"})
"""Always served, for the server's operator and for trainers. A protocol above them takes precedence on a shared
path."""
RUN_CODE = frozenset({"fusion"})
"""These run any code that a client sends. So the server offers them only if its tools do the same, or on request."""
