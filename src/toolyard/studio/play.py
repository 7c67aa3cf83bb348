"""Play: one environment by hand."""

from __future__ import annotations

from collections.abc import Sequence

from toolyard.studio.parts import Parts, quoted
from toolyard.studio.visit import Page, Visit


def pages(parts: Parts) -> Sequence[Page]:
    return [Page("GET", "play/*", play)]


async def play(visit: Visit) -> None:
    runtime = visit.parts.runtime
    environment = runtime.environment(visit.named[0])
    name = environment.name().lower()
    splits = await runtime.tasks(environment).splits()
    await visit.page(
        "play.html",
        name=name,
        href=f"/studio/environments/{quoted(name)}",
        splits=[split.name for split in splits],
        split=visit.query.get("split", splits[0].name if splits else ""),
        index=visit.number("task", 0),
    )
