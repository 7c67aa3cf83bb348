"""One module per wire protocol. Each has a function `routes(runtime, options) -> list[BaseRoute]`, and `Options`, the
settings that it needs.

To add a protocol, write `protocols/<name>.py` with both, and add its line below, above ORS, which takes every path
that no other protocol takes.
"""

PROTOCOLS = {
    "verl": "toolyard.protocols.verl",
    "toolserver": "toolyard.protocols.toolserver",
    "fusion": "toolyard.protocols.fusion",
    "metrics": "toolyard.protocols.metrics",
    "ors": "toolyard.protocols.ors",
}
ALWAYS = frozenset({"metrics"})
"""Always served, for the server's operator. If a protocol above them takes the same path, that protocol gets it."""
RUN_CODE = frozenset({"fusion"})
"""They run any code that a client sends. So they are served only if tools of the server do so too, or on request."""
