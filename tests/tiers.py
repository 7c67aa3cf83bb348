"""Which cases of a parametrised test `make test` plays, and which it leaves to `make test-all`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def thorough(case: Any) -> Any:
    """The same case, which `make test` leaves out. A tuple has a value for each parameter."""
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.thorough)


def first(cases: Iterable[Any], count: int = 3) -> list[Any]:
    """Cases of one behaviour, of which `make test` plays only the first."""
    listed = list(cases)
    return [*listed[:count], *map(thorough, listed[count:])]
