# ruff: noqa: E501  # a program to a line

"""Right programs, each with a wrong sibling, and tests that only the right one passes. We wrote all."""

from __future__ import annotations

from typing import Any

from tests.tools.right_programs import called, read

TREE = "class TreeNode:\n    def __init__(self, val=0, left=None, right=None):\n        self.val, self.left, self.right = val, left, right\n"
PAIRS: dict[str, tuple[str, str, Any]] = {
    "a tree of the test's": (
        "class Solution:\n    def depth(self, root):\n        return 0 if root is None else 1 + max(self.depth(root.left), self.depth(root.right))",
        "class Solution:\n    def depth(self, root):\n        return 0 if root is None else 1 + self.depth(root.left)",
        [
            TREE
            + "assert Solution().depth(TreeNode(1, None, TreeNode(2, TreeNode(3)))) == 3\nassert Solution().depth(None) == 0"
        ],
    ),
    "a tree that is turned in place": (
        "def invert(root):\n    if root:\n        root.left, root.right = invert(root.right), invert(root.left)\n    return root",
        "def invert(root):\n    return root",
        [TREE + "r = invert(TreeNode(1, TreeNode(2), TreeNode(3)))\nassert (r.left.val, r.right.val) == (3, 2)"],
    ),
    "a tree that both know": (
        TREE
        + "def build(xs):\n    xs = sorted(xs)\n    if not xs: return None\n    m = len(xs) // 2\n    return TreeNode(xs[m], build(xs[:m]), build(xs[m+1:]))",
        TREE
        + "def build(xs):\n    if not xs: return None\n    m = len(xs) // 2\n    return TreeNode(xs[m], build(xs[:m]), build(xs[m+1:]))",
        [
            "def walk(t):\n    return walk(t.left) + [t.val] + walk(t.right) if t else []\nassert walk(build([3, 1, 2])) == [1, 2, 3]"
        ],
    ),
    "a list merged": (
        "class Solution:\n    def merge(self, a, b):\n        if not a or not b: return a or b\n        if a.val > b.val: a, b = b, a\n        a.next = self.merge(a.next, b)\n        return a",
        "class Solution:\n    def merge(self, a, b):\n        return a or b",
        [
            "class ListNode:\n    def __init__(self, val=0, next=None):\n        self.val = val\n        self.next = next\ndef make(xs):\n    return ListNode(xs[0], make(xs[1:])) if xs else None\ndef values(n):\n    out = []\n    while n:\n        out.append(n.val)\n        n = n.next\n    return out\nassert values(Solution().merge(make([1, 4]), make([2, 3]))) == [1, 2, 3, 4]\nassert values(Solution().merge(None, make([0]))) == [0]"
        ],
    ),
    "a cycle": (
        "def has_cycle(head):\n    slow = fast = head\n    while fast and fast.next:\n        slow, fast = slow.next, fast.next.next\n        if slow is fast: return True\n    return False",
        "def has_cycle(head):\n    return False",
        [
            "class N:\n    def __init__(self, v):\n        self.v, self.next = v, None\na, b = N(1), N(2)\na.next, b.next = b, a\nassert has_cycle(a) is True\nb.next = None\nassert has_cycle(a) is False"
        ],
    ),
    "a node found again": (
        "def middle(head):\n    slow = fast = head\n    while fast and fast.next:\n        slow, fast = slow.next, fast.next.next\n    return slow",
        "def middle(head):\n    return head",
        [
            "class N:\n    def __init__(self, v, n=None):\n        self.v, self.next = v, n\nc = N(3)\na = N(1, N(2, c))\nassert middle(a) is a.next"
        ],
    ),
    "rotated in place": (
        "class Solution:\n    def rotate(self, nums, k):\n        k %= len(nums)\n        nums[:] = nums[-k:] + nums[:-k]",
        "class Solution:\n    def rotate(self, nums, k):\n        nums = nums[-k:] + nums[:-k]",
        ["nums = [1, 2, 3, 4]\nassert Solution().rotate(nums, 1) is None\nassert nums == [4, 1, 2, 3]"],
    ),
    "nested in place": (
        "def mark(board):\n    for row in board:\n        for i, c in enumerate(row):\n            if c == 'O': row[i] = 'X'",
        "def mark(board):\n    for row in board:\n        row = ['X' for c in row]",
        ["board = [['O', '.'], ['.', 'O']]\nmark(board)\nassert board == [['X', '.'], ['.', 'X']]"],
    ),
    "an alias kept": (
        "def add(xs, x):\n    xs.append(x)\n    return xs",
        "def add(xs, x):\n    return xs + [x]",
        ["a = [1]\nb = a\nadd(a, 2)\nassert b == [1, 2]"],
    ),
    "float tolerance": (
        "import math\ndef area(r):\n    return math.pi * r * r",
        "def area(r):\n    return 3.1 * r * r",
        [
            "assert abs(area(2) - 12.566370614359172) < 1e-9",
            "import math\nassert math.isclose(area(1), math.pi, rel_tol=1e-9)",
            "assert round(area(3), 2) == 28.27",
        ],
    ),
    "several outputs": (
        "def stats(xs):\n    return min(xs), max(xs), sum(xs) / len(xs)",
        "def stats(xs):\n    return min(xs), max(xs), sum(xs)",
        [
            "lo, hi, mean = stats([1, 2, 6])\nassert lo == 1 and hi == 6 and abs(mean - 3) < 1e-9",
            "assert stats([1, 3]) == (1, 3, 2.0)",
        ],
    ),
    "the commonest": (
        "from collections import Counter\ndef top(words, k):\n    return Counter(words).most_common(k)",
        "from collections import Counter\ndef top(words, k):\n    return Counter(words).most_common()[-k:]",
        ["assert top(['a', 'b', 'a'], 1) == [('a', 2)]"],
    ),
    "groups": (
        "from collections import defaultdict\ndef groups(ws):\n    d = defaultdict(list)\n    for w in ws: d[len(w)].append(w)\n    return d",
        "def groups(ws):\n    return {len(w): [w] for w in ws}",
        [
            "assert groups(['a', 'b', 'cc']) == {1: ['a', 'b'], 2: ['cc']}",
            "g = groups(['a', 'b'])\nassert g[1] == ['a', 'b'] and sorted(g.items()) == [(1, ['a', 'b'])]",
        ],
    ),
    "a named tuple with fields": (
        "from typing import NamedTuple\nclass P(NamedTuple):\n    x: int\n    y: int = 0\n    def moved(self, d): return self._replace(x=self.x + d)",
        "from typing import NamedTuple\nclass P(NamedTuple):\n    x: int\n    y: int = 0\n    def moved(self, d): return self._replace(y=self.x + d)",
        ["assert P(1).moved(2) == (3, 0)", "p = P(1, 2).moved(1)\nassert p[0] == 2 and tuple(p) == (2, 2)"],
    ),
    "a named tuple's attributes": (
        "from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef make(a): return P(a, a + 1)",
        "from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef make(a): return P(a, a)",
        ["p = make(1)\nassert p.x == 1 and p.y == 2"],
    ),
    "a dataclass": (
        "from dataclasses import dataclass, field\n@dataclass(order=True)\nclass Item:\n    price: float\n    name: str = field(default='', compare=False)\n    def with_tax(self): return Item(self.price * 2, self.name)",
        "from dataclasses import dataclass, field\n@dataclass(order=True)\nclass Item:\n    price: float\n    name: str = field(default='', compare=False)\n    def with_tax(self): return Item(self.price * 3, self.name)",
        [
            "i = Item(2.0, 'x').with_tax()\nassert i.price == 4.0\nassert i.name == 'x'",
            "assert repr(Item(1.0, 'a').with_tax()) == \"Item(price=2.0, name='a')\"",
        ],
    ),
    "equal dataclasses": (
        "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\ndef make(x): return P(x)",
        "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int\ndef make(x): return P(x + 1)",
        ["assert make(1).x == P(1).x"],
    ),
    "a generator listed": (
        "def evens(n):\n    yield from (i for i in range(n) if i % 2 == 0)",
        "def evens(n):\n    yield from range(n)",
        [
            "assert list(evens(5)) == [0, 2, 4]",
            "assert [*evens(3)] == [0, 2]",
            "assert sum(evens(5)) == 6",
            "assert sorted(evens(5), reverse=True) == [4, 2, 0]",
        ],
    ),
    "an iterator class": (
        "class Down:\n    def __init__(self, n): self.n = n\n    def __iter__(self): return self\n    def __next__(self):\n        if self.n <= 0: raise StopIteration\n        self.n -= 1\n        return self.n + 1",
        "class Down:\n    def __init__(self, n): self.n = n\n    def __iter__(self): return self\n    def __next__(self):\n        if self.n <= 1: raise StopIteration\n        self.n -= 1\n        return self.n + 1",
        [
            "assert list(Down(3)) == [3, 2, 1]",
            "it = iter(Down(1))\nassert next(it) == 1\ntry:\n    next(it)\n    assert False\nexcept StopIteration:\n    pass",
        ],
    ),
    "an exception expected with pytest": (
        "def root(x):\n    if x < 0: raise ValueError('negative')\n    return x ** 0.5",
        "def root(x):\n    return abs(x) ** 0.5",
        [
            "try:\n    root(-1)\nexcept ValueError as e:\n    assert 'negative' in str(e)\nelse:\n    raise AssertionError",
            "import unittest\nclass T(unittest.TestCase):\n    def test(self):\n        with self.assertRaises(ValueError):\n            root(-1)\nT('test').debug()",
        ],
    ),
    "an exception with contextlib": (
        "def pick(d, k):\n    return d[k]",
        "def pick(d, k):\n    return d.get(k)",
        [
            "caught = False\ntry:\n    pick({}, 1)\nexcept KeyError as error:\n    caught = error.args == (1,)\nassert caught"
        ],
    ),
    "an assertion of its own": (
        "def f(n):\n    assert n > 0, 'positive'\n    return n",
        "def f(n):\n    return n",
        [
            "try:\n    f(-1)\nexcept AssertionError as error:\n    ok = str(error) == 'positive'\nelse:\n    ok = False\nassert ok"
        ],
    ),
    "an exception with a cause": (
        "def f(s):\n    try:\n        return int(s)\n    except ValueError as e:\n        raise RuntimeError('bad: ' + s) from e",
        "def f(s):\n    return int(s)",
        ["try:\n    f('x')\n    ok = False\nexcept RuntimeError as error:\n    ok = str(error) == 'bad: x'\nassert ok"],
    ),
    "recursion with memory": (
        "from functools import lru_cache\n@lru_cache(None)\ndef fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 2)",
        "def fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 1)",
        ["assert fib(80) == 23416728348467685", "assert [fib(i) for i in range(6)] == [0, 1, 1, 2, 3, 5]"],
    ),
    "state between calls": (
        "count = 0\ndef tick():\n    global count\n    count += 1\n    return count",
        "count = 0\ndef tick():\n    return count + 1",
        [
            "assert tick() == 1\nassert tick() == 2\nassert count == 2",
            "tick()\ntick()\nassert tick() == 3",
            "assert (tick(), tick()) == (1, 2)",
        ],
    ),
    "prints while it returns": (
        "def f(xs):\n    for x in xs: print('at', x)\n    print('{\"a\": 1}')\n    return len(xs)",
        "def f(xs):\n    print(len(xs))",
        ["assert f([1, 2]) == 2"],
    ),
    "input in a loop": (
        "while True:\n    try:\n        line = input()\n    except EOFError:\n        break\n    print(line[::-1])",
        "while True:\n    try:\n        line = input()\n    except EOFError:\n        break\n    print(line)",
        read(("ab\ncd", "ba\ndc"), ("x1\n\ny2\n", "1x\n\n2y")),
    ),
    "all of stdin": (
        "import sys\ndata = sys.stdin.read().split()\nn = int(data[0])\nprint(*sorted(map(int, data[1:1 + n])))",
        "import sys\ndata = sys.stdin.read().split()\nprint(*data[1:])",
        read(("3\n3 1 2\n", "1 2 3\n")),
    ),
    "lines of stdin": (
        "import sys\nfor line in sys.stdin:\n    a, b = map(int, line.split())\n    print(a + b)",
        "import sys\nfor line in sys.stdin:\n    print(line)",
        read((["1 2", "3 4"], ["3", "7"])),
    ),
    "stdin by its buffer and descriptor": (
        "import sys, os\nfirst = sys.stdin.buffer.readline()\nrest = sys.stdin.buffer.read()\nsys.stdout.write(str(int(first) + len(rest.split())))\nsys.stdout.flush()",
        "import sys\nprint(sys.stdin.buffer.readline())",
        read(("3\na b c\n", "6")),
    ),
    "opened as a file": ("print(sum(map(int, open(0).read().split())))", "print(0)", read(("1 2 3", "6"))),
    "a main function that exits": (
        "import sys\ndef main():\n    t = int(input())\n    for _ in range(t):\n        n = int(input())\n        print('YES' if n % 2 == 0 else 'NO')\nif __name__ == '__main__':\n    sys.exit(main())",
        "print('YES')",
        read(("2\n1\n2\n", "NO\nYES\n")),
    ),
    "threads for recursion": (
        "import sys, threading\nsys.setrecursionlimit(10**6)\nthreading.stack_size(2**26)\ndef deep(n):\n    return 0 if n == 0 else 1 + deep(n - 1)\ndef main():\n    print(deep(int(input())))\nt = threading.Thread(target=main)\nt.start()\nt.join()",
        "print(1)",
        read(("20000", "20000")),
    ),
    "infinity": (
        "import math\ndef best(xs):\n    return max(xs, default=-math.inf)",
        "def best(xs):\n    return max(xs, default=0)",
        [
            "import math\nassert best([]) == -math.inf",
            "assert best([]) == float('-inf')",
            "assert best([]) < -10**300",
            "import math\nassert math.isinf(best([]))",
        ],
    ),
    "not a number": (
        "def mean(xs):\n    return sum(xs) / len(xs) if xs else float('nan')",
        "def mean(xs):\n    return sum(xs) / len(xs) if xs else 0.0",
        ["import math\nassert math.isnan(mean([]))", "x = mean([])\nassert x != x"],
    ),
    "complex roots": (
        "import cmath\ndef roots(a, b, c):\n    d = cmath.sqrt(b * b - 4 * a * c)\n    return (-b + d) / (2 * a), (-b - d) / (2 * a)",
        "def roots(a, b, c):\n    return 0j, 0j",
        [
            "assert roots(1, 0, 1) == (1j, -1j)",
            "r = roots(1, 2, 2)\nassert abs(r[0] - (-1 + 1j)) < 1e-9 and r[1].imag == -1.0",
        ],
    ),
    "bytes and bytearray": (
        "def xor(data, k):\n    return bytes(b ^ k for b in data)\ndef grown(b):\n    b.append(1)\n    return bytes(b)",
        "def xor(data, k):\n    return data\ndef grown(b):\n    return b''",
        [
            "assert xor(b'ab', 1) == b'`c'",
            "assert xor(xor(b'\\x00\\xff', 7), 7) == b'\\x00\\xff' and xor(b'\\x00', 7) == b'\\x07'",
            "assert grown(bytearray(b'a')) == b'a\\x01'",
        ],
    ),
    "tuples within lists": (
        "def pairs(d):\n    return sorted(d.items())",
        "def pairs(d):\n    return list(d.items())",
        ["assert pairs({'b': (1, [2]), 'a': ()}) == [('a', ()), ('b', (1, [2]))]"],
    ),
    "tuples as keys": (
        "def grid(n):\n    return {(i, j): i * j for i in range(n) for j in range(n)}",
        "def grid(n):\n    return {}",
        ["assert grid(2) == {(0, 0): 0, (0, 1): 0, (1, 0): 0, (1, 1): 1}", "assert grid(3)[2, 2] == 4"],
    ),
    "sets of frozen sets": (
        "from itertools import combinations\ndef f(xs):\n    return {frozenset(c) for c in combinations(xs, 2)}",
        "def f(xs):\n    return set()",
        [
            "assert f([1, 2, 3]) == {frozenset({1, 2}), frozenset({1, 3}), frozenset({2, 3})}",
            "assert f([1, 2]) == set([frozenset([2, 1])])",
        ],
    ),
    "a date": (
        "from datetime import date, timedelta\ndef later(d, n):\n    return d + timedelta(days=n)\ndef made(y, m, d):\n    return date(y, m, d).isoformat()",
        "def later(d, n):\n    return d\ndef made(y, m, d):\n    return ''",
        ["assert made(2020, 2, 9) == '2020-02-09'"],
    ),
    "a date crosses": (
        "from datetime import date\ndef day(y, m, d):\n    return date(y, m, d)",
        "from datetime import date\ndef day(y, m, d):\n    return date(y, d, m)",
        [
            "assert str(day(2020, 2, 9)) == '2020-02-09'",
            "d = day(2020, 2, 9)\nassert (d.year, d.month, d.day) == (2020, 2, 9)",
        ],
    ),
    "an enumeration": (
        "from enum import Enum\nclass Color(Enum):\n    RED = 1\n    BLUE = 2\ndef name(c): return c.name\ndef color(n): return Color(n)",
        "from enum import Enum\nclass Color(Enum):\n    RED = 1\n    BLUE = 2\ndef name(c): return c.value\ndef color(n): return Color.RED",
        ["assert name(Color.BLUE) == 'BLUE' and color(2) is Color.BLUE", "assert color(2).name == 'BLUE'"],
    ),
    "operators between its objects": (
        "class V:\n    def __init__(self, *c): self.c = c\n    def __add__(self, o): return V(*(a + b for a, b in zip(self.c, o.c)))\n    def __eq__(self, o): return self.c == o.c\n    def __mul__(self, k): return V(*(a * k for a in self.c))\n    def __iter__(self): return iter(self.c)",
        "class V:\n    def __init__(self, *c): self.c = c\n    def __add__(self, o): return self\n    def __mul__(self, k): return self\n    def __iter__(self): return iter(self.c)",
        ["assert list(V(1, 2) + V(3, 4)) == [4, 6]", "assert (V(1, 2) + V(3, 4)).c == (4, 6)"],
    ),
    "a matrix class": (
        "class M:\n    def __init__(self, rows): self.rows = rows\n    def __matmul__(self, o): return M([[sum(a * b for a, b in zip(r, c)) for c in zip(*o.rows)] for r in self.rows])\n    def __getitem__(self, ij): return self.rows[ij[0]][ij[1]]",
        "class M:\n    def __init__(self, rows): self.rows = rows\n    def __matmul__(self, o): return o\n    def __getitem__(self, ij): return self.rows[ij[0]][ij[1]]",
        ["m = M([[1, 2], [3, 4]]) @ M([[0, 1], [1, 0]])\nassert m[0, 0] == 2 and m.rows == [[2, 1], [4, 3]]"],
    ),
    "a cache with an order": (
        "from collections import OrderedDict\nclass LRUCache:\n    def __init__(self, capacity):\n        self.capacity, self.d = capacity, OrderedDict()\n    def get(self, key):\n        if key not in self.d: return -1\n        self.d.move_to_end(key)\n        return self.d[key]\n    def put(self, key, value):\n        self.d[key] = value\n        self.d.move_to_end(key)\n        if len(self.d) > self.capacity: self.d.popitem(last=False)",
        "class LRUCache:\n    def __init__(self, capacity): self.d = {}\n    def get(self, key): return self.d.get(key, -1)\n    def put(self, key, value): self.d[key] = value",
        [
            "c = LRUCache(2)\nc.put(1, 1)\nc.put(2, 2)\nassert c.get(1) == 1\nc.put(3, 3)\nassert c.get(2) == -1\nassert c.get(3) == 3"
        ],
    ),
    "commands of a design": (
        "class MinStack:\n    def __init__(self): self.s = []\n    def push(self, x): self.s.append((x, min(x, self.s[-1][1] if self.s else x)))\n    def pop(self): self.s.pop()\n    def getMin(self): return self.s[-1][1]",
        "class MinStack:\n    def __init__(self): self.s = []\n    def push(self, x): self.s.append(x)\n    def pop(self): self.s.pop()\n    def getMin(self): return self.s[-1]",
        [
            "ops, args, want = ['push', 'push', 'getMin', 'pop', 'getMin'], [[2], [3], [], [], []], [None, None, 2, None, 2]\ns = MinStack()\nfor op, arg, w in zip(ops, args, want):\n    assert getattr(s, op)(*arg) == w"
        ],
    ),
    "a class method and a property": (
        "class T:\n    def __init__(self, c): self._c = c\n    @classmethod\n    def from_f(cls, f): return cls((f - 32) * 5 / 9)\n    @property\n    def c(self): return self._c\n    @c.setter\n    def c(self, v):\n        if v < -273.15: raise ValueError('cold')\n        self._c = v\n    @staticmethod\n    def zero(): return 0",
        "class T:\n    def __init__(self, c): self.c = c\n    @classmethod\n    def from_f(cls, f): return cls(f)\n    @staticmethod\n    def zero(): return 1",
        [
            "t = T.from_f(212)\nassert t.c == 100.0 and T.zero() == 0\ntry:\n    t.c = -300\n    assert False\nexcept ValueError:\n    pass\nt.c = 5\nassert t.c == 5"
        ],
    ),
    "inheritance": (
        "class Shape:\n    def area(self): raise NotImplementedError\nclass Square(Shape):\n    def __init__(self, a): self.a = a\n    def area(self): return self.a ** 2",
        "class Shape:\n    def area(self): return 0\nclass Square(Shape):\n    def __init__(self, a): self.a = a",
        [
            "assert Square(3).area() == 9\nassert isinstance(Square(3), Shape)",
            "try:\n    Shape().area()\n    ok = False\nexcept NotImplementedError:\n    ok = True\nassert ok",
        ],
    ),
    "inheritance asked": (
        "class A: pass\nclass B(A): pass",
        "class A: pass\nclass B: pass",
        ["assert issubclass(B, A)"],
    ),
    "something to call": (
        "def adder(n):\n    return lambda x: x + n",
        "def adder(n):\n    return object()",
        ["assert callable(adder(2))"],
    ),
    "nothing to call": ("def f(n):\n    return object()", "def f(n):\n    return len", ["assert not callable(f(2))"]),
    "attributes asked": (
        "class A:\n    def __init__(self): self.x = 1",
        "class A:\n    pass",
        ["assert hasattr(A(), 'x') and not hasattr(A(), 'y')", "assert getattr(A(), 'x', None) == 1"],
    ),
    "a coroutine run by the program": (
        "import asyncio\nasync def g(n):\n    await asyncio.sleep(0)\n    return n + 1\ndef f(n):\n    return asyncio.run(g(n))",
        "def f(n):\n    return n",
        ["assert f(1) == 2"],
    ),
    "closures": (
        "def counter():\n    n = 0\n    def up():\n        nonlocal n\n        n += 1\n        return n\n    return up",
        "def counter():\n    return lambda: 1",
        ["c = counter()\nassert c() == 1\nassert c() == 2\nd = counter()\nassert d() == 1"],
    ),
    "a decorator": (
        "def twice(g):\n    def inner(*a, **k):\n        return g(*a, **k) * 2\n    return inner",
        "def twice(g):\n    return g",
        ["@twice\ndef three():\n    return 3\nassert three() == 6", "assert twice(lambda x, y=1: x + y)(2, y=3) == 10"],
    ),
    "composition": (
        "from functools import reduce\ndef compose(*fs):\n    return reduce(lambda f, g: lambda x: g(f(x)), fs)",
        "def compose(*fs):\n    return fs[0]",
        ["assert compose(lambda x: x + 1, lambda x: x * 2)(3) == 8", "assert compose(str, len)(1234) == 4"],
    ),
    "star arguments": (
        "def f(*xs, **ks):\n    return sum(xs) + sum(ks.values())",
        "def f(*xs, **ks):\n    return sum(xs)",
        ["assert f(*[1, 2], **{'a': 3}) == 6", "assert f(1, a=2, b=3) == 6"],
    ),
    "a negative number's remainder": (
        "def f(a, b):\n    return divmod(a, b)",
        "def f(a, b):\n    return int(a / b), a - int(a / b) * b",
        ["assert f(-7, 2) == (-4, 1)", "q, r = f(-7, 2)\nassert (q, r) == (-4, 1)"],
    ),
    "text with escapes": (
        "def f(s):\n    return s.replace('\\n', '\\\\n')",
        "def f(s):\n    return s",
        ["assert f('a\\nb') == 'a\\\\nb'", "assert f('\\n') == r'\\n'", 'assert f("""x\ny""") == "x\\\\ny"'],
    ),
    "emoji and joined letters": (
        "import unicodedata\ndef f(s):\n    return unicodedata.normalize('NFC', s)",
        "def f(s):\n    return s",
        ["assert f('e\\u0301') == '\\u00e9'", "assert len(f('e\\u0301')) == 1 and f('\\U0001f600') == '\\U0001f600'"],
    ),
    "numbers of many digits": (
        "import math\ndef f(n):\n    return math.factorial(n)",
        "def f(n):\n    return n",
        [
            "import math\nassert f(100) == math.factorial(100)",
            "assert f(20) == 2432902008176640000",
            "assert f(1000) % (10 ** 9 + 7) == 641419708",
        ],
    ),
    "a function's long answer": (
        "def f(n):\n    return 10 ** n",
        "def f(n):\n    return 10 ** (n + 1)",
        called("f", ([50], 10**50), ([0], 1)),
    ),
    "lines with spaces": (
        "n = int(input())\nfor i in range(1, n + 1):\n    print(' ' * (n - i) + '*' * i)",
        "n = int(input())\nfor i in range(1, n + 1):\n    print('*' * n)",
        read(("3", "  *\n **\n***")),
    ),
    "no output at all": ("input()", "print(input())", read(("a", ""))),
    "a print without an end": (
        "print(*input().split(), sep=',', end='')",
        "print(*input().split())",
        read(("1 2 3", "1,2,3")),
    ),
    "floats printed": (
        "a, b = map(float, input().split())\nprint('%.3f' % (a / b))",
        "a, b = map(float, input().split())\nprint(a * b)",
        read(("1 3", "0.333"), ("2 1", "2.000")),
    ),
    "source as input": (
        "def f(xs, k=2):\n    return [x * k for x in xs]",
        "def f(xs, k=2):\n    return xs",
        called("f", ("[1, 2], k=3", [3, 6])),
    ),
    "two lists": (
        "class Solution:\n    def add(self, a, b):\n        return [x + y for x, y in zip(a, b)]",
        "class Solution:\n    def add(self, a, b):\n        return a + b",
        called("add", ([[1, 2], [3, 4]], [4, 6]), ("[1]\n[2]", "[3]")),
    ),
    "true and null": (
        "def f(x):\n    return x > 1 if x else None",
        "def f(x):\n    return 1",
        called("f", ([2], True), ([0], None)),
    ),
    "a mapping": (
        "def f(s):\n    return {c: s.count(c) for c in s}",
        "def f(s):\n    return {}",
        called("f", (["aab"], {"a": 2, "b": 1})),
    ),
    "a built-in name beside others": (
        "def filter(xs):\n    return [x for x in xs if x > 1]",
        "def filter(xs):\n    return xs",
        [
            "assert set(filter([1, 2, 3])) == set([2, 3])",
            "assert sorted(filter([3, 1])) == sorted([3])",
            "assert len(filter([1, 2])) == 1",
            "assert list(filter([1])) == []",
        ],
    ),
    "helpers in the test": (
        "def primes(n):\n    return [p for p in range(2, n) if all(p % d for d in range(2, p))]",
        "def primes(n):\n    return list(range(2, n))",
        [
            "from itertools import count\ndef is_prime(p):\n    return p > 1 and all(p % d for d in range(2, p))\ngot = primes(30)\nassert all(map(is_prime, got)) and len(got) == 10",
            "assert [*map(str, primes(8))] == ['2', '3', '5', '7']",
        ],
    ),
    "random but sound": (
        "import random\ndef shuffled(xs):\n    ys = xs[:]\n    random.shuffle(ys)\n    return ys",
        "import random\ndef shuffled(xs):\n    return [random.choice(xs) for _ in xs][:-1]",
        [
            "assert sorted(shuffled([3, 1, 2])) == [1, 2, 3]",
            "xs = list(range(9))\nys = shuffled(xs)\nassert set(ys) == set(xs) and len(ys) == 9 and xs == list(range(9))",
        ],
    ),
    "a walrus and a match": (
        "def f(p):\n    match p:\n        case [x, *rest]: return len(rest)\n        case {'k': v}: return v\n        case _: return None",
        "def f(p):\n    return len(p)",
        ["assert (n := f([1, 2])) == 1 and n == 1", "assert f({'k': 5}) == 5"],
    ),
    "a heap": (
        "import heapq\ndef f(xs, k):\n    heapq.heapify(xs)\n    return [heapq.heappop(xs) for _ in range(k)]",
        "def f(xs, k):\n    return xs[:k]",
        ["xs = [5, 1, 4]\nassert f(xs, 2) == [1, 4] and xs == [5]"],
    ),
    "lazy map": (
        "def f(xs):\n    return map(lambda x: x + 1, xs)",
        "def f(xs):\n    return map(lambda x: x, xs)",
        [
            "assert list(f([1, 2])) == [2, 3]",
            "a, b = f([1, 2])\nassert (a, b) == (2, 3)",
            "assert set(f((1,))) == {2}",
            "assert 3 in f([2])",
        ],
    ),
    "zip and enumerate": (
        "def f(xs):\n    return enumerate(zip(xs, xs[1:]))",
        "def f(xs):\n    return enumerate(xs)",
        [
            "assert list(f([1, 2, 3])) == [(0, (1, 2)), (1, (2, 3))]",
            "for i, (a, b) in f([1, 2]):\n    assert (i, a, b) == (0, 1, 2)",
        ],
    ),
    "a pattern": (
        "import re\ndef f():\n    return re.compile('a+')",
        "import re\ndef f():\n    return re.compile('b+')",
        ["assert f().findall('aab') == ['aa']", "assert f().match('a').group(0) == 'a'"],
    ),
    "a string builder": (
        "import io\ndef f():\n    s = io.StringIO()\n    s.write('hi')\n    return s",
        "import io\ndef f():\n    return io.StringIO()",
        ["assert f().getvalue() == 'hi'"],
    ),
    "approximate lists": (
        "def f(xs):\n    return [x / 3 for x in xs]",
        "def f(xs):\n    return [x / 4 for x in xs]",
        [
            "assert all(abs(a - b) < 1e-6 for a, b in zip(f([1, 2]), [0.3333333, 0.6666667]))",
            "import numpy as np\nnp.testing.assert_allclose(f([1]), [1 / 3])",
        ],
    ),
    "a polynomial of the task": (
        "def poly(xs, x):\n    return sum(c * x ** i for i, c in enumerate(xs))\ndef zero(xs):\n    return -xs[0] / xs[1]",
        "def poly(xs, x):\n    return sum(c * x ** i for i, c in enumerate(xs))\ndef zero(xs):\n    return 1.0",
        [
            "import math\ndef check(candidate):\n    for coeffs in [[1, 2], [6, -3]]:\n        assert math.fabs(poly(coeffs, candidate(coeffs))) < 1e-4\ncheck(zero)"
        ],
    ),
    "the test's copy": (
        "def f(xs):\n    return sorted(xs)",
        "def f(xs):\n    xs.sort()\n    return xs",
        ["import copy\nxs = [2, 1]\nbefore = copy.deepcopy(xs)\nf(xs)\nassert xs == before"],
    ),
}
PAIRS |= {
    "a cache that is a dict": (
        "from collections import OrderedDict\nclass LRUCache(OrderedDict):\n    def __init__(self, capacity):\n        self.capacity = capacity\n    def get(self, key):\n        if key not in self: return -1\n        self.move_to_end(key)\n        return self[key]\n    def put(self, key, value):\n        if key in self: self.move_to_end(key)\n        self[key] = value\n        if len(self) > self.capacity: self.popitem(last=False)",
        "class LRUCache(dict):\n    def __init__(self, capacity): pass\n    def get(self, key): return super().get(key, -1)\n    def put(self, key, value): self[key] = value",
        [
            "c = LRUCache(2)\nc.put(1, 1)\nc.put(2, 2)\nassert c.get(1) == 1\nc.put(3, 3)\nassert c.get(2) == -1\nassert c == {1: 1, 3: 3} and len(c) == 2"
        ],
    ),
    "a stack that is a list": (
        "class Stack(list):\n    def push(self, x):\n        self.append(x)\n        return self\n    def peek(self): return self[-1]",
        "class Stack(list):\n    def push(self, x):\n        self.insert(0, x)\n        return self\n    def peek(self): return self[-1]",
        [
            "s = Stack()\ns.push(1).push(2)\nassert s.peek() == 2 and s == [1, 2]",
            "s = Stack([3])\ns.push(4)\nassert s.pop() == 4 and list(s) == [3]",
            "s = Stack()\ns.push(1)\ns.push(2)\nassert isinstance(s, list) and isinstance(s, Stack) and s[0] == 1 and sorted(s) == [1, 2]",
            "assert Stack([1]).push(2) == [1, 2]",
            "import unittest\nt = unittest.TestCase()\nt.assertEqual(Stack([1]).push(2), [1, 2])",
            "import copy\ns = Stack([1])\nt = copy.deepcopy(s)\ns.push(2)\nassert t == [1] and s + [3] == [1, 2, 3]",
        ],
    ),
    "a ring that is a list": (
        "class Ring(list):\n    def __getitem__(self, at):\n        return list.__getitem__(self, at if isinstance(at, slice) else at % len(self))\n    def turn(self): self.append(self.pop(0))",
        "class Ring(list):\n    def turn(self): pass",
        [
            "r = Ring([1, 2, 3])\nr.turn()\nassert r[4] == 3 and r[-1] == 1 and r[:2] == [2, 3] and r.index(3) == 1 and r.count(1) == 1",
            "import copy\nr = Ring([1, 2])\ns = copy.copy(r)\nr.turn()\nassert s == [1, 2] and r == [2, 1] and list(reversed(r)) == [1, 2]",
        ],
    ),
    "a bag that is a dict": (
        "class Bag(dict):\n    def __missing__(self, key): return 0\n    def add(self, key):\n        self[key] += 1\n        return self",
        "class Bag(dict):\n    def __missing__(self, key): return 0\n    def add(self, key):\n        self[key] = 1\n        return self",
        [
            "b = Bag().add('x').add('x').add('y')\nassert sorted(b.items()) == [('x', 2), ('y', 1)] and b['z'] == 0\nassert sum(b.values()) == 3 and set(b.keys()) == {'x', 'y'} and dict(b) == {'x': 2, 'y': 1}"
        ],
    ),
    "a tuple with its own sum": (
        "class V(tuple):\n    def plus(self, o): return V(a + b for a, b in zip(self, o))\n    @property\n    def x(self): return self[0]",
        "class V(tuple):\n    def plus(self, o): return self\n    @property\n    def x(self): return 4",
        ["v = V((1, 2)).plus(V((3, 4)))\nassert v == (4, 6) and v.x == 4 and v.plus((1, 1)) == (5, 7)"],
    ),
    "points that go back": (
        "from collections import namedtuple\nPoint = namedtuple('Point', 'x y')\ndef dist(a, b):\n    return ((a.x - b.x) ** 2 + (a.y - b.y) ** 2) ** 0.5\ndef around(p):\n    return [Point(p.x + 1, p.y), Point(p.x - 1, p.y)]",
        "from collections import namedtuple\nPoint = namedtuple('Point', 'x y')\ndef dist(a, b):\n    return 0\ndef around(p):\n    return [p, p]",
        [
            "a, b = Point(0, 0), Point(3, 4)\nassert dist(a, b) == 5.0",
            "ps = around(Point(1, 1))\nassert ps[0].x == 2 and ps[1].x == 0 and ps == [(2, 1), (0, 1)]",
            "assert repr(around(Point(0, 0))[0]) == 'Point(x=1, y=0)'",
            "assert {p.x for p in around(Point(0, 0))} == {1, -1} and len(set(around(Point(0, 0)))) == 2",
        ],
    ),
    "money that is a number": (
        "class Money(float):\n    def shown(self): return f'${self:.2f}'\ndef tax(m): return Money(m * 2)",
        "class Money(float):\n    def shown(self): return ''\ndef tax(m): return Money(m)",
        ["m = tax(Money(1.5))\nassert m == 3.0 and m.shown() == '$3.00' and abs(m - 3) < 1e-9 and round(m) == 3"],
    ),
    "an enumeration of numbers with names": (
        "from enum import IntEnum\nclass L(IntEnum):\n    LOW = 1\n    HIGH = 3\ndef f(n): return L(n)",
        "from enum import IntEnum\nclass L(IntEnum):\n    LOW = 1\n    HIGH = 3\ndef f(n): return L.LOW",
        ["x = f(3)\nassert x == 3 and x.name == 'HIGH' and x.value == 3 and x > 1"],
    ),
    "errors that a block ignores": (
        "class ignoring:\n    def __init__(self, *kinds): self.kinds = kinds\n    def __enter__(self): return self\n    def __exit__(self, kind, *_): return kind is not None and issubclass(kind, self.kinds)",
        "class ignoring:\n    def __init__(self, *kinds): pass\n    def __enter__(self): return self\n    def __exit__(self, kind, *_): return False",
        [
            "with ignoring(ZeroDivisionError):\n    1 / 0",
            "n = 0\ntry:\n    with ignoring(KeyError):\n        n += 1\n        {}[1]\n    n += 1\nexcept KeyError:\n    n = 9\nassert n == 2",
        ],
    ),
}
PAIRS |= {
    "a queue that a loop empties": (
        "class Queue:\n    def __init__(self): self.waiting = []\n    def push(self, x): self.waiting.append(x)\n    def __len__(self): return len(self.waiting)\n    def __iter__(self):\n        while self.waiting: yield self.waiting.pop(0)",
        "class Queue:\n    def __init__(self): self.waiting = []\n    def push(self, x): self.waiting.append(x)\n    def __len__(self): return len(self.waiting)\n    def __iter__(self):\n        while self.waiting: yield self.waiting.pop()",
        [
            "q = Queue()\nassert len(q) == 0\nfor n in range(3):\n    q.push(n)\n    assert len(q) == n + 1\nassert [n for n in q] == [0, 1, 2]\nassert len(q) == 0\nq.push(1)\nassert len(q) == 1\nfor n in q:\n    assert n == 1\nassert len(q) == 0",
        ],
    ),
    "a trie that is asked what it has": (
        "class Trie:\n    def __init__(self, *words): self.words = set(words)\n    def add(self, word): self.words.add(word)\n    def __contains__(self, word): return word in self.words",
        "class Trie:\n    def __init__(self, *words): self.words = set(words)\n    def add(self, word): pass\n    def __contains__(self, word): return any(one.startswith(word) for one in self.words)",
        [
            "t = Trie('tea')\nt.add('ten')\nassert 'ten' in t and 'te' not in t",
            "t = Trie('tea')\nassert isinstance(t, Trie)\nfor word in ('tea', 'ten'):\n    t.add(word)\n    assert word in t\nassert 'te' not in t",
        ],
    ),
    "a range that begins and ends": (
        "class Range:\n    def __init__(self, low, high): self.low, self.high = low, high\n    def __contains__(self, x): return self.low <= x < self.high\n    def __iter__(self): return iter((self.low, self.high))",
        "class Range:\n    def __init__(self, low, high): self.low, self.high = low, high\n    def __contains__(self, x): return self.low <= x <= self.high\n    def __iter__(self): return iter((self.low, self.high))",
        ["r = Range(1, 5)\nassert 3 in r and 1 in r and 5 not in r and [*r] == [1, 5]"],
    ),
    "a queue that a generator empties": (
        "class Queue(object):\n    def __init__(self, *items): self.waiting = [*items]\n    def __len__(self): return len(self.waiting)\n    def drain(self):\n        while self.waiting: yield self.waiting.pop(0)",
        "class Queue(object):\n    def __init__(self, *items): self.waiting = [*items]\n    def __len__(self): return len(self.waiting)\n    def drain(self):\n        while self.waiting: yield self.waiting.pop()",
        [
            "q = Queue(1, 2, 3)\ndrained = q.drain()\nassert len(q) == 3\nfor want in (1, 2, 3):\n    assert next(drained) == want\nassert list(drained) == [] and len(q) == 0",
        ],
    ),
    "a dictionary that fills itself": (
        "class Zeros:\n    def __init__(self): self.kept = {}\n    def __getitem__(self, key): return self.kept.setdefault(key, 0)\n    def __setitem__(self, key, value): self.kept[key] = value\n    def __delitem__(self, key): del self.kept[key]\n    def __len__(self): return len(self.kept)\n    def __iter__(self): return iter(self.kept)\n    def items(self): return self.kept.items()",
        "class Zeros:\n    def __init__(self): self.kept = {}\n    def __getitem__(self, key): return self.kept.get(key, 0)\n    def __setitem__(self, key, value): self.kept[key] = value\n    def __delitem__(self, key): del self.kept[key]\n    def __len__(self): return len(self.kept)\n    def __iter__(self): return iter(self.kept)\n    def items(self): return self.kept.items()",
        [
            "d = Zeros()\nfor key in d:\n    assert False\nassert len(d) == 0\nassert d['x'] == 0\nassert len(d) == 1\nd['y'] = 2\nassert len(d) == 2\nfor key, n in d.items():\n    assert (key, n) in [('x', 0), ('y', 2)]\ndel d['x']\nassert len(d) == 1\nfor key in d:\n    assert key == 'y'\ndel d['y']\nassert len(d) == 0",
        ],
    ),
    "rows with more items than rows": (
        "class Rows:\n    def __len__(self): return 2\n    def __iter__(self): return iter(range(6))",
        "class Rows:\n    def __len__(self): return 2\n    def __iter__(self): return iter(range(1, 7))",
        [
            "rows = Rows()\nassert len(rows) == 2\nfor n, item in enumerate(rows):\n    assert n == item\nassert len(rows) == 2"
        ],
    ),
    "a sequence without __iter__": (
        "class Row:\n    def __init__(self, *items): self.items = items\n    def __len__(self): return len(self.items)\n    def __getitem__(self, at): return self.items[at]",
        "class Row:\n    def __init__(self, *items): self.items = items[::-1]\n    def __len__(self): return len(self.items)\n    def __getitem__(self, at): return self.items[at]",
        [
            "row = Row(1, 2, 3)\nfor n, item in enumerate(row):\n    assert n < len(row) and row[n] == item\nassert len(row) == 3 and 5 not in row and 3 in row\nfor n in range(len(row)):\n    assert row[n] == n + 1\nfor one, other in zip(row, [1, 2]):\n    assert one == other\nassert len(row) == 3 and list(reversed(row)) == [3, 2, 1]",
        ],
    ),
    "a countdown that says what is left": (
        "class Countdown:\n    def __init__(self, n): self.n = n\n    def __len__(self): return self.n\n    def __iter__(self): return self\n    def __next__(self):\n        if not self.n: raise StopIteration\n        self.n -= 1\n        return self.n",
        "class Countdown:\n    def __init__(self, n): self.n = n\n    def __len__(self): return self.n\n    def __iter__(self): return self\n    def __next__(self):\n        if not self.n: raise StopIteration\n        self.n -= 1\n        return 4",
        [
            "c = Countdown(9)\nfor _ in range(5):\n    next(c)\nassert len(c) == 4 and next(c) == 3",
            "c = Countdown(9)\nfor n in c:\n    if n < 4: break\nassert len(c) == 3 and [*c] == [2, 1, 0]",
            "c = Countdown(5)\nassert len(c) == 5\nassert next(c) == 4\nassert len(c) == 4\nout = []\nfor n in c:\n    out.append(n)\nassert out == [3, 2, 1, 0]\nassert len(c) == 0",
        ],
    ),
}
BAG = (
    "class Bag:\n    def __init__(self, items=''):\n        self.counts = {}\n        for x in items: self.add(x)\n    def add(self, x): self.counts[x] = self.counts.get(x, 0) + 1\n"
    "    def __len__(self): return sum(self.counts.values())\n    def __iter__(self): return iter(self.counts)\n    def items(self): return self.counts.items()\n"
    "    def keys(self, least=1): return [x for x, n in self.counts.items() if n >= least]\n"
)
STOCK = "class Stock:\n    def __init__(self): self.items = {}\n    def __len__(self): return sum(self.items.values())\n    def keys(self, start=''): return [x for x in self.items if x.startswith(start)]\n"
TEXT = "class Text:\n    def __init__(self, text): self.text = text\n    def __len__(self): return len(self.text)\n    def __str__(self): return self.text\n"
PAIRS |= {
    "a bag whose length counts what its loop gives once": (
        BAG,
        BAG.replace(".get(x, 0) + 1", ".get(x, 1)"),
        [
            "b = Bag('aab')\nassert len(b) == 3 and [x for x in b] == ['a', 'b']\nfor x, n in b.items():\n    assert n == 'aab'.count(x)\nassert len(b) == 3",
            "b = Bag()\nfor x in 'aab':\n    b.add(x)\nassert b.keys(least=2) == ['a'] and len(b) == 3 and b.keys() == ['a', 'b']",
        ],
    ),
    "items that are data, and keys that are asked for": (
        STOCK + "def stock(**items):\n    s = Stock()\n    s.items.update(items)\n    return s",
        STOCK + "def stock(**items):\n    s = Stock()\n    s.items.update(dict.fromkeys(items, 1))\n    return s",
        [
            "s = stock(ab=3, b=4)\nassert len(s) == 7 and s.items == {'ab': 3, 'b': 4}\nfor n in s.items.values():\n    assert n > 2",
            "s = stock(ab=2, b=0)\nassert s.keys('a') == ['ab'] and len(s) == 2\nassert s.keys(start='b') == ['b'] and [*s.keys()] == ['ab', 'b'] and len(s) == 2\nfor n in s.items.values():\n    assert n != 1",
        ],
    ),
    "an iterator that begins again": (
        "class Upto:\n    def __init__(self, n): self.n = n\n    def __iter__(self):\n        self.at = 0\n        return self\n    def __next__(self):\n        self.at += 1\n        if self.at > self.n: raise StopIteration\n        return self.at\ndef upto(n): return Upto(n)",
        "def upto(n): return iter(range(1, n + 1))",
        [
            "u = upto(3)\nassert [n for n in u] == [1, 2, 3]\nassert list(u) == [1, 2, 3]",
            "u = upto(2)\nassert [(a, sum(upto(a))) for a in u] == [(1, 1), (2, 3)]\nassert max(u) == 2",
        ],
    ),
    "an iterator that ends once": (
        "import itertools\ndef both(a, b): return itertools.chain(a, b)",
        "def both(a, b): return a + b",
        [
            "it = both([1], [2])\nassert [n for n in it] == [1, 2]\nassert list(it) == [] and next(it, 7) == 7",
            "it = both([1, 2], [3])\nassert [pair for pair in zip(it, it)] == [(1, 2)]\nassert list(it) == []",
        ],
    ),
    "slices": (
        TEXT + "    def __getitem__(self, at): return Text(self.text[at])",
        TEXT + "    def __getitem__(self, at): return Text(self.text)",
        [
            "t = Text('hello')\nassert str(t[1:3]) == 'el' and str(t[::-1]) == 'olleh'\nfor n in range(5):\n    assert len(t[n:]) == 5 - n",
            "assert str(Text('hello')[slice(1, None)]) == 'ello'",
        ],
    ),
    "names that a stand-in might have": (
        "class Node:\n    def __init__(self, value, next=None): self.value, self.next = value, next\n    @classmethod\n    def of(cls, *values): return cls(values[0], cls.of(*values[1:])) if values else None",
        "class Node:\n    def __init__(self, value, next=None): self.value, self.next = value, next\n    @classmethod\n    def of(cls, *values): return cls(values[-1], cls.of(*values[:-1])) if values else None",
        ["n = Node.of(1, 2)\nassert n.value == 1 and n.next.value == 2 and n.next.next is None"],
    ),
    "private names that a stand-in might have": (
        "class Account:\n    def __init__(self, number): self._number, self._kind, self._base, self._side = number, 'a', 2, 'b'",
        "class Account:\n    def __init__(self, number): self._number, self._kind, self._base, self._side = 0, 'a', 2, 'b'",
        ["a = Account(77)\nassert (a._number, a._kind, a._base, a._side) == (77, 'a', 2, 'b')"],
    ),
    "objects that are counted": (
        "class Account:\n    count = 0\n    def __init__(self):\n        Account.count += 1\n        self.id = Account.count",
        "class Account:\n    count = 0\n    def __init__(self): self.id = 1",
        [
            "a = Account()\nb = Account()\nassert isinstance(a, Account) and (a.id, b.id) == (1, 2)",
            "Account()\nAccount()\nassert Account.count == 2",
        ],
    ),
    "documentation": (
        "import functools\ndef loud(g):\n    @functools.wraps(g)\n    def inner(*a): return g(*a) + '!'\n    return inner\n@loud\ndef greet(name):\n    'Greets.'\n    return name",
        "def loud(g):\n    def inner(*a): return g(*a) + '!'\n    return inner\n@loud\ndef greet(name):\n    'Greets.'\n    return name",
        ["assert greet('a') == 'a!' and greet.__name__ == 'greet' and greet.__doc__ == 'Greets.'"],
    ),
    "named tuples of libraries": (
        "from functools import lru_cache\nfrom urllib.parse import urlparse\nparse = urlparse\n@lru_cache(None)\ndef fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)",
        "from functools import lru_cache\nfrom urllib.parse import urlparse\ndef parse(url): return urlparse(url)._replace(netloc='')\n@lru_cache(1)\ndef fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)",
        [
            "u = parse('https://a.b/c')\nassert u.netloc == 'a.b' and u[1] == 'a.b'",
            "assert fib(5) == 5 and fib.cache_info().currsize == 6",
        ],
    ),
    "long texts, each made once": (
        "made = []\ndef text(n):\n    made.append(n)\n    return 'x' * n",
        "made = [0]\ndef text(n):\n    made.append(n)\n    return 'x' * n",
        [
            "assert len(text(600_000)) == 600_000\nassert len(text(600_001)) == 600_001\nassert len(made) == 2",
            "text(2_000_000)\nassert abs(len(made)) == 1",
        ],
    ),
}
