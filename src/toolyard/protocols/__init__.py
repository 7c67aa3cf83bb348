"""One module per wire protocol. Each has a function `routes(runtime, options) -> list[BaseRoute]`, and `Options`, the
settings that it wants to know.

To add a protocol, write `protocols/<name>.py` with these and add its line below, above ORS, which takes every path
that nobody else wants.
"""

PROTOCOLS = {
    "verl": "toolyard.protocols.verl",
    "toolserver": "toolyard.protocols.toolserver",
    "fusion": "toolyard.protocols.fusion",
    "ors": "toolyard.protocols.ors",
}
RUN_CODE = frozenset({"fusion"})
"""They run whatever code they are sent. So they are served where tools do so as well, or when asked for."""
