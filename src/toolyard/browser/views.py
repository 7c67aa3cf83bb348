"""What a page shows at the moment, as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PageView:
    url: str
    title: str
    text: str
    """What is in view, with a number before each element that an action can use."""
    notes: Sequence[str] = ()
    """What else happened, such as a dismissed dialog."""
    tabs: Sequence[str] = ()
    """The addresses of all tabs, if there are several."""
    tab: int = 0
    cut: bool = False
    top: float = 0
    height: float = 0
    whole: float = 0

    def told(self) -> str:
        """Title and address, then the page."""
        return f"Title: {self.title}\nURL: {self.url}\n{self.body}"

    @property
    def body(self) -> str:
        """Everything but title and address."""
        tabs = [f"Tab {i}{' (current)' * (i == self.tab)}: {url}" for i, url in enumerate(self.tabs)]
        head = [*(f"Note: {note}" for note in self.notes), *tabs]
        text = self.text or "(there is no text here)"
        foot = [one for one in ("(the rest is left out: too long)" * self.cut, self._where()) if one]
        return "\n".join([*head, "", text, *foot] if head else [text, *foot])

    def _where(self) -> str:
        above, below = self.top > 2, self.top + self.height < self.whole - 2
        if not (above or below) or not self.height:
            return ""
        parts = math.ceil(self.whole / self.height - 0.05)
        part = parts if not below else min(parts - 1, int(self.top / self.height + 0.5) + 1)
        ways = " or ".join(["up"] * above + ["down"] * below)
        return f"(part {part} of {parts}; scroll {ways} for more)"
