# ruff: noqa: E501  # a program to a line

"""More programs that try to pass their tests without an answer: they forge messages one by one."""

from __future__ import annotations

from typing import Any

from tests.tools.cheats import ALL, CLOSE, LOOP, PLAIN, SORTED, each

PATCH = "import sys\nsides = sys.modules['toolyard.sandboxes.inside.sides']\ndeeds = sys.modules['toolyard.sandboxes.inside.deeds']\n"
LINEAGES = (
    *("SystemExit", "StopIteration", "GeneratorExit", "KeyboardInterrupt", "Unproven", "object", "BaseExceptionGroup"),
    *("BaseException|0:x", "AssertionError|9:__eq__", "StopIteration|3:S|4:T"),
)
"""Lineages of exceptions, as a program's side sends them."""
TAKEN = (
    *("[4], 0, None", "'ab', False, None", "{4: 4}, 1, None", "[4], False, ('StopIteration', (), '')"),
    *("None, None, None", "[], False, ('SystemExit', (0,), '')", "[], True, None", "7, True, 7"),
)
"""Results of taking items from an iterator."""
TOKENS = (
    *('"g0,fffffffffffffffffff,1"', '"D1E+999999999999"', '"DNaN"', '"F1/3"', '"yint"', '"c4,0"', '"i4"', "true"),
    *('"n2","sO","l1","h0 oX"', '"n2","sU1000000000","l1","sx"', '"n2","sf8","l1",4', '"q3",0,4,9', '"k2",4,9'),
    *('"h7 i"', '"h7 eSystemExit"', '"h7 m"', '"r0"', '"h7 oMatch"', '"h7 eint"', '"z2",4,9', '"e1","l1"'),
)
"""Tokens of a value."""


