"""A whole web page as text, from any source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LONGEST = 50_000
"""The most characters of a page."""
LINKS_MOST = 200


@dataclass(frozen=True, slots=True)
class WebPage:
    title: str
    text: str
    links: Sequence[tuple[str, str]] = ()
    """The name and the address of each link."""
    cut: bool = False

    def told(self) -> str:
        """The text, then the links."""
        lines = [line.rstrip() for line in (self.title, *self.text.splitlines()) if line.strip()]
        text = "\n".join([*(lines or ["(there is no text here)"]), *["(the rest is left out: too long)"] * self.cut])
        if not self.links:
            return text
        return f"{text}\n\nLinks:\n" + "".join(f"{name} ({url})\n" for name, url in self.links)
