"""The server of `benchmarks.trouble`: tools that run code, with less time for it, and a tool that blocks the loop.

python -m benchmarks.trouble_server <seconds for a program> <port>
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from toolyard import Blocks, Environment, Server, Split, TextBlock, ToolOutput, tool
from toolyard.core.output import JsonObject
from toolyard.serving import listen
from toolyard.settings import Settings
from toolyard.tools import bash_terminal, ipython_code, python_code, python_oj
from toolyard.tools.environment import named_toolsets, toolbox


class Blocking(Environment):
    """Another environment, with an `async` tool that blocks."""

    @classmethod
    def list_splits(cls) -> Sequence[Split]:
        return [Split(name="train", type="train")]

    @classmethod
    def list_tasks(cls, split: str) -> Sequence[JsonObject]:
        return [{}]

    def get_prompt(self) -> Blocks:
        return [TextBlock(text="Block.")]

    @tool
    async def block(self, seconds: float) -> ToolOutput:
        """Block the event loop."""
        time.sleep(seconds)  # noqa: ASYNC251  # that is the trouble
        return ToolOutput(blocks=[TextBlock(text="blocked")])


def main(seconds: float, port: int) -> None:
    for module in (python_code, python_oj, ipython_code, bash_terminal):
        module.SECONDS = seconds  # type: ignore[attr-defined, unused-ignore]
    tools = toolbox(named_toolsets("python_oj,python_code,ipython_code,bash_terminal"))
    settings = Settings(protocol=("ors", "verl", "fusion"), sandboxes_ready=0, sandbox_memory_bytes=256 * 2**20)
    Server([tools, Blocking], settings=settings).serve(listen("127.0.0.1", port))


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))
