"""`search_tools`: lets an agent search its tools, for environments with too many to list."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from toolyard.core.environment import Toolset, lists_task_tools, resolved
from toolyard.core.output import JsonObject
from toolyard.core.search import own_first, search
from toolyard.core.tool import ToolSpec, tool
from toolyard.tools.tool_maker import MadeTools

TOP_MOST = 50


class SearchTools(Toolset):
    """Finds tools, including those that are not listed."""

    @tool(concurrent=True)
    async def search_tools(self, question: str, top_k: int = 5) -> list[JsonObject]:
        """Find the tools that do something, best first. There can be many more than are listed.

        Args:
            question: What is to be done, in your own words.
            top_k: How many tools to return, defaults to 5.
        """
        own = await self._own()
        others = partial(search, type(self.env))
        found = await asyncio.to_thread(own_first, own, others, question, min(top_k, TOP_MOST))
        return [{"name": one.name, "description": one.description, "parameters": one.input_schema} for one in found]

    async def _own(self) -> Sequence[ToolSpec]:
        """The tools that only this session has."""
        made = MadeTools.of(self.env).specs
        if not lists_task_tools(type(self.env)):
            return made
        return [*(await resolved(self.env.list_task_tools())).tools, *made]
