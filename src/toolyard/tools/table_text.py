"""Writes rows of a query as text, exactly as pandas 2 prints a frame without its index. It does not need pandas.

Models were trained on tables of that form, so it matters how a column of floats is rounded, or a missing value named.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from typing import TypeAlias

Value: TypeAlias = int | float | str | bytes | None
"""The values of SQLite."""

EMPTY = "Empty DataFrame\nColumns: []\nIndex: []"

_DIGITS = 6
_WIDEST = _DIGITS + 6
"""Large floats that are wider than this get an exponent."""
_ESCAPED = str.maketrans({"\t": r"\t", "\r": r"\r", "\n": r"\n"})
_DECIMAL = re.compile(r"-?[0-9]+\.[0-9]*")


def table_text(rows: Sequence[Sequence[Value]], kinds: Sequence[Set[type]] = ()) -> str:
    """The table of these rows. `kinds` are the types in each column, if there were more rows than are shown."""
    if not rows:
        return EMPTY
    columns = list(zip(*rows, strict=True))
    kinds = kinds or [set(map(type, column)) for column in columns]
    digits = len(str(len(columns) - 1))
    shown = [_column(str(i).ljust(digits), column, kinds[i]) for i, column in enumerate(columns)]
    return "\n".join(" ".join(line) for line in zip(*shown, strict=True))


def _column(header: str, values: Sequence[Value], kinds: Set[type]) -> Sequence[str]:
    """The cells of a column, with its header; numbers leave room for a sign."""
    if kinds == {int}:
        header, cells = f" {header}", [str(value) for value in values]
    elif kinds <= {int, float, type(None)} and kinds != {type(None)}:
        floats = [float(value) if isinstance(value, int | float) else None for value in values]
        header, cells = f" {header}", _floats(floats)
    else:
        cells = _mixed(values)
    width = max(len(header), *map(len, cells))
    return [cell.rjust(width) for cell in (header, *cells)]


def _mixed(values: Sequence[Value]) -> list[str]:
    """A column with values other than text: each value for itself."""
    return [_lone_float(value) if isinstance(value, float) else str(value).translate(_ESCAPED) for value in values]


def _lone_float(value: float) -> str:
    """A float with room for a sign."""
    text = f"{value: .{_DIGITS}f}".rstrip("0")
    return text + "0" if text.endswith(".") else text


def _floats(values: Sequence[float | None]) -> list[str]:
    """A column of floats: as many decimals as the longest needs, or all with exponents."""
    fixed = _trimmed([_float(value, "f") for value in values])
    sizes = [abs(value) for value in values if value is not None]
    too_small = any(0 < size < 10**-_DIGITS for size in sizes)
    too_large = max(map(len, fixed)) > _WIDEST and any(size > 1e6 for size in sizes)
    return [_float(value, "e") for value in values] if too_small or too_large else fixed


def _float(value: float | None, notation: str) -> str:
    return "NaN" if value is None else f"{value:.{_DIGITS}{notation}}"


def _trimmed(texts: Sequence[str]) -> list[str]:
    """Remove the final zeros that all have in common, except for the first after the point."""
    decimals = [text for text in texts if _DECIMAL.fullmatch(text)]
    zeros = min((len(text) - len(text.rstrip("0")) for text in decimals), default=0)
    cut = min(zeros, _DIGITS - 1)
    return [text[: len(text) - cut] if _DECIMAL.fullmatch(text) else text for text in texts]
