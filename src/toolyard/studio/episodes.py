"""Episodes: what sessions left behind, if this server records them."""

from __future__ import annotations

from collections.abc import Sequence

from toolyard.studio.parts import Parts
from toolyard.studio.visit import Page, Visit


def pages(parts: Parts) -> Sequence[Page]:
    """The addresses of episodes. `visit.parts.open_store()` opens the store, in a thread."""
    return [Page("GET", "episodes", listed)]


async def listed(visit: Visit) -> None:
    await visit.page("episodes.html")
