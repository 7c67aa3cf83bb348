"""How the memory of a template's small objects is laid out. Whenever one of its copies writes to a page of that, if
only to count a reference, the page is copied for it; and a large page, which a fork copies as one, is parted.

What is here goes by how CPython allocates. With another way of doing that it would be of no use, and do no harm.
"""

from __future__ import annotations

import gc
import sys

_ROOM = 64 * 2**20
"""More than the libraries of any profile take."""
_ARENA, _POOL, _POOL_HEADER = 2**20, 2**14, 48
"""What CPython gets from the kernel at once, and the part of it that holds objects of one size."""
_SMALLEST, _LARGEST, _STEP = 48, 512, 16
"""Sizes for which it has pools. For smaller ones there is nothing that could be made to fill them."""
_EMPTY = sys.getsizeof(b"")
_HOLES_MOST = 16 * 2**20
"""For each size."""

_reserved: list[bytes] = []
_filling: list[bytes] = []


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


def _pieces_up_to_new_pool(size: int) -> list[bytes]:
    """Objects of this size, the last of which are a pool by themselves."""
    pieces: list[bytes] = []
    side_by_side = at = 0
    while side_by_side < (_POOL - _POOL_HEADER) // size and len(pieces) < _HOLES_MOST // size:
        pieces.append(bytes(size - _EMPTY))
        before, at = at, id(pieces[-1])
        side_by_side = side_by_side + 1 if at == before + size else 1
    return pieces
