"""Sessions: those that are open now, and one of them to watch."""

from __future__ import annotations

from collections.abc import Sequence

from toolyard.studio.parts import Parts
from toolyard.studio.visit import Page, Visit


def pages(parts: Parts) -> Sequence[Page]:
    return [Page("GET", "sessions", listed)]


async def listed(visit: Visit) -> None:
    await visit.page("sessions.html")
