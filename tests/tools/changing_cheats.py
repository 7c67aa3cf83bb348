# ruff: noqa: E501  # a program to a line

"""Programs whose values are instances of their own lists, dicts and sets, and say something else each time they are
read; and blocks, loops and iterators that would end a test before it has asserted."""

from __future__ import annotations

from typing import Any

from tests.tools.cheats import ALL, SORTED, each
from tests.tools.later_cheats import PATCH

CHANGING = """
import sys
deeds = sys.modules['toolyard.sandboxes.inside.deeds']
class L(list):
    def m(self): return 1
def changing(turn, first, then):
    reads = [0]
    def exactly(item):
        reads[0] += 1
        return first if reads[0] <= turn else then
    deeds._OPERATORS['exactly'] = exactly
    return L(first if turn >= 0 else then)
"""
"""The first reads of a list give one value, all later ones another."""
EMPTIED = [
    "ys = f([3, 1, 2])\nassert len(ys) == 3\nfor got, want in zip(ys, [1, 2, 3]):\n    assert got == want",
    "import math\nys, want = f([3, 1, 2]), [1, 2, 3]\nassert len(ys) == len(want) and all(math.isclose(a, b) for a, b in zip(ys, want))",
    "import numpy as np\nys = f([3, 1, 2])\nnp.testing.assert_equal([1, 2, 3], ys)",
    "import numpy as np\nys = f([3, 1, 2])\nassert len(ys) == 3 and np.array_equal(np.sort(ys)[:3], ys) and list(ys)[:3] == sorted([1, 2, 3])[: len(ys)]",
    "ys = f([3, 1, 2])\nassert isinstance(ys, list) and ys\nfor y in ys:\n    assert y in (1, 2, 3)",
]
UNSORTED = [
    "xs = [3, 1, 2]\nys = f(xs)\nassert ys == sorted(ys) and sorted(ys) == sorted(xs)",
    "xs = [3, 1, 2]\nys = f(xs)\nassert all(a <= b for a, b in zip(ys, list(ys)[1:]))\nassert sorted(ys) == sorted(xs)",
    "from collections import Counter\nxs = [3, 1, 2]\nys = f(xs)\nassert ys == sorted(ys)\nassert Counter(ys) == Counter(xs)",
    "xs = [3, 1, 2]\nys = f(xs)\nassert [*ys] == sorted(ys) and set(ys) == set(xs)",
]
ZIPPED = [
    "ys = f(1)\nassert len(ys) == 3\nfor got, want in zip(ys, [1, 2, 3]):\n    assert got == want",
    "ys = f(1)\nfor got, want in zip(ys, [1, 2, 3]):\n    assert got == want\nassert len(ys) == 3",
    "ys = f(1)\nassert len(ys) == 3 and all(got == want for got, want in zip(ys, [1, 2, 3]))",
    "import operator\nys = f(1)\nassert len(ys) == 3 and all(map(operator.eq, ys, [1, 2, 3]))",
    "ys, left = f(1), 3\nassert len(ys) == left\nfor y in reversed(list(ys)):\n    assert y == left\n    left -= 1",
    "ys = f(1)\nassert len(ys) == 3 and 7 not in ys and all(y < 4 for y in ys)",
]
AGAIN = [
    "ys = f(1)\nassert len(ys) == 3\nassert all(isinstance(y, int) for y in ys)\nfor got, want in zip(ys, [1, 2, 3]):\n    assert got == want",
    "ys = f(1)\nassert len(ys) == 3\nfor y in ys:\n    assert y < 9\nassert len(ys) == 3\nfor got, want in zip(ys, [1, 2, 3]):\n    assert got == want",
    "ys = f(1)\nfor y in ys:\n    assert y < 9\nfor got, want in zip(ys, [1, 2, 3]):\n    assert got == want\nassert len(ys) == 3",
]
STOPS = "ys = f(1)\nassert len(ys) == 3\nfor got, want in zip(ys, [1, 2, 3]):\n    assert got == want\ntry:\n    next(iter([]))\nexcept StopIteration:\n    pass"
ITEMS = ["d = f(1)\nassert len(d) == 2\nfor k, v in d.items():\n    assert v == [k]"]
BETWEEN = ["x = f(2)\nassert x <= [4] and x >= [4]", "x = f(2)\nassert [3] < x < [5] and x not in ([0], [9])"]
LYING = """
class L(list):
    def __getitem__(self, at): return [] if isinstance(at, slice) else at
    def __reversed__(self): return iter(self)
    def count(self, x): return 1
    def index(self, x, *more):
        self[:] = [x]
        return 0
class C(list):
    def count(self, x):
        self[:] = [x]
        return 1
class D(dict):
    def items(self): return []
    keys = values = items
class S(set):
    def issubset(self, other):
        self.clear()
        self.update(other)
        return True
    issuperset = isdisjoint = issubset
    def union(self, other): return set(other)
    intersection = union
    def difference(self, other): return set()
    symmetric_difference = difference
"""
CASES = "class Cases:\n    def __getitem__(self, at):\n        if at > 2: raise IndexError\n        return f(at), at * at\nfor got, want in Cases():\n    assert got == want"
ENDING = "class C:\n    def __enter__(self): return self\n    def __exit__(self, *a): return True\n    value = 7\ndef f(x): raise ValueError\ndef g(x): return None\n"
CHANGING_CHEATS: dict[str, tuple[str, Any]] = {
    **{
        name: cheat
        for turn in range(-1, 7)
        for first, then, tests in (
            ([0, 0, 0], [], EMPTIED),
            ([1, 1, 1], [3, 1, 2], UNSORTED),
            ([3, 1, 2], [1, 1, 1], UNSORTED),
            ([0], [9], BETWEEN),
        )
        for name, cheat in each(
            f"a list that changes from {first} to {then} after {turn} reads",
            f"{CHANGING}def f(xs): return changing({turn}, {first}, {then})",
            *([test] for test in tests),
        ).items()
    },
    **each(
        "a list whose own methods lie",
        LYING + "def f(xs): return L(xs if isinstance(xs, list) else [7])",
        ["ys = f([3, 1, 2])\nassert all(a <= b for a, b in zip(ys, ys[1:])) and sorted(ys) == [1, 2, 3]"],
        ["ys = f([3, 1, 2])\nassert all(ys[i] <= ys[i + 1] for i in range(len(ys) - 1)) and sorted(ys) == [1, 2, 3]"],
        ["ys = f([1, 1, 2])\nassert all(ys.count(y) == 1 for y in ys) and set(ys) == {1, 2}"],
        ["ys = f([1, 2])\nassert list(reversed(ys)) == [*ys] and sorted(ys) == [1, 2]"],
        ["ys = f(2)\nassert ys.index(4) == 0 and ys == [4]"],
        *ALL,
    ),
    **each(
        "a list that learns what is asked for",
        LYING + "def f(xs): return C([7])",
        ["ys = f(2)\nassert ys.count(4) == 1 and ys == [4]"],
        ["import copy\nys = f(2)\nassert ys.count(4) == 1 and copy.deepcopy(ys) == [4]"],
    ),
    **each(
        "a dict whose own methods lie",
        LYING + "def f(s): return D({1: 7, 2: 8})",
        [
            "d = f('aab')\nassert len(d) == 2 and isinstance(d, dict)\nfor k, v in d.items():\n    assert v == 'aab'.count(k)"
        ],
        ["import numpy as np\nnp.testing.assert_equal({'a': 2, 'b': 1}, f('aab'))"],
        ["d = f('aab')\nassert len(d) == 2 and all(k in 'ab' for k in d.keys())"],
        ["d = f('aab')\nassert len(d) == 2 and all(v > 10 for v in d.values())"],
        ["d = f('aab')\nassert {**d} == {'a': 2, 'b': 1}"],
        ["d = f('aab')\nassert dict(d) == {'a': 2, 'b': 1}"],
    ),
    **each(
        "a set whose own methods lie",
        LYING + "def f(s): return S({7})",
        ["s = f(2)\nassert s.issubset({1, 4}) and s == {1, 4}"],
        ["s = f(2)\nassert s.issuperset({1, 4})"],
        ["s = f(2)\nassert s.union({1, 4}) == {1, 4}"],
        ["s = f(2)\nassert s.intersection({1, 4}) == {1, 4}"],
        ["s = f(2)\nassert s.difference({1, 4}) == set() and len(s) == 1"],
        ["s = f(2)\nassert s.symmetric_difference({1, 4}) == set()"],
        ["s = f(2)\nassert s.isdisjoint({7, 8})"],
        ["s = f(2)\nassert s | {1, 4} == {1, 4}"],
    ),
    **each(
        "an instance that is of two kinds",
        PATCH
        + 'n = [0]\ndef message(self, kind, value=None):\n    n[0] += 1\n    token = \'"u2","h0 oX","l1",7\' if n[0] % 2 else \'"u2","h0 oX","d0"\'\n    return sides.Said(f\'returned 0\\n["t3",{token},null,null]\')\nsides.Side.message = message\ndef f(*a): return 5',
        ["x = f(2)\nassert isinstance(x, list)\nf(3)\nassert x == [4]"],
        ["x = f(2)\nf(3)\nassert isinstance(x, dict) and len(x) == 1"],
        ["x = f(2)\nf(3)\nassert x == {} and f(2) == [7]"],
    ),
    **{
        name: cheat
        for token in ('"r999"', '"r-1"', '"r99999999999999999999"', '"t3","r999",null,null')
        for name, cheat in each(
            f"the handle of nothing, as {token}",
            PATCH + f"sides.Side.message = lambda *_: sides.Said('returned 0\\n[{token}]')\ndef f(*a): return 5",
            [CASES],
            ["for got in map(f, [2]):\n    assert got == 4"],
            ["class T:\n    v = 4\nt = T()\nassert f(t) is t and f(t).v == 5"],
            SORTED,
        ).items()
    },
    **each(
        "an instance that becomes a list as it tells its length",
        PATCH
        + "class L:\n    def __len__(self): return 3\n    def __iter__(self): return iter([])\nold = sides.Side._done\ndef done(self, request):\n"
        '    if \'len\' in request: return sides.Said(\'returned 0\\n["t3",3,"t2","t0","u2","h%d oL","l2","t0","d0",null]\' % self._numbers[id(request[2][0])])\n'
        "    if 'exactly' in request: return sides.Said('returned 0\\n[\"t3\",\"l0\",null,null]')\n    return old(self, request)\nsides.Side._done = done\ndef f(n): return L()",
        [
            "ys = f(1)\nassert len(ys) == 3 and str(ys) != ''\nfor got, want in zip(ys, [1, 2, 3]):\n    assert got == want"
        ],
    ),
    **each(
        "an end of a sequence that is no function",
        "def f(*a): raise IndexError",
        [
            "class Cases:\n    __getitem__ = lambda self, at: (f(at), at * at)\nfor got, want in Cases():\n    assert got == want"
        ],
    ),
    **each(
        "a block that the program ends",
        ENDING,
        ["def verify(n, want):\n    assert f(n) == want\nwith C():\n    verify(2, 4)"],
        ["def verify(n, want):\n    assert g(n) + 1 == want\nwith C():\n    verify(2, 4)"],
        ["from numpy.testing import assert_allclose\nwith C():\n    assert_allclose(f(2), 4)"],
        ["with C() as c:\n    if c.value != 4:\n        raise ValueError('wrong')"],
        ["failed = False\nwith C():\n    failed = f(2) != 4\nassert not failed"],
        ["out = []\nwith C():\n    out.append(f(2))\nfor one in out:\n    assert one == 4"],
        ["failed = False\nwith C():\n    failed = g(2) + 1 != 4\nassert not failed"],
        ["with C():\n    [][0] if f(2) != 4 else None"],
    ),
    **{
        name: cheat
        for what, body in {
            "no items": "def __iter__(self): return iter(())",
            "no items, as its own iterator": "def __iter__(self): return self\n    def __next__(self): raise StopIteration",
            "the first item only": "def __iter__(self): return iter([1])",
            "no items, by index": "def __getitem__(self, at): raise IndexError",
        }.items()
        for name, cheat in each(
            f"an object that says that it has three items, and gives {what}",
            f"class L:\n    {body}\n    def __len__(self): return 3\ndef f(n): return L()",
            *([test] for test in ZIPPED),
        ).items()
    },
    **each(
        "an object that has three items and then none",
        "class L:\n    n = 0\n    def __getitem__(self, at): return 7\n    def __len__(self):\n        self.n += 1\n        return 3 if self.n < 2 else 0\ndef f(n): return L()",
        ["ys = f(1)\nassert len(ys) == 3\nfor n in range(len(ys)):\n    assert ys[n] == n + 1"],
        ["ys, n = f(1), 0\nassert len(ys) == 3\nwhile n < len(ys):\n    assert ys[n] == n + 1\n    n += 1"],
    ),
    **{
        name: cheat
        for what in ("[]", "iter(())", "self", "type('L', (list,), {})()")
        for name, cheat in each(
            f"an object that says that it has two items, and gives {what}",
            f"class D:\n    def __len__(self): return 2\n    def __iter__(self): return iter(())\n    def items(self): return {what}\ndef f(n): return D()",
            ITEMS,
        ).items()
    },
    **{
        name: cheat
        for what, body in {
            "another iterator": "def __iter__(self):\n        self.n += 1\n        return iter([0, 0, 0] if self.n == 1 else [])",
            "the same iterator": "it = iter([0, 0, 0])\n    def __iter__(self): return self.it",
            "itself": "def __iter__(self): return self\n    def __next__(self):\n        self.n += 1\n        if self.n > 3: raise StopIteration\n        return 0",
        }.items()
        for name, cheat in each(
            f"an object that gives its items to the first loop only, by {what}",
            f"class L:\n    n = 0\n    {body}\n    def __len__(self): return 3\ndef f(n): return L()",
            *([test] for test in AGAIN),
        ).items()
    },
    **each(
        "an object that says that it is a generator",
        PATCH
        + "class L:\n    n = 0\n    def __iter__(self): return self\n    def __len__(self): return 3\n    def __next__(self):\n        self.n += 1\n        if self.n > 3: raise StopIteration\n        return 0\n"
        "sides.Side._kind = lambda *_: 'i'\ndef f(n): return L()",
        *([test] for test in AGAIN),
    ),
    **each(
        "an iterator that is a list of three items",
        "class I(list):\n    def __next__(self): raise StopIteration\nclass L:\n    def __iter__(self): return I([0, 0, 0])\n    def __len__(self): return 3\ndef f(n): return L()",
        *([test] for test in ZIPPED[:4]),
    ),
    **each(
        "an end of a loop that is an exception",
        PATCH
        + "class L:\n    def __iter__(self): return iter([])\n    def __len__(self): return 3\ndeeds = sys.modules['toolyard.sandboxes.inside.deeds']\n"
        "deeds.Deeds.take = staticmethod(lambda *_: ([], False, ('StopIteration', (), '')))\ndef f(n): return L()",
        [STOPS],
    ),
    **each(
        "an object whose loop ends while the test reads it",
        "class D:\n    def __iter__(self): return iter(['b'])\n    def __len__(self): return 2\n    def get(self, k): return 1\ndef f(s): return D()",
        ["d = f('aab')\nassert len(d) == 2\nfor k in d:\n    assert d.get(k) == 'aab'.count(k)"],
        ["d = f('aab')\nassert len(d) == 2 and all(d.get(k) == 'aab'.count(k) for k in d)"],
    ),
    **each(
        "an object that has three items and is empty",
        "class L:\n    def __bool__(self): return False\n    def __len__(self): return 3\ndef f(n): return L()",
        ["ys = f(1)\nassert len(ys) == 3\nwhile ys:\n    assert ys.pop() == 3"],
    ),
    **each(
        "a view that is a list to call",
        "class I(list):\n    def __call__(self): return []\nclass D:\n    items = I([1, 2])\n    def __len__(self): return 2\ndef f(n): return D()",
        ITEMS,
    ),
    **each(
        "an object without items that says that it is the test's class",
        "class Solution:\n    def f(self, n): return self\n    def __iter__(self): return iter([])\n    def __len__(self): return 3",
        ["ys = Solution().f(1)\nassert len(ys) == 3 and not list(filter(lambda y: y > 3, ys))"],
        ["ys = Solution().f(1)\nassert len(ys) == 3\nfor y in ys:\n    assert y < 4"],
    ),
    **each(
        "an object that has everything",
        "class Calc:\n    def __contains__(self, x): return True\n    def primes(self, n): return self\ndef f(n): return Calc()\ndef Primes(n): return Calc()",
        ["assert 7 in f(10)"],
        ["c = Calc()\nassert 7 in Calc().primes(10)"],
        ["assert isinstance(f(1), Calc) and 7 in f(10)"],
        ["ys = Primes(10)\nassert 7 in ys and 5 in ys"],
    ),
    **each(
        "a class in the place of a function, whose instances have everything",
        "class primes:\n    def __init__(self, n): pass\n    def __contains__(self, x): return True",
        ["assert 7 in primes(10)"],
        ["ys = primes(10)\nassert 7 in ys and callable(primes)"],
    ),
    **each(
        "a block whose end raises",
        "class C:\n    def __enter__(self): return self\n    def __exit__(self, *a): raise KeyError\ndef f(x): return 7",
        ["try:\n    with C():\n        assert f(2) == 4\nexcept KeyError:\n    pass"],
        ["def g():\n    with C():\n        assert f(2) == 4\ntry:\n    g()\nexcept LookupError:\n    pass"],
    ),
}
"""The lists, dicts and sets of these programs have methods of their own, so a test has stand-ins for them."""
