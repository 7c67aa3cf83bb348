"""Environments: what each of them is, its tasks to browse, and its tools."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence

from toolyard.core.environment import Environment
from toolyard.placement.base import list_tools
from toolyard.runtime.runtime import Runtime
from toolyard.studio.parts import Parts, quoted
from toolyard.studio.visit import Page, Visit

_TASKS_MOST = 200
"""Tasks in one answer. A page asks for those that are in view."""


def pages(parts: Parts) -> Sequence[Page]:
    return [
        Page("GET", "environments", listed),
        Page("GET", "environments/*", environment),
    ]


def served(runtime: Runtime) -> list[Mapping[str, object]]:
    return [
        {"name": name, "href": f"/studio/environments/{quoted(name)}", "about": about(one).partition("\n")[0]}
        for name, one in runtime.environments.items()
    ]


def about(environment: type[Environment]) -> str:
    """Its docstring; not one that it has from a class above it."""
    return inspect.cleandoc(environment.__doc__ or "")


async def listed(visit: Visit) -> None:
    await visit.page("environments.html", environments=served(visit.parts.runtime))


async def environment(visit: Visit) -> None:
    runtime = visit.parts.runtime
    found = runtime.environment(visit.named[0])
    tools = await list_tools(found, runtime.placement)
    await visit.page(
        "environment.html",
        name=found.name().lower(),
        about=about(found),
        tools=tools.tools,
        splits=await runtime.tasks(found).splits(),
    )
