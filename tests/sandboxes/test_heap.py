"""How a template's memory is laid out, tested in fresh processes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.tiers import first

_HOLES = """
import json, sys
from toolyard.sandboxes.native import heap
kept = [{make} for n in range(10_000)]
del kept[::200]
if {fill}:
    heap.fill_holes()
new = [{make} for n in range(20)]
print(json.dumps([id(one) for one in new]))
"""
_OBJECTS = {"bytes(100)": 144, "bytes(50)": 96, "object()": 16, "n + 0.5": 32, "bytes(1000)": 1040, "bytes(2500)": 2544}
"""The sizes that they take, including headers and rounding."""
_PAGE = 4096
_FILLED = """
import json
from toolyard.sandboxes.native import heap
def size():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
before = size()
heap.fill_holes()
print(json.dumps([before, size()]))
"""
_ROOM = """
import json
from toolyard.sandboxes.native import heap
def size():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096
def arenas(pieces):
    return {id(piece) >> 20 for piece in pieces}
before = size()
heap.reserve()
most = size() - before
held = [bytes(400) for _ in range(40_000)]
places = sorted(arenas(held))
heap.release()
print(json.dumps([most, size() - before, places[-1] - places[0] + 1, len(places)]))
"""


def printed_by(code: str) -> list[int]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    told: list[int] = json.loads(done.stdout)
    return told


@pytest.mark.parametrize("fill", [True, False])
@pytest.mark.parametrize(("make", "size"), first(_OBJECTS.items(), 2))
def test_with_holes_filled_new_objects_lie_side_by_side(make: str, size: int, fill: bool):
    places = printed_by(_HOLES.replace("{fill}", str(fill)).replace("{make}", make))
    pages = {place // _PAGE for place in places}
    assert (len(pages) <= size * len(places) // _PAGE + 3) == fill, places


def test_filling_takes_little_where_there_is_little_to_fill():
    before, after = printed_by(_FILLED)
    assert after - before < 8 * 2**20


def test_what_is_reserved_is_one_piece_and_what_is_not_used_is_given_back():
    most, left, spread, used = printed_by(_ROOM)
    assert most > 60 * 2**20
    assert used >= 16  # about a million bytes each
    assert spread <= used + 4
    assert left < 30 * 2**20
