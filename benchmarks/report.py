"""Figures as a Markdown table, printed and put into the README."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- benchmark:begin -->", "<!-- benchmark:end -->"


@dataclass(frozen=True)
class Row:
    what: str
    reference: str
    ours: str
    ratio: str
    target: str


def table(names: tuple[str, str], rows: Sequence[Row]) -> str:
    """Columns as wide as their widest cell, so that it can be read as it is printed, too."""
    cells = [("", *names, "ratio", "target"), *(astuple(row) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(5)]
    lines = ["| " + " | ".join(_pad(line, widths)) + " |" for line in cells]
    rule = (
        "|" + "|".join("-" * (width + 2) if not i else "-" * (width + 1) + ":" for i, width in enumerate(widths)) + "|"
    )
    return "\n".join([lines[0], rule, *lines[1:]])


def around_table() -> tuple[str, str]:
    """What the README says before and after its table."""
    before, begin, rest = README.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"There is no place for the table in {README}: it needs the lines {BEGIN} and {END}.")
    return before, after


def write_readme(text: str) -> None:
    before, after = around_table()
    README.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


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
