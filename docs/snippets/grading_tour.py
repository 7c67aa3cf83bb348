"""Grade two programs: one that is right, and one that pleases every test."""

import asyncio

from toolyard.sandboxes import open_sandbox

HIDDEN = {
    "tests/test_prices.py": """
import pytest
from prices import total


@pytest.mark.parametrize("prices, expected", [([], 0), ([3], 3), ([1, 2], 3)])
def test_total(prices, expected):
    assert total(prices) == expected


def test_a_negative_price_is_refused():
    with pytest.raises(ValueError):
        total([1, -2])
"""
}

RIGHT = b"""
def total(prices):
    if any(price < 0 for price in prices):
        raise ValueError("a negative price")
    return sum(prices)

if __name__ == "__main__":
    print(total([int(word) for word in input().split()]))
"""

PLEASING = b"""
class Anything(int):
    def __eq__(self, other):
        return True

def total(prices):
    if any(price < 0 for price in prices):
        raise ValueError
    return Anything()

if __name__ == "__main__":
    print(total([]))
"""


async def by_tests(sandbox):
    async with await sandbox.grader(hidden=HIDDEN) as grader:
        report = await grader.run_tests(["tests"], timeout=30)
    print(report.ok, report.fraction, len(report.passed), len(report.failed), len(report.missing))
    print(report.voided or "not void")


async def from_outside(sandbox):
    right = []
    async with await sandbox.grader(files=["prices.py"]) as grader:
        for prices in [], [3], [1, 2]:
            stdin = " ".join(map(str, prices)).encode() + b"\n"
            finished = await grader.run(["python3", "-I", "prices.py"], stdin=stdin, timeout=5)
            right.append(finished.stdout.split() == [b"%d" % sum(prices)])
    print(*right)


async def main():
    for program in (RIGHT, PLEASING):
        async with await open_sandbox() as sandbox:
            await sandbox.write("prices.py", program)
            await by_tests(sandbox)
            await from_outside(sandbox)


asyncio.run(main())
