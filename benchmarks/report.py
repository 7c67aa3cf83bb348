"""Figures as a Markdown table, printed and written into a page."""

from __future__ import annotations

import argparse
import platform
import sys
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

_CHECKOUT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Row:
    what: str
    reference: str
    ours: str
    ratio: str
    target: str


@dataclass(frozen=True)
class Place:
    """Where in a page a table goes: between two lines."""

    page: Path
    begin: str
    end: str

    def around(self) -> tuple[str, str]:
        """The page's text before and after its table."""
        text = self.page.read_text() if self.page.exists() else ""
        before, begin, rest = text.partition(self.begin)
        _, end, after = rest.partition(self.end)
        if not begin or not end:
            raise SystemExit(f"No place for the table in {self.page}: it needs the lines {self.begin} and {self.end}.")
        return before, after

    def write(self, text: str) -> None:
        before, after = self.around()
        self.page.write_text(f"{before}{self.begin}\n\n{text}\n\n{self.end}{after}")


ORS_PAGE = Place(_CHECKOUT / "docs" / "ors.md", "<!-- benchmark:begin -->", "<!-- benchmark:end -->")
VERL_PAGE = Place(_CHECKOUT / "docs" / "verl.md", "<!-- verl benchmark -->", "<!-- end -->")
TOOLSERVER_PAGE = Place(_CHECKOUT / "docs" / "toolserver.md", "<!-- benchmark:begin -->", "<!-- benchmark:end -->")
MCP_PAGE = Place(_CHECKOUT / "docs" / "mcp.md", "<!-- benchmark:begin -->", "<!-- benchmark:end -->")
OPENENV_PAGE = Place(_CHECKOUT / "docs" / "openenv.md", "<!-- benchmark:begin -->", "<!-- benchmark:end -->")
PLACEMENT_PAGE = Place(_CHECKOUT / "docs" / "placement.md", "<!-- placement benchmark -->", "<!-- end -->")
CLIENT_PAGE = Place(_CHECKOUT / "docs" / "quickstart.md", "<!-- client benchmark -->", "<!-- end -->")
EPISODES_PAGE = Place(_CHECKOUT / "docs" / "episodes.md", "<!-- benchmark:begin -->", "<!-- benchmark:end -->")
STUDIO_PAGE = Place(_CHECKOUT / "docs" / "studio.md", "<!-- benchmark:begin -->", "<!-- benchmark:end -->")
SANDBOX_PAGE = Place(_CHECKOUT / "docs" / "sandbox-cost.md", "<!-- sandbox benchmark -->", "<!-- end -->")


def table(names: tuple[str, str], rows: Sequence[Row]) -> str:
    return aligned([("", *names, "ratio", "target"), *(astuple(row) for row in rows)])


def aligned(cells: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell, so that the printed table is readable too."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ["| " + " | ".join(_pad(line, widths)) + " |" for line in cells]
    rule = (
        "|" + "|".join("-" * (width + 2) if not i else "-" * (width + 1) + ":" for i, width in enumerate(widths)) + "|"
    )
    return "\n".join([lines[0], rule, *lines[1:]])


def command_of(parser: argparse.ArgumentParser, args: argparse.Namespace, *, usual: str) -> str:
    """The command for the same figures; where they are written makes no difference."""
    given = vars(args)
    names = [name for name in ("rounds", "seconds", "sessions") if name in given]
    chosen = [f"--{name} {given[name]:g}" for name in names if given[name] != parser.get_default(name)]
    chosen += ["--quick"] * given.get("quick", False)
    return " ".join([parser.prog, *chosen]) if chosen else usual


def check_platform() -> None:
    if sys.platform != "linux":
        raise SystemExit("This benchmark reads CPU time and memory from /proc: it runs on Linux only.")


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    named = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()


def progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def micro(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f} µs"


def milli(seconds: float) -> str:
    return f"{seconds * 1e3:,.2f} ms"


def plain(seconds: float) -> str:
    return f"{seconds:.2f} s"


def per_second(interval: float) -> str:
    return f"{1 / interval:,.0f}"


def kib(size: float) -> str:
    return f"{size / 2**10:.1f} KiB"


def mib(size: float) -> str:
    return f"{size / 2**20:.0f} MiB"


def _pad(line: Sequence[str], widths: Sequence[int]) -> Sequence[str]:
    return [
        f"{cell:<{width}}" if not i else f"{cell:>{width}}"
        for i, (cell, width) in enumerate(zip(line, widths, strict=True))
    ]
