"""One module per wire protocol. Each has a function `routes(runtime, options) -> list[BaseRoute]`, and `Options`, the
settings that it wants to know.

To add a protocol, write `protocols/<name>.py` with these and add its line below, above ORS, which takes every path
that nobody else wants.
"""

PROTOCOLS = {
    "verl": "toolyard.protocols.verl",
    "toolserver": "toolyard.protocols.toolserver",
    "fusion": "toolyard.protocols.fusion",
    "metrics": "toolyard.protocols.metrics",
    "ors": "toolyard.protocols.ors",
}
ALWAYS = frozenset({"metrics"})
"""Served beside whatever is asked for: they are for who runs the server. A path that a protocol above them wants is
that protocol's."""
RUN_CODE = frozenset({"fusion"})
"""They run whatever code they are sent. So they are served where tools do so as well, or when asked for."""
