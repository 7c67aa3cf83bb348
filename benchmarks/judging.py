"""Measures what one test of `python_oj` costs, by its kind: `python -m benchmarks.judging [--count 200]`.

To compare with another version, set PYTHONPATH to its `src`.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Mapping

from benchmarks.sandbox_meter import Meter, metering
from toolyard.sandboxes.provider import Provider
from toolyard.tools.python_oj import first_failure, read_tests

_CODE = "def scaled(n, factor=3):\n    return [i * factor for i in range(n)]\n"
_LINKED = """class Node:
    def __init__(self, value, next=None):
        self.value, self.next = value, next
def length(head):
    return 1 + length(head.next) if head else 0
"""


def _scaled(n: int) -> str:
    return str([i * 3 for i in range(n)])


_LIST = _scaled(10)
KINDS: Mapping[str, tuple[str, object]] = {
    "stdin": ("print(int(input()) * 3)", {"inputs": ["5"], "outputs": ["15"]}),
    "fn_name": (_CODE, {"inputs": [[10]], "outputs": [_LIST], "fn_name": "scaled"}),
    "plain assert": (_CODE, [f"assert scaled(10) == {_LIST}"]),
    "other assert": (_CODE, [f"assert sorted(scaled(10)) == {_LIST}"]),
    "check(candidate)": (
        _CODE,
        [f"def check(candidate):\n    assert candidate(10) == {_LIST}\n    assert candidate(1) == [0]\ncheck(scaled)"],
    ),
    "5 plain asserts": (_CODE, [f"assert scaled({n}) == {_scaled(n)}" for n in range(5)]),
    "5 other asserts": (_CODE, [f"assert sorted(scaled({n})) == {_scaled(n)}" for n in range(5)]),
    "5 loops": (_CODE, [f"for n in range({n}, 3):\n    assert scaled(n)[-1:] == [n * 3 - 3][:n]" for n in range(5)]),
    "linked list": (_LINKED, ["head = Node(1)\nhead.next = Node(2)\nassert abs(length(head)) == 2"]),
    "chance": (_CODE, ["import random\nn = random.randint(1, 9)\nassert len(scaled(n)) == n"]),
    "alone": (_CODE, [f"import os\nassert sorted(scaled(10)) == {_LIST}"]),
    "other check": (
        _CODE,
        [
            f"def check(candidate):\n    assert sorted(candidate(10)) == {_LIST}\n"
            "    assert abs(len(candidate(1)) - 1) < 1\ncheck(scaled)"
        ],
    ),
}


async def _measure(meter: Meter, count: int, kind: str) -> tuple[float, float]:
    """Seconds of processor time and of waiting for each test, one after the other."""
    code, given = KINDS[kind]
    tests, _ = read_tests(given)
    began, cpu = time.monotonic(), meter.cpu().processes
    for _ in range(count):
        if failure := await first_failure(tests, code):
            raise SystemExit(failure)
    await asyncio.sleep(0.1)  # until the last sandbox has ended
    return (meter.cpu().processes - cpu) / count, (time.monotonic() - began - 0.1) / count


async def _main(meter: Meter, count: int, rounds: int) -> None:
    async with Provider("native"):
        for kind in KINDS:
            await _measure(meter, 10, kind)
            cpu, wall = sorted([await _measure(meter, count, kind) for _ in range(rounds)])[rounds // 2]
            print(f"{kind:18} {cpu * 1e3:6.2f} ms of processor time, {wall * 1e3:6.2f} ms")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with metering() as meter:
        asyncio.run(_main(meter, options.count, options.rounds))
