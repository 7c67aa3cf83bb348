"""One module per wire protocol. Each is a function: `routes(runtime, options) -> list[BaseRoute]`.

To add a protocol, write `protocols/<name>.py` with such a function and add its line below.
"""

PROTOCOLS = {
    "ors": "toolyard.protocols.ors:routes",
}
