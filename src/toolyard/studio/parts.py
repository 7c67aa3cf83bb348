"""What every page of Studio may use."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from urllib.parse import quote

import jinja2

from toolyard.asgi import HttpOptions
from toolyard.protocols.metrics import Metrics
from toolyard.runtime.runtime import Runtime
from toolyard.studio.feed import Feed
from toolyard.studio.key import Key
from toolyard.studio.pulse import Pulse
from toolyard.version import __version__

TEMPLATES = Path(__file__).with_name("templates")
_UNSEEN = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0e\ufeff\uffa0\ufff0-\ufffb\U000e0000-\U000e0fff]"
)
"""Characters that hide or turn text. `visible.js` has the same."""


@dataclass(frozen=True, slots=True)
class Options(HttpOptions):
    """`settings.py` explains each."""

    host: str
    record: str
    placement: str
    idle_seconds: float


class Parts:
    def __init__(self, runtime: Runtime, options: Options, metrics: Metrics) -> None:
        self.runtime = runtime
        self.options = options
        self.key = Key(options.api_key)
        self.feed = Feed(runtime.journal)
        self.pulse = Pulse(runtime, metrics)

    @cached_property
    def layout(self) -> jinja2.Environment:
        """Templates. All that they are given is escaped."""
        made = jinja2.Environment(
            loader=jinja2.FileSystemLoader(TEMPLATES),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
        )
        made.globals.update(version=__version__, records=bool(self.options.record), needs_key=self.key.is_needed)
        made.filters.update(quoted=quoted, plain=plain)
        return made

    @cached_property
    def style_of_login(self) -> str:
        """The form that asks for the key loads nothing: its style stands in the page, and this names it to browsers."""
        style = (TEMPLATES / "login.css").read_bytes()
        return f"'sha256-{base64.b64encode(hashlib.sha256(style).digest()).decode()}'"


def plain(text: str) -> str:
    """The text with the names of the characters in it that nobody would see."""
    return _UNSEEN.sub(lambda found: "ESC" if found[0] == "\x1b" else f"U+{ord(found[0]):04X}", text)


def quoted(name: str) -> str:
    """A name as one part of an address. `unquoted` in `route.py` reads it."""
    return quote("~" * is_dots(name) + name, safe="", errors="surrogatepass")


def is_dots(name: str) -> bool:
    """Whether a browser would take the name for a step in the path, however it is quoted, or could not tell it from
    one that has a mark against that."""
    return name.lstrip("~") in (".", "..")