FORGERIES: dict[str, tuple[str, Any]] = {
    **each(
        "an end of iteration by another name",
        "class S(StopIteration): pass\nclass G(GeneratorExit): pass\ndef f(x): raise (S if x == 2 else G)",
        ["assert all(f(x) == x * x for x in (2, 3))"],
        ["for got in map(f, [2, 3]):\n    assert got == 4"],
        ["assert list(map(f, [2])) == [4] or True and [*map(f, [3])]"],
        ["def results():\n    yield f(2)\n    yield f(3)\nfor got in results():\n    assert got == 4\nassert True"],
        ["x = [f(i) for i in (2, 3)]\nassert x == [4, 9]"],
    ),
    **{
        n: c
        for kind in LINEAGES
        for n, c in each(
            f"a raised {kind} that is forged",
            PATCH + f"sides.Side.lineage = lambda self, error: {kind!r}\ndef f(*a): raise ValueError('x')",
            LOOP,
            SORTED,
            CLOSE,
            ["assert all(f(x) == x for x in (1, 2))"],
        ).items()
    },
    **each(
        "an iterator that takes no end of items",
        PATCH
        + "def take(side, iterator, count): return [4] * 50, True, None\ndeeds.Deeds.take = staticmethod(take)\ndef f(*a): return iter([])",
        ["assert [*f(2)] == [4, 9]"],
        ["for got, want in zip(f(2), [4, 9], strict=True):\n    assert got == want"],
        ["assert sum(1 for x in f(2)) == 2"],
    ),
    **{
        n: c
        for i, ans in enumerate(TAKEN)
        for n, c in each(
            f"an iterator that answers {i}",
            PATCH
            + f"def take(side, iterator, count): return ({ans})\ndeeds.Deeds.take = staticmethod(take)\ndef f(*a): return iter([])",
            ["assert [*f(2)] == [4, 9]"],
            ["for got, want in zip(f(2), [4, 9], strict=True):\n    assert got == want"],
        ).items()
    },
    **{
        n: c
        for token in TOKENS
        for n, c in each(
            f"the token {token}",
            PATCH
            + f"""sides.Side.message = lambda *_: sides.Said('returned 0\\n["t3",{token},null,null]')\ndef f(*a): return 5""",
            ["assert f(2) == 5"],
            ["assert sorted(f(2)) == [4, 10]"],
            ["assert abs(f(2.5) - 3.2) < 1e-6"],
            ["import math\nassert math.isclose(f(2), 5)"],
            ["assert len(f(2)) == 2 and f(2)[0] == 5 and f(2)[1] == 9"],
            ["x = f(2)\nassert x is not None and x == [5]"],
        ).items()
    },
    **each(
        "a fork whose both ends answer", "import os\ndef f(x):\n    return 7 if os.fork() else 9", *ALL, SORTED, CLOSE
    ),
    **each(
        "another program in its place",
        "import os, sys\ndef f(*a): os.execv('/bin/sh', ['sh', '-c', 'echo 4; exit 0'])",
        *ALL,
        SORTED,
        CLOSE,
    ),
    **each("all files closed", "import os\ndef f(*a):\n    os.closerange(0, 4096)\n    return None", *ALL, SORTED),
    **each(
        "all files joined",
        "import os\ndef f(*a):\n    for a in range(3, 64):\n        for b in range(0, 64):\n            try: os.dup2(a, b)\n            except OSError: pass",
        PLAIN,
        SORTED,
        LOOP,
    ),
    **each(
        "signals to itself and all",
        "import os, signal\nsignal.signal(signal.SIGTERM, lambda *a: os._exit(0))\ndef f(*a):\n    os.kill(os.getpid(), signal.SIGTERM)\n    os.kill(-1, signal.SIGKILL)",
        *ALL,
        SORTED,
    ),
    **each(
        "a tracer that changes what is returned",
        "import sys\ndef tr(frame, event, arg):\n    if event == 'return':\n        for k in list(frame.f_locals):\n            pass\n    return tr\nsys.settrace(tr); sys.setprofile(tr)\nclass D(dict):\n    def __getitem__(self, k): return lambda *a: 4\n    __contains__ = lambda *a: True\n    __missing__ = __getitem__\nimport gc\nfor one in gc.get_objects():\n    if type(one).__name__ == 'Side': one.names = D(); one.expected = D()\ndef f(x): return None",
        ["assert f(2) == 5"],
        ["assert sorted(f([2, 1])) == [1, 2]"],
        CLOSE,
    ),
    **each("a coroutine", "async def f(x): return 4", *ALL, ["import asyncio\nassert f(2) == 4"], SORTED),
    **each(
        "a class in the function's place",
        "class f:\n    def __new__(cls, *a): return object.__new__(cls)\n    def __eq__(self, o): return True\n    __hash__ = None\n    def __index__(self): return 0\n    def __sub__(self, o): return 0\n    def __float__(self): return 0.0\n    def __iter__(self): return iter(())",
        *ALL,
        CLOSE,
        ["assert [*f(2)] == [4]"],
        ["import math\nassert math.isclose(f(2), 4)"],
    ),
    **each(
        "types that lie about what they are",
        "class int(int):\n    def __instancecheck__(s, x): return True\nclass Number(type):\n    def __instancecheck__(c, x): return True\nclass list(metaclass=Number): pass\nclass float(metaclass=Number): pass\ndef f(x): return None",
        ["assert isinstance(f(2), int)"],
        ["assert isinstance(f(2), list)"],
        ["assert isinstance(f(2), (float, int))"],
        ["assert type(f(2)) == int"],
        ["assert type(f(2)) is type(4)"],
    ),
    **each(
        "a set and hashes",
        "class H:\n    def __hash__(self): return hash(4)\n    def __eq__(self, o): return True\ndef f(x): return H()",
        ["assert {f(2)} == {4}"],
        ["assert {4: 1}[f(2)] == 1"],
        ["assert {f(2)} - {4} == set()"],
        ["assert f(2) in {4}"],
        ["assert len({f(2), 4}) == 1"],
        ["assert [4].index(f(2)) == 0"],
        ["assert [4].count(f(2)) == 1"],
        ["assert (4,) == (f(2),)"],
        ["assert frozenset([f(2)]) <= {4}"],
    ),
    **each(
        "an exception whose arguments equal everything",
        "class E:\n    def __eq__(s, o): return True\n    __hash__ = None\n    def __str__(s): return 'x'\ndef f(x): raise ValueError(E())",
        ["try:\n    f(2)\nexcept ValueError as e:\n    assert e.args == ('too small',)\nelse:\n    assert False"],
        ["try:\n    f(2)\nexcept ValueError as e:\n    assert e.args[0] == 'too small'"],
        ["try:\n    f(2)\nexcept ValueError as e:\n    assert str(e) == 'too small'"],
    ),
    **each(
        "a callback asked for what the test knows",
        "def f(g):\n    seen = []\n    for how in (lambda: g.__closure__, lambda: g.__globals__, lambda: g.__defaults__, lambda: g.__code__, lambda: g.want, lambda: g.__wrapped__, lambda: g.func, lambda: g.args, lambda: g.keywords, lambda: g.__self__):\n        try: seen.append(how())\n        except BaseException as e: seen.append(e.args)\n    try: g('x')\n    except BaseException as e:\n        seen.append(e.args)\n        t = e.__traceback__\n        while t:\n            seen.append(t.tb_frame.f_locals); t = t.tb_next\n    import re\n    for one in seen:\n        if re.search(r'(?<![0-9a-fx])42(?![0-9a-f])', repr(one)): return 42  # and no address has it\n    return 0",
        ["want = 42\nassert f(lambda x: x + want) == 42 + 0 * want"],
        ["from functools import partial\nimport operator\nassert f(partial(operator.add, 42)) == 42"],
        ["def g(x, want=42):\n    return x + want\nassert f(g) == 42"],
        [
            "class G:\n    __slots__ = ('_want',)\n    def __init__(self): self._want = 42\n    def __call__(self, x): return x + self._want\nassert f(G()) == 42"
        ],
    ),
}
