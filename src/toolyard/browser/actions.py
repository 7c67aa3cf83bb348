"""What can be done in a browser, and how a model writes it: `click [3]`, `type [7] [some words] [1]`, `scroll [down]`.

The notation is WebArena's, with the numbers that the page's text shows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

Direction: TypeAlias = Literal["up", "down"]


@dataclass(frozen=True, slots=True)
class Look:
    """Nothing but to read the page."""


@dataclass(frozen=True, slots=True)
class Goto:
    url: str
    new_tab: bool = False


@dataclass(frozen=True, slots=True)
class Click:
    element: int


@dataclass(frozen=True, slots=True)
class Hover:
    element: int


@dataclass(frozen=True, slots=True)
class TypeText:
    """Replaces what the element holds. In a list of options, it chooses one."""

    element: int
    text: str
    enter: bool = False


@dataclass(frozen=True, slots=True)
class Press:
    keys: str


@dataclass(frozen=True, slots=True)
class Scroll:
    direction: Direction


@dataclass(frozen=True, slots=True)
class GoBack:
    pass


@dataclass(frozen=True, slots=True)
class GoForward:
    pass


@dataclass(frozen=True, slots=True)
class NewTab:
    pass


@dataclass(frozen=True, slots=True)
class FocusTab:
    index: int


@dataclass(frozen=True, slots=True)
class CloseTab:
    pass


@dataclass(frozen=True, slots=True)
class Stop:
    answer: str


Action: TypeAlias = (
    Look | Goto | Click | Hover | TypeText | Press | Scroll | GoBack | GoForward | NewTab | FocusTab | CloseTab
)


def parse(text: str) -> Action | Stop:
    """Raises ValueError, which says what was expected."""
    text = text.strip()
    name = re.split(r"[\[\s]", text, maxsplit=1)[0]
    if name not in _GRAMMAR:
        raise ValueError(f"there is no action {name[:100]!r}; there are {', '.join(_GRAMMAR)}")
    pattern, usage, make = _GRAMMAR[name]
    if (found := re.fullmatch(pattern, text, re.DOTALL)) is None:
        raise ValueError(f"{text[:100]!r} is not written as {usage}")
    return make(found)


def _direction(found: re.Match[str]) -> Direction:
    return "up" if found[1] == "up" else "down"


_GRAMMAR: Mapping[str, tuple[str, str, Callable[[re.Match[str]], Action | Stop]]] = {
    "click": (r"click ?\[(\d{1,9})\].*", "click [id]", lambda found: Click(int(found[1]))),
    "type": (
        r"type ?\[(\d{1,9})\] ?\[(.*?)\](?: ?\[(?:press_enter_after=)?([01])\])?",
        "type [id] [text] [press_enter_after=0|1]",
        lambda found: TypeText(int(found[1]), found[2], enter=found[3] != "0"),
    ),
    "select": (
        r"select ?\[(\d{1,9})\] ?\[(.*)\]",
        "select [id] [option]",
        lambda found: TypeText(int(found[1]), found[2]),
    ),
    "hover": (r"hover ?\[(\d{1,9})\].*", "hover [id]", lambda found: Hover(int(found[1]))),
    "press": (r"press ?\[(.+)\]", "press [key_comb]", lambda found: Press(found[1])),
    "scroll": (r"scroll ?\[?(?:direction=)?(up|down)\]?", "scroll [up|down]", lambda found: Scroll(_direction(found))),
    "goto": (
        r"goto ?\[(\S+?)\](?: ?\[([01])\])?",
        "goto [url]",
        lambda found: Goto(found[1], new_tab=found[2] == "1"),
    ),
    "go_back": (r"go_back.*", "go_back", lambda found: GoBack()),
    "go_forward": (r"go_forward.*", "go_forward", lambda found: GoForward()),
    "new_tab": (r"new_tab.*", "new_tab", lambda found: NewTab()),
    "tab_focus": (r"tab_focus ?\[(\d{1,9})\]", "tab_focus [tab_index]", lambda found: FocusTab(int(found[1]))),
    "close_tab": (r"close_tab.*", "close_tab", lambda found: CloseTab()),
    "stop": (r"stop ?(?:\[(.*)\])?.*?", "stop [answer]", lambda found: Stop((found[1] or "").strip())),
}
