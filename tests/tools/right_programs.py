# ruff: noqa: E501  # a program to a line

"""Right programs in the shapes of MBPP, HumanEval, APPS and LeetCode, each with tests that it passes. We wrote all."""

from __future__ import annotations

from typing import Any


def called(name: str, *pairs: tuple[Any, Any]) -> dict[str, Any]:
    return {**read(*pairs), "fn_name": name}


def read(*pairs: tuple[Any, Any]) -> dict[str, Any]:
    return {"inputs": [given for given, _ in pairs], "outputs": [expected for _, expected in pairs]}


NODE = """
class Node:
    def __init__(self, value, following=None):
        self.value = value
        self.following = following
def linked(values):
    head = None
    for value in reversed(values):
        head = Node(value, head)
    return head
def turned(head):
    before = None
    while head:
        head.following, before, head = before, head, head.following
    return before
"""
STACK = """
class Empty(Exception):
    pass
class Stack:
    def __init__(self, items=()):
        self.items = list(items)
    def push(self, item):
        self.items.append(item)
        return self
    def pop(self):
        if not self.items:
            raise Empty("nothing left")
        return self.items.pop()
    def __len__(self):
        return len(self.items)
    def __iter__(self):
        return iter(self.items)
    def __getitem__(self, at):
        return self.items[at]
    def __bool__(self):
        return bool(self.items)
"""
VECTOR = """
class Vector:
    def __init__(self, x, y): self.x, self.y = x, y
    def __add__(self, other): return Vector(self.x + other.x, self.y + other.y)
    def __rmul__(self, factor): return Vector(factor * self.x, factor * self.y)
    def __abs__(self): return (self.x ** 2 + self.y ** 2) ** 0.5
    def __str__(self): return f"<{self.x}, {self.y}>"
    def __float__(self): return float(abs(self))
"""
MBPP: dict[str, tuple[str, list[str]]] = {
    "a number": ("def twice(n):\n    return 2 * n", ["assert twice(4) == 8", "assert -8 == twice(-4)"]),
    "text": ("def loud(s):\n    return s.upper() + '!'", ["assert loud('é\"x') == 'É\"X!'"]),
    "truth": (
        "def even(n):\n    return n % 2 == 0",
        ["assert even(2) == True", "assert even(2) is True", "assert even(2)"],
    ),
    "no truth": ("def even(n):\n    return n % 2 == 0", ["assert not even(3)", "assert even(3) is False"]),
    "nothing": ("def find(xs, x):\n    return None", ["assert find([1], 2) is None", "assert find([1], 2) == None"]),
    "something": ("def find(xs):\n    return xs[0]", ["assert find([1]) is not None", "assert find([1]) != None"]),
    "a difference": ("def other(n):\n    return n + 1", ["assert other(1) != 1"]),
    "bytes": ("def raw(s):\n    return s.encode()", ["assert raw('é') == b'\\xc3\\xa9'"]),
    "complex": ("def turn(z):\n    return z * 1j", ["assert turn(1 + 2j) == -2 + 1j"]),
    "nested": (
        "def f(n):\n    return {'a': [(n, {n})], 'b': {1: None}}",
        ["assert f(1) == {'a': [(1, {1})], 'b': {1: None}}"],
    ),
    "a set": ("def f(xs):\n    return set(xs)", ["assert f([1, 1, 2]) == {1, 2}", "assert f([]) == set()"]),
    "a frozen set": ("def f(xs):\n    return frozenset(xs)", ["assert f([3]) == {3}"]),
    "a large number": ("def power(n):\n    return 2 ** n", [f"assert power(200) == {2**200}"]),
    "keywords": ("def f(a, *, k=1):\n    return a * k", ["assert f(2, k=3) == 6", "assert f(a=2) == 2"]),
    "a message": ("def f(a):\n    return a", ["assert f(2) == 2, 'two is two'"]),
    "several lines": ("def f(a, b):\n    return a + b", ["assert f(\n    [1],\n    [2],\n) == [\n    1,\n    2,\n]"]),
    "a comment": ("def f(a):\n    return a", ["assert f(2) == 2  # as it is", "\n\nassert f(1) == 1\n"]),
    "a built-in name": (
        "def sum(a, b):\n    return a * b % 144",
        ["assert sum(10, 15) == 6", "assert abs(sum(10, 15) - 6.0) < 1e-9", "assert sum(10, 15) == int('6')"],
    ),
    "closeness": ("def root(x):\n    return x ** 0.5", ["assert abs(root(2.0) - 1.41421356) < 1e-6"]),
    "rounding": ("def third(x):\n    return x / 3", ["assert round(third(1), 3) == 0.333"]),
    "its order aside": (
        "def f(xs):\n    return xs[::-1]",
        ["assert sorted(f([3, 1])) == [1, 3]", "assert set(f('ab')) == {'a', 'b'}"],
    ),
    "math imported": ("def f(x):\n    return x ** 0.5", ["import math\nassert math.isclose(f(2), math.sqrt(2))"]),
    "math of the program": (
        "import math\ndef f(x):\n    return math.sqrt(x)",
        ["assert math.isclose(f(2), 1.41421356, rel_tol=1e-6)"],
    ),
    "infinity": ("def least(xs):\n    return min(xs, default=float('inf'))", ["assert least([]) == float('inf')"]),
    "computed": (
        "def zeros(n):\n    return [0] * n",
        ["assert zeros(3) == [0] * 3", "assert zeros(0) == list()", "assert zeros(2) == [0, 1 - 1]"],
    ),
    "a counter": (
        "from collections import Counter\ndef f(s):\n    return Counter(s)",
        [
            "assert f('aab') == {'a': 2, 'b': 1}",
            "from collections import Counter\nassert f('aab') == Counter('aba')",
            "assert Counter(f('a')) == Counter('a')",
        ],
    ),
    "a default dict": (
        "from collections import defaultdict, OrderedDict\ndef f(s):\n    d = defaultdict(list)\n    d[s].append(1)\n    return d\n"
        "def g(s):\n    return OrderedDict([(s, 1)])",
        ["assert f('k') == {'k': [1]}", "assert dict(f('k')) == {'k': [1]}", "assert g('k') == {'k': 1}"],
    ),
    "a named tuple": (
        "from collections import namedtuple\nSpot = namedtuple('Spot', 'x y')\ndef f(x):\n    return Spot(x, 2)",
        ["assert f(1) == (1, 2)", "x, y = f(1)\nassert (x, y) == (1, 2)"],
    ),
    "an enumeration of numbers": (
        "from enum import IntEnum\nclass Level(IntEnum):\n    HIGH = 3\ndef f():\n    return Level.HIGH",
        ["assert f() == 3"],
    ),
    "text of its own kind": ("class Name(str):\n    pass\ndef f():\n    return [Name('a')]", ["assert f() == ['a']"]),
    "numbers of numpy": (
        "import numpy as np\ndef f(x):\n    return np.float64(x)\ndef g(x):\n    return np.int64(x)\ndef h(xs):\n    return np.array(xs) * 2",
        [
            "assert f(0.5) == 0.5",
            "assert g(5) == 5",
            "import numpy as np\nassert np.allclose(h([1, 2]), [2, 4])",
            "assert h([[1], [2]]).tolist() == [[2], [4]]",
            "assert np.array_equal(h([1]), np.array([2]))",
        ],
    ),
    "numbers of the standard library": (
        "from decimal import Decimal\nfrom fractions import Fraction\ndef f(a, b):\n    return Fraction(a, b)\ndef g(s):\n    return Decimal(s)",
        ["assert f(1, 2) == 0.5", "assert abs(f(1, 3) - 1 / 3) < 1e-9", "assert g('1.50') == Decimal('1.5')"],
    ),
    "pairs": (
        "class Pair(object):\n    def __init__(self, a, b):\n        self.a = a\n        self.b = b\n"
        "def longest(pairs, n):\n    best = [1] * n\n    for i in range(n):\n        for j in range(i):\n"
        "            if pairs[i].a > pairs[j].b:\n                best[i] = max(best[i], best[j] + 1)\n    return max(best)",
        ["assert longest([Pair(5, 24), Pair(15, 25), Pair(27, 40), Pair(50, 60)], 4) == 3"],
    ),
    "a function as argument": (
        "def each(function, xs):\n    return [function(x) for x in xs]",
        [
            "assert each(lambda x: x * 2, [1, 2]) == [2, 4]",
            "assert each(str, [1]) == ['1']",
            "def more(x):\n    return x + 1\nassert each(more, (1,)) == [2]",
        ],
    ),
    "a type as argument": (
        "def without(xs, kind):\n    return [x for x in xs if not isinstance(x, kind) and type(x) is not kind]",
        [
            "assert without((7, 8, 'SR'), str) == [7, 8]",
            "assert without((4, 5, 7.7), int) == [7.7]",
            "def check(candidate):\n    assert candidate([1, 'a'], (int, float)) == ['a']\ncheck(without)",
        ],
    ),
    "a type as result": ("def kind(x):\n    return type(x)", ["assert kind(1) == int", "assert kind('') is str"]),
    "a function with the name of a module": (
        "def copy(xs):\n    return xs[:]",
        ["assert list(map(copy, [[1]])) == [[1]]", "assert sorted(copy([2, 1])) == [1, 2]"],
    ),
    "a queue": (
        "from collections import deque\ndef turned(q):\n    q.rotate(1)\n    return deque(q, 2)",
        [
            "assert turned(deque([1, 2, 3])) == deque([1, 2])",
            "from collections import deque\nq = deque([1, 2, 3], maxlen=3)\nturned(q)\nassert q == deque([3, 1, 2])\nassert q.maxlen == 3",
            "assert list(turned(deque())) == []",
        ],
    ),
    "keys": (
        "def keys(d):\n    return d.keys()",
        ["assert keys({1: 2, 0: 3}) == {0, 1}", "assert list(keys({1: 2, 0: 3})) == [1, 0]"],
    ),
    "what a pattern finds": (
        "import re\ndef found(s):\n    return re.match('a+', s)",
        [
            "assert found('a')",
            "assert not found('b')",
            "assert found('a') is not None",
            "assert found('a') != None",
            "x = found('aa')\nassert x\nassert x.group() == 'aa'",
        ],
    ),
    "a function as result": (
        "def adder(n):\n    return lambda x: x + n",
        ["assert adder(2)(3) == 5", "add = adder(1)\nassert add(1) == 2 and add(2) == 3"],
    ),
    "a range as argument": (
        "def f(xs):\n    return [xs[0], len(xs), sum(xs)]",
        ["assert f(range(1, 4)) == [1, 3, 6]", "assert f({4: 5}.keys().__class__ and [4]) == [4, 1, 4]"],
    ),
    "what it prints": (
        "print('hello')\ndef f(x):\n    print('x is', x)\n    return x",
        ["assert f(1) == 1", "assert abs(f(1)) == 1"],
    ),
    "a main part": ("def f(x):\n    return x\nif __name__ == '__main__':\n    print(f(3))", ["assert f(1) == 1"]),
    "a constant": ("LIMIT = 7\ndef f():\n    return 7", ["assert f() == LIMIT", "assert LIMIT == 7"]),
    "deep recursion": (
        "import sys\nsys.setrecursionlimit(10000)\ndef f(n):\n    return 0 if n == 0 else 1 + f(n - 1)",
        ["assert f(5000) == 5000"],
    ),
    "a long list": (
        "def f(n):\n    return list(range(n))",
        ["assert f(50000) == list(range(50000))", "assert len(f(50000)) == 50000"],
    ),
    "types": (
        "def f(x):\n    return [x]",
        ["assert isinstance(f(1), list)", "assert type(f(1)) is list", "assert 1 in f(1)", "assert f(1) < [2]"],
    ),
}
HUMANEVAL: dict[str, tuple[str, list[str]]] = {
    "a check": (
        "def grow(xs):\n    return [x + 1 for x in xs]",
        [
            "METADATA = {'author': 'us'}\n\n\ndef check(candidate):\n    assert candidate([1]) == [2]\n    assert candidate([]) == []\n\ncheck(grow)"
        ],
    ),
    "a check with floats": (
        "def part(x):\n    return x % 1.0",
        [
            "def check(candidate):\n    assert candidate(3.5) == 0.5\n    assert abs(candidate(1.33) - 0.33) < 1e-6\ncheck(part)"
        ],
    ),
    "a check that loops": (
        "def up(n):\n    return n + 1\ndef down(n):\n    return n - 1",
        [
            "def check(candidate):\n    import random\n    for _ in range(20):\n        n = random.randint(-9, 9)\n        assert down(candidate(n)) == n\ncheck(up)"
        ],
    ),
    "a check of a built-in name": (
        "def max(a, b):\n    return a - b",
        ["def check(candidate):\n    assert candidate(5, 3) == 2\ncheck(max)"],
    ),
    "a check with helpers": (
        "def f(xs):\n    return xs[::-1]",
        [
            "def same(a, b):\n    return sorted(a) == sorted(b)\ndef check(candidate):\n    assert same(candidate([1, 2]), [2, 1])\ncheck(f)"
        ],
    ),
    "a check with messages": (
        "def f(s):\n    return s[::-1]",
        [
            "def check(candidate):\n    assert candidate('ab') == 'ba', 'Test 1'\n    assert True, 'This prints if this assert fails'\ncheck(f)"
        ],
    ),
    "branches": (
        "def f(n):\n    return n",
        [
            "if f(1) == 1:\n    assert f(2) == 2\nelse:\n    assert False",
            "assert f(0) == 0 or f(1) == 2",
            "assert all(f(n) == n for n in range(5))",
        ],
    ),
    "an exception": (
        "def f(n):\n    if n < 0:\n        raise ValueError('negative', n)\n    return n",
        [
            "try:\n    f(-1)\nexcept ValueError:\n    pass\nelse:\n    assert False",
            "try:\n    f(-1)\n    assert False\nexcept ValueError as error:\n    assert error.args == ('negative', -1)",
            "import unittest\nunittest.TestCase().assertRaises(ValueError, f, -1)",
        ],
    ),
    "an exception of its own": (
        STACK,
        [
            "s = Stack()\ntry:\n    s.pop()\n    assert False\nexcept Empty as error:\n    assert str(error) == 'nothing left'",
            "try:\n    Stack().pop()\nexcept Exception as error:\n    assert type(error).__name__ == 'Empty'",
        ],
    ),
    "a generator": (
        "def squares(n):\n    for i in range(n):\n        yield i * i",
        [
            "assert list(squares(4)) == [0, 1, 4, 9]",
            "g = squares(2)\nassert next(g) == 0\nassert next(g) == 1\nassert next(g, None) is None",
            "assert sum(squares(300)) == sum(i * i for i in range(300))",
            "assert 9 in squares(4)",
        ],
    ),
    "a generator without end": (
        "def count(n):\n    while True:\n        yield n\n        n += 1",
        ["from itertools import islice\nassert list(islice(count(3), 3)) == [3, 4, 5]"],
    ),
    "a unit test": (
        "def f(n):\n    return n + 1",
        [
            "import unittest\nclass T(unittest.TestCase):\n    def test_one(self):\n        self.assertEqual(f(1), 2)\nran = unittest.TextTestRunner().run(unittest.defaultTestLoader.loadTestsFromTestCase(T))\nassert ran.wasSuccessful()"
        ],
    ),
    "what a test prints": ("def f(n):\n    return n", ["print(f(1))\nassert f(2) == 2"]),
}
APPS: dict[str, tuple[str, Any]] = {
    "a number read": ("n = int(input())\nprint(n * n)", read(("3", "9"), ("-2\n", "4\n"))),
    "lines read": ("import sys\nprint(sum(map(int, sys.stdin.read().split())))", read((["1 2", "3"], ["6"]))),
    "numbers written otherwise": ("print(1 / int(input()))", read(("3", "0.333333"), ("4", "0.25"))),
    "an early end": ("import sys\nprint(input())\nsys.exit(0)", read(("a", "a"))),
    "many lines": ("for i in range(int(input())):\n    print(i)", read(("3", ["0", "1", "2"]))),
    "a function": ("def f(a, b):\n    return a + b", called("f", ([1, 2], 3), ([[1], [2]], [[1, 2]]))),
    "a function that prints": ("def f(a):\n    print('working')\n    return a", called("f", ([1], 1))),
    "a function by its method": (
        "class Solution:\n    def f(self, s):\n        return s[::-1]",
        called("f", (["ab"], "ba")),
    ),
    "a tuple for a list": ("def f(a):\n    return (a, a)", called("f", ([1], [1, 1]), ("1", "[1, 1]"))),
    "a float": ("def f(a):\n    return a / 3", called("f", ([1], 0.333333))),
    "source as input": ("def f(a, k=1):\n    return a * k", called("f", ("'x', k=2", "xx"))),
    "numpy's number": ("import numpy\ndef f(xs):\n    return numpy.sum(xs)", called("f", ([[1, 2]], 3))),
}
LEETCODE: dict[str, tuple[str, Any]] = {
    "a method": (
        "from typing import List\nclass Solution:\n    def best(self, xs: List[int]) -> int:\n        return max(xs)",
        ["assert Solution().best([1, 3]) == 3", "s = Solution()\nassert s.best([2]) == 2\nassert s.best(xs=[4]) == 4"],
    ),
    "in place": (
        "def unique(nums):\n    nums[:] = sorted(set(nums))\n    return len(nums)",
        [
            "nums = [2, 1, 1]\nk = unique(nums)\nassert nums[:k] == [1, 2]",
            "nums = [1]\nassert unique(nums) == 1 and nums == [1]",
        ],
    ),
    "in place by a method": (
        "class Solution:\n    def turn(self, grid):\n        grid[:] = [list(row)[::-1] for row in zip(*grid)][::-1][::-1]",
        ["grid = [[1, 2], [3, 4]]\nSolution().turn(grid)\nassert grid == [[3, 1], [4, 2]]"],
    ),
    "a dict and a set in place": (
        "def f(d, s):\n    d['k'] = 1\n    s.add(2)",
        ["d, s = {}, {1}\nassert f(d, s) is None\nassert d == {'k': 1} and s == {1, 2}"],
    ),
    "a linked list": (
        NODE,
        [
            "h = turned(linked([1, 2, 3]))\nout = []\nwhile h:\n    out.append(h.value)\n    h = h.following\nassert out == [3, 2, 1]",
            "h = turned(Node(1, Node(2)))\nassert (h.value, h.following.value) == (2, 1) and h.following.following is None",
            "h = linked([1, 2])\nh.following.value = 7\nassert turned(h).value == 7",
            "h = linked([1])\nwhile h != None:\n    h = h.following\nassert h is None",
        ],
    ),
    "a linked list of the test's": (
        "def total(head):\n    found = 0\n    while head:\n        found += head.val\n        head = head.next\n    return found\n"
        "def put(head, cls):\n    return cls(9, head)",
        [
            "class ListNode:\n    def __init__(self, val=0, next=None):\n        self.val = val\n        self.next = next\n"
            "assert total(ListNode(1, ListNode(2))) == 3\nhead = put(ListNode(4), ListNode)\nassert head.val == 9 and head.next.val == 4",
        ],
    ),
    "a design": (
        STACK,
        [
            "s = Stack()\ns.push(1).push(2)\nassert len(s) == 2 and s[0] == 1 and list(s) == [1, 2]\nassert s.pop() == 2\nassert s.items == [1]",
            "s = Stack([1])\nn = 0\nwhile s:\n    n += s.pop()\nassert n == 1",
            "assert isinstance(Stack(), Stack)",
        ],
    ),
    "operators": (
        VECTOR,
        [
            "v = Vector(1, 2) + Vector(2, 2)\nassert str(v) == '<3, 4>' and abs(v) == 5.0 and float(v) == 5.0 and v.x == 3"
        ],
    ),
    "a callback": (
        "class Bell:\n    def __init__(self):\n        self.heard = []\n    def tell(self, function):\n        self.heard.append(function)\n"
        "    def ring(self, n):\n        for function in self.heard:\n            function(n)",
        ["seen = []\nbell = Bell()\nbell.tell(seen.append)\nbell.ring(4)\nbell.ring(5)\nassert seen == [4, 5]"],
    ),
    "the same object": ("def same(x):\n    return x\nclass Thing:\n    pass", ["t = Thing()\nassert same(t) is t"]),
    "a context": (
        "class Open:\n    def __enter__(self):\n        self.n = 1\n        return self\n    def __exit__(self, *error):\n        self.n = 0",
        ["o = Open()\nwith o as inner:\n    assert inner.n == 1\nassert o.n == 0"],
    ),
    "a sort by a key": (
        "def by(xs, key):\n    return sorted(xs, key=key)",
        ["assert by(['bb', 'a'], len) == ['a', 'bb']", "assert by([1, 2], key=lambda x: -x) == [2, 1]"],
    ),
}
RIGHT: dict[str, tuple[str, Any]] = {
    f"{shape}: {name}": one
    for shape, programs in (("MBPP", MBPP), ("HumanEval", HUMANEVAL), ("APPS", APPS), ("LeetCode", LEETCODE))
    for name, one in programs.items()
}
