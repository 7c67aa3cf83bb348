"""The least that a tool can do, written as a coroutine and as a plain function."""

from __future__ import annotations

from toolyard import Toolset, tool
from toolyard.tools.environment import ToolsEnvironment


class Echo(Toolset):
    @tool
    async def echo(self, text: str) -> str:
        """Say the text back.

        Args:
            text: What to say.
        """
        return text


class EchoPlain(Toolset):
    @tool
    def echo(self, text: str) -> str:
        """Say the text back.

        Args:
            text: What to say.
        """
        return text


class Trivial(ToolsEnvironment):
    toolsets = (Echo,)


class TrivialPlain(ToolsEnvironment):
    toolsets = (EchoPlain,)
