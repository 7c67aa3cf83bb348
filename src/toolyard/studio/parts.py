"""What every page of Studio may use."""

from __future__ import annotations

import base64
import hashlib
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
        made.filters["quoted"] = quoted
        return made

    @cached_property
    def style_of_login(self) -> str:
        """The form that asks for the key loads nothing: its style stands in the page, and this names it to browsers."""
        style = (TEMPLATES / "login.css").read_bytes()
        return f"'sha256-{base64.b64encode(hashlib.sha256(style).digest()).decode()}'"


def quoted(name: str) -> str:
    """A name as one part of an address. `unquoted` in `route.py` reads it."""
    return quote("~" * is_dots(name) + name, safe="", errors="surrogatepass")


def is_dots(name: str) -> bool:
    """Whether a browser would take the name for a step in the path, however it is quoted, or could not tell it from
    one that has a mark against that."""
    return name.lstrip("~") in (".", "..")
