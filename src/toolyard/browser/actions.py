"""The actions of a browser, as a model writes them: `click [3]`, `type [7] [some words] [1]`, `scroll [down]`.

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
    """Only read the page."""


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
    """Replaces the element's content. In a list of options, it chooses one."""

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
    """Read an action. Raises ValueError, which says what it expected."""
    text = text.strip()
    name = re.split(r"[\[\s]", text, maxsplit=1)[0]
    if name not in _GRAMMAR:
        raise ValueError(f"there is no action {name[:100]!r}; there are {', '.join(_GRAMMAR)}")
    arguments, pattern, make = _GRAMMAR[name]
    if (found := re.fullmatch(name + pattern, text, re.DOTALL)) is None:
        raise ValueError(f"{text[:100]!r} is not written as {name} {arguments}")
    return make(found)


def _direction(found: re.Match[str]) -> Direction:
    return "up" if found[1] == "up" else "down"


_ID = r" ?\[(\d{1,9})\]"
_GRAMMAR: Mapping[str, tuple[str, str, Callable[[re.Match[str]], Action | Stop]]] = {
    "click": ("[id]", rf"{_ID}.*", lambda found: Click(int(found[1]))),
    "type": (
        "[id] [text] [press_enter_after=0|1]",
        rf"{_ID} ?\[(.*?)\](?: ?\[(?:press_enter_after=)?([01])\])?",
        lambda found: TypeText(int(found[1]), found[2], enter=found[3] != "0"),
    ),
    "select": ("[id] [option]", rf"{_ID} ?\[(.*)\]", lambda found: TypeText(int(found[1]), found[2])),
    "hover": ("[id]", rf"{_ID}.*", lambda found: Hover(int(found[1]))),
    "press": ("[key_comb]", r" ?\[(.+)\]", lambda found: Press(found[1])),
    "scroll": ("[up|down]", r" ?\[?(?:direction=)?(up|down)\]?", lambda found: Scroll(_direction(found))),
    "goto": ("[url]", r" ?\[(\S+?)\](?: ?\[([01])\])?", lambda found: Goto(found[1], new_tab=found[2] == "1")),
    "go_back": ("", ".*", lambda found: GoBack()),
    "go_forward": ("", ".*", lambda found: GoForward()),
    "new_tab": ("", ".*", lambda found: NewTab()),
    "tab_focus": ("[tab_index]", _ID, lambda found: FocusTab(int(found[1]))),
    "close_tab": ("", ".*", lambda found: CloseTab()),
    "stop": ("[answer]", r" ?(?:\[(.*)\])?.*?", lambda found: Stop((found[1] or "").strip())),
}
"""For each name: the arguments as shown to a model, the pattern that reads them, and the action that they make."""
