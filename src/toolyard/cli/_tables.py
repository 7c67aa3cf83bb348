"""Tables and texts on a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence

from toolyard.core.output import JsonObject


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> Iterator[str]:
    """Lines of columns. Numbers stand to the right."""
    cells = [[cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)] if cells else list(map(len, header))
    numeric = [bool(cells) and all(is_number(row[i]) for row in cells) for i in range(len(header))]
    for line in (header, *cells):
        padded = (
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        )
        yield "  ".join(padded).rstrip()


def cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4g}" if isinstance(value, float) else visible(str(value))


def is_number(text: str) -> bool:
    return text == "-" or text.replace(".", "", 1).lstrip("-").isdigit()


def visible(text: str) -> str:
    """The text without control sequences: an agent may have written it."""
    return "".join(
        char if char.isprintable() or char in "\n\t" else char.encode("unicode_escape").decode() for char in text
    )


def line_of_json(value: JsonObject) -> str:
    return json.dumps(value, separators=(",", ":"))


def interval(found: Sequence[float] | None) -> str:
    return "-" if found is None else f"{found[0]:.3f} to {found[1]:.3f}"
