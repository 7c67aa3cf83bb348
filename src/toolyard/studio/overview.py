"""Overview: what is served, what happens now, and what is wrong."""

from __future__ import annotations

from collections.abc import Sequence

from toolyard.sandboxes.provider import in_force
from toolyard.studio.environments import served
from toolyard.studio.parts import Parts
from toolyard.studio.visit import Page, Visit


def pages(parts: Parts) -> Sequence[Page]:
    return [Page("GET", "", overview)]


async def overview(visit: Visit) -> None:
    report = in_force()
    runtime = visit.parts.runtime
    await visit.page("overview.html", environments=served(runtime), report=report, gateways=runtime.owners.count)
