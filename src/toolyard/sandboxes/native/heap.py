"""How the memory of a template's small objects is laid out. Whenever one of its copies writes to a page of that, if
only to count a reference, the page is copied for it; and a large page, which a fork copies as one, is parted.

What is here goes by how CPython allocates. With another way of doing that it would be of no use, and do no harm.
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
"""What CPython gets from the kernel at once, and the part of it that holds objects of one size."""
_SMALLEST, _LARGEST, _STEP = 16, 512, 16
"""Sizes for which it has pools."""
_EMPTY = sys.getsizeof(b"")
_SMALL: Mapping[int, Callable[[], object]] = {16: object, 32: (0.0).__neg__}
"""What makes an object of a size that bytes cannot have."""
_HOLES_MOST = 4 * 2**20
"""For each size."""

_GAP_LARGEST = 2**16
"""Larger objects get memory of their own from the kernel, or might as well."""
_GAPS_MOST = 16 * 2**20
_malloc, _free = ctypes.CDLL(None).malloc, ctypes.CDLL(None).free
_malloc.argtypes, _malloc.restype = (ctypes.c_size_t,), ctypes.c_size_t
_free.argtypes, _free.restype = (ctypes.c_size_t,), None

_reserved: list[bytes] = []
_filling: list[object] = []


def reserve() -> None:
    """Take the memory for libraries at once, before they are loaded, and their files lie in between."""
    pieces = [b""] * (_ROOM // _LARGEST)
    for at in range(len(pieces)):
        pieces[at] = bytes(_LARGEST - _EMPTY)
    _reserved.extend(pieces[:: _ARENA // _LARGEST // 2])


def release() -> None:
    """Give what was reserved and is not used back to the kernel."""
    _reserved.clear()


def fill_holes() -> None:
    """Use up what is free in between: what is allocated from now on lies side by side."""
    gc.collect()  # which also gives up what Python keeps for objects to come, wherever that is
    for size in range(_SMALLEST, _LARGEST + 1, _STEP):
        _filling.extend(_pieces_up_to_new_pool(size))
    _fill_gaps()


def _fill_gaps() -> None:
    """The same for larger objects, whose memory comes from the C library: from gaps, or else from beyond all others."""
    highest, filled = 0, 0
    for size in range(_GAP_LARGEST, _LARGEST, -_STEP):
        while 0 < (at := _malloc(size)) < highest and filled < _GAPS_MOST:
            filled += size
        highest = max(at, highest)
        _free(at)


def _pieces_up_to_new_pool(size: int) -> list[object]:
    """Objects of this size, some of the last of which are side by side, as in a pool that was empty."""
    make = _SMALL.get(size, lambda: bytes(size - _EMPTY))
    in_pool = (_POOL - _POOL_HEADER) // size
    pieces: list[object] = []
    while _side_by_side(pieces[-in_pool:], size) < in_pool // 4 and len(pieces) < _HOLES_MOST // size:
        pieces += [make() for _ in itertools.repeat(None, in_pool)]
    return pieces


def _side_by_side(pieces: Sequence[object], size: int) -> int:
    """The most of them that are, in a row. No numbers of places are kept: when they are freed, there would be holes."""
    most = run = 0
    for before, after in itertools.pairwise(pieces):
        run = run + 1 if id(after) - id(before) == size else 0
        most = max(most, run)
    return most
