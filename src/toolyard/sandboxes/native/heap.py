"""Arranges the memory of a template's small objects. When a copy writes to a page of it, if only to count a reference,
the kernel copies the page; and it splits a large page, which a fork shares as one.

This depends on how CPython allocates. With another allocator it does nothing useful, and no harm.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence

_ROOM = 64 * 2**20
"""More than the libraries of any profile take."""
_ARENA, _POOL, _POOL_HEADER = 2**20, 2**14, 48
"""The size of CPython's requests to the kernel, and of their parts that hold objects of one size."""
_SMALLEST, _LARGEST, _STEP = 16, 512, 16
"""Sizes for which CPython has pools."""
_EMPTY = sys.getsizeof(b"")
_SMALL: Mapping[int, Callable[[], object]] = {16: object, 32: (0.0).__neg__}
"""Makes objects of sizes that bytes cannot have."""
_HOLES_MOST = 4 * 2**20
"""The limit for each size."""

_GAP_LARGEST = 2**16
"""Larger objects get their own memory from the kernel, or might as well."""
_GAPS_MOST = 16 * 2**20
_malloc, _free = ctypes.CDLL(None).malloc, ctypes.CDLL(None).free
_malloc.argtypes, _malloc.restype = (ctypes.c_size_t,), ctypes.c_size_t
_free.argtypes, _free.restype = (ctypes.c_size_t,), None

_reserved: list[bytes] = []
_filling: list[object] = []


def reserve() -> None:
    """Take memory for the libraries in one piece, before loading them would interleave it with their files."""
    pieces = [b""] * (_ROOM // _LARGEST)
    for at in range(len(pieces)):
        pieces[at] = bytes(_LARGEST - _EMPTY)
    _reserved.extend(pieces[:: _ARENA // _LARGEST // 2])


def release() -> None:
    """Return unused reserved memory to the kernel."""
    _reserved.clear()


def fill_holes() -> None:
    """Fill free gaps, so that later allocations lie side by side."""
    gc.collect()  # this also empties Python's free lists
    for size in range(_SMALLEST, _LARGEST + 1, _STEP):
        _filling.extend(_pieces_up_to_new_pool(size))
    _fill_gaps()


def _fill_gaps() -> None:
    """The same for larger objects. The C library takes them from gaps, or from above all others."""
    highest, filled = 0, 0
    for size in range(_GAP_LARGEST, _LARGEST, -_STEP):
        while 0 < (at := _malloc(size)) < highest and filled < _GAPS_MOST:
            filled += size
        highest = max(at, highest)
        _free(at)


def _pieces_up_to_new_pool(size: int) -> list[object]:
    """Objects of this size, until the last ones lie side by side, as in a new pool."""
    make = _SMALL.get(size, lambda: bytes(size - _EMPTY))
    in_pool = (_POOL - _POOL_HEADER) // size
    pieces: list[object] = []
    while _side_by_side(pieces[-in_pool:], size) < in_pool // 4 and len(pieces) < _HOLES_MOST // size:
        pieces += [make() for _ in itertools.repeat(None, in_pool)]
    return pieces


def _side_by_side(pieces: Sequence[object], size: int) -> int:
    """The longest run side by side. It stores no addresses: freeing those would leave holes."""
    most = run = 0
    for before, after in itertools.pairwise(pieces):
        run = run + 1 if id(after) - id(before) == size else 0
        most = max(most, run)
    return most
