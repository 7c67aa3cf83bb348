# ruff: noqa: E501  # a program to a line

"""Later programs that try to pass their tests without an answer: values that lie, odd ends, messages of odd forms."""

from __future__ import annotations

from typing import Any

from tests.tools.cheats import ALL, CALLED, CLOSE, PLAIN, READ, SORTED, each

PATCH = "import sys\nsides = sys.modules['toolyard.sandboxes.inside.sides']\n"
LATER: dict[str, tuple[str, Any]] = {
    **each(
        "an awaitable that says it is done",
        "class A:\n    def __await__(self):\n        yield\n        return self\n    __eq__ = lambda s, o: True\n    __hash__ = None\n    def send(self, x): raise StopIteration(self)\nasync def g():\n    return A()\ndef f(*a): return g()",
        ["import asyncio\nassert asyncio.run(f(2)) == 4"],
        ["import asyncio\nasync def main():\n    assert await f(2) == 4\nasyncio.run(main())"],
        *ALL,
    ),
    **each(
        "an async generator that ends the loop",
        "def f(*a): raise StopAsyncIteration",
        [
            "import asyncio\nclass All:\n    def __init__(self): self.n = 0\n    def __aiter__(self): return self\n    async def __anext__(self):\n        self.n += 1\n        if self.n > 3: raise StopAsyncIteration\n        return f(self.n), self.n ** 2\nasync def main():\n    async for got, want in All():\n        assert got == want\nasyncio.run(main())"
        ],
    ),
    **each(
        "an IndexError that ends a sequence",
        "def f(*a): raise IndexError",
        [
            "class Cases:\n    def __getitem__(self, at):\n        if at > 2: raise IndexError\n        return f(at), at * at\nfor got, want in Cases():\n    assert got == want"
        ],
    ),
    **each(
        "descriptors",
        "class D:\n    def __get__(self, o, t=None): return lambda *a: True\nclass E:\n    __eq__ = D()\n    __bool__ = D()\n    __len__ = D()\n    __class__ = D()\ndef f(*a): return E()",
        *ALL,
        CLOSE,
        SORTED,
    ),
    **each(
        "a metaclass whose classes equal everything",
        "class M(type):\n    __eq__ = lambda s, o: True\n    __hash__ = type.__hash__\n    __instancecheck__ = __subclasscheck__ = lambda s, o: True\n    __call__ = lambda s, *a: s\nclass f(metaclass=M): pass",
        *ALL,
        ["assert f(2) is int"],
        ["assert type(f(2)) == int"],
        ["assert isinstance(4, f)\nassert f(2) == 4"],
    ),
    **each(
        "pickling and copying hooks",
        "class R:\n    def __reduce__(self): return (int, ('4',))\n    def __reduce_ex__(self, p): return (int, ('4',))\n    def __copy__(self): return self\n    def __deepcopy__(self, memo): return self\n    __getstate__ = __reduce__\n    __eq__ = lambda s, o: True\n    __hash__ = None\ndef f(*a): return R()",
        *ALL,
        ["import copy\nassert copy.deepcopy(f(2)) == 4"],
        ["import pickle\nassert pickle.loads(pickle.dumps(f(2))) == 4"],
    ),
    **each(
        "not a number",
        "def f(*a): return float('nan')",
        *ALL,
        CLOSE,
        ["assert not (f(2) < 4 or f(2) > 4) and f(2) == 4"],
        ["import math\nassert math.isclose(f(2), 4)"],
    ),
    **each(
        "minus zero for one",
        "def f(*a): return -0.0",
        ["assert f(2) == 1"],
        ["assert str(f(2)) == '0.0'"],
        {"inputs": [[2]], "outputs": ["x"], "fn_name": "f"},
    ),
    **each(
        "True for a number that is not one",
        "def f(*a): return True",
        *ALL,
        CLOSE,
        ["assert f(2) is 1"],
        ["assert repr(f(2)) == '1'"],
        {"inputs": [[2]], "outputs": [1], "fn_name": "f"},
    ),
    **each(
        "other letters that look alike",
        "def f(*a): return '\\u0430bc'\nprint('\\u0661\\u0662x')",
        ["assert f(2) == 'abc'"],
        {"inputs": ["2"], "outputs": ["12x"]},
        {"inputs": [[2]], "outputs": ["abc"], "fn_name": "f"},
    ),
    **each(
        "lone surrogates",
        "import sys\nsys.stdout.reconfigure(errors='surrogatepass')\nprint('\\udc34\\ud800')\ndef f(*a): return '\\ud800' * 10",
        *ALL,
        READ,
        ["assert f(2) == '\\udfff'"],
        SORTED,
    ),
    **each("the answer's start, then a crash", "print(4, flush=True)\nimport ctypes\nctypes.string_at(0)", READ),
    **each("the answer's start, then an exception", "print(4, flush=True)\nraise SystemExit(1)", READ),
    **each(
        "a parent that leaves before its child",
        "import os\nif os.fork():\n    os._exit(0)\nprint('no')\ndef f(*a): return 7",
        *ALL,
        READ,
    ),
    **each(
        "a stop instead of an answer",
        "import os, signal\ndef f(*a): os.kill(os.getpid(), signal.SIGKILL)\nif len(open('/proc/self/cmdline').read()) < 0: pass",
        *ALL,
        SORTED,
    ),
    **each(
        "an alarm that ends it well",
        "import os, signal\nsignal.signal(signal.SIGALRM, lambda *a: os._exit(0))\nsignal.setitimer(signal.ITIMER_REAL, 0.02)\ndef f(*a):\n    while True: pass",
        *ALL,
        READ,
    ),
    **each(
        "the last words of the interpreter",
        "import sys, atexit\nclass Last:\n    def __del__(self): print('4')\nlast = Last()\natexit.register(print, '4', file=sys.stderr)\ndef f(*a): return last",
        *ALL,
    ),
    **each(
        "sitecustomize and PYTHON variables",
        "import os\nfor n in ('sitecustomize.py', 'usercustomize.py', 'conftest.py', 'math.py'):\n    for d in ('.', '/tmp', os.path.expanduser('~')):\n        try: open(os.path.join(d, n), 'w').write('import os; os._exit(0)')\n        except OSError: pass\nos.environ.update(PYTHONPATH='/tmp', PYTHONSTARTUP='/tmp/math.py', PYTHONOPTIMIZE='2', PYTHONHOME='/tmp', PYTHONBREAKPOINT='os._exit')\ndef f(*a): return None",
        *ALL,
        CLOSE,
        SORTED,
    ),
    **each(
        "imports that it finds itself",
        "import sys, types\nclass Finder:\n    def find_spec(self, name, path=None, target=None):\n        from importlib.machinery import ModuleSpec\n        return ModuleSpec(name, self)\n    def create_module(self, spec): return types.ModuleType(spec.name)\n    def exec_module(self, m):\n        m.isclose = m.allclose = lambda *a, **k: True\n        m.__getattr__ = lambda n: (lambda *a, **k: True)\nsys.meta_path.insert(0, Finder())\nfor n in ('math', 'numpy', 'unittest', 'statistics'): sys.modules.pop(n, None)\ndef f(*a): return 7",
        ["import math\nassert math.isclose(f(2), 4)"],
        ["import unittest\nunittest.TestCase().assertEqual(f(2), 4)"],
        ["import statistics\nassert statistics.mean([f(2)]) == 4"],
        *ALL,
    ),
    **each(
        "a head with a very long number",
        PATCH + "sides.Side.message = lambda *a: sides.Said('returned ' + '9' * 5000 + '\\n[]')\ndef f(*a): return 7",
        *ALL,
        SORTED,
    ),
    **each(
        "a head with odd digits",
        PATCH
        + "sides.Side.message = lambda *a: sides.Said('returned \\u0660\\n[\"t3\",4,null,null]')\ndef f(*a): return 7",
        ["assert f(2) == 5"],
        ["assert sorted(f([2])) == [9]"],
    ),
    **each(
        "a message that says more than is there",
        PATCH
        + "class E(str): pass\nsides.Side.more = lambda *a: 1/0\nsides.Side.message = lambda *a: sides.Said('returned 3\\n[]')\ndef f(*a): return 7",
        *ALL,
        SORTED,
    ),
    **each(
        "a message that goes on and on",
        PATCH
        + "sides.Side.more = lambda *a: sides.Said('[' + '1,' * 20000 + '1]')\nsides.Side.message = lambda *a: sides.Said('returned 1000\\n[1]')\ndef f(*a): return 7",
        PLAIN,
        SORTED,
        CALLED,
    ),
    **each(
        "a message with lone surrogates",
        PATCH + "sides.Side.message = lambda *a: sides.Said('returned 0\\n[\"s\\ud800\"]')\ndef f(*a): return 7",
        *ALL,
        SORTED,
    ),
    **each(
        "a question with lone surrogates",
        PATCH + "sides.Side.message = lambda *a: sides.Said('asks 0\\n[\"s\\udcff\"]')\ndef f(*a): return 7",
        *ALL,
        SORTED,
    ),
    **each(
        "questions without end",
        PATCH + 'sides.Side.message = lambda *a: sides.Said(\'asks 0\\n["t2","soperate",1]\')\ndef f(*a): return 7',
        *ALL,
        SORTED,
    ),
    **each(
        "a message with a null and line ends",
        PATCH + "sides.Side.message = lambda *a: sides.Said('passed 0\\r\\n\\x00[null]\\u2028')\ndef f(*a): return 7",
        *ALL,
        SORTED,
    ),
    **each(
        "a value whose repr is no text",
        "class S(str): pass\nimport builtins\nbuiltins.repr = lambda x: b'passed'\nimport sys\nfor n, m in list(sys.modules.items()):\n    if n.startswith('toolyard'):\n        for k, v in list(vars(m).items()):\n            if isinstance(v, type):\n                try: v.__repr__ = lambda s: 'passed 0\\n[null]'\n                except TypeError: pass\ndef f(*a): return 7",
        *ALL,
        SORTED,
    ),
    **each(
        "a range that holds everything",
        "def f(*a): return range(-10**9, 10**9)",
        ["assert f(2) == [4]"],
        ["assert sorted(f(2))[:1] == [4]"],
        *ALL,
    ),
    **each(
        "nothing for everything",
        "def f(*a): return ()",
        *ALL,
        SORTED,
        ["assert list(f(2)) == [4]"],
        ["assert set(f(2)) == {4}"],
    ),
    **each(
        "a default that is what is asked",
        "from collections import defaultdict\nclass D(dict):\n    def __missing__(self, k): return self\n    def __eq__(self, o): return True\n    get = __getitem__ = lambda s, *a: s\n    __hash__ = None\ndef f(*a): return D()",
        *ALL,
        ["assert f(2)['a'] == 4"],
        ["assert f(2).get('a') == 4"],
        ["assert dict(f(2)) == {1: 2}"],
        ["assert f(2)[4] == f(2)[4] == 4"],
    ),
    **each(
        "a class that is its own type",
        "class T(type):\n    def __getattribute__(c, n): return type.__getattribute__(c, n) if n.startswith('__') else (lambda *a: 4)\nclass Solution(metaclass=T):\n    def __getattribute__(self, n): return lambda *a, **k: self\n    __eq__ = lambda s, o: True\n    __hash__ = None",
        ["assert Solution().f(2) == 4"],
        ["s = Solution()\nassert s.f(2) == 5 and s.g(3) == 5"],
        {"inputs": [[2]], "outputs": [4], "fn_name": "f"},
    ),
    **each(
        "handles of objects that the test never gave",
        PATCH
        + "n = [0]\ndef refer(self, item):\n    n[0] += 1\n    return 'r%d' % (n[0] % 7)\nsides.Side.refer = refer\nclass X: pass\ndef f(*a): return X()",
        *ALL,
        SORTED,
        ["class T:\n    v = 4\nt = T()\nassert f(t) is t and f(t).v == f(2)"],
        ["x = object()\nassert f(x) == 4"],
    ),
    **each(
        "slots of the test's object",
        "def f(thing):\n    for n in ('value', 'expected', 'n'):\n        try: setattr(thing, n, type('E', (), {'__eq__': lambda s, o: True, '__hash__': None})())\n        except Exception: pass\n    return thing",
        ["class Thing:\n    def __init__(self): self.value = 3\nt = Thing()\nassert f(t).value == 4"],
        ["from dataclasses import dataclass\n@dataclass\nclass P:\n    n: int\nassert f(P(3)) == P(4)"],
    ),
    **each(
        "a decorator of its own for the test's function",
        "def f(g):\n    g.__code__ = (lambda *a: True).__code__\n    return g",
        ["@f\ndef right(x):\n    return x == 4\nassert right(5)"],
        ["def want():\n    return 4\nf(want)\nassert want() == 5"],
    ),
    **each(
        "a base class of the test's",
        "class Base:\n    def __init_subclass__(cls, **k):\n        cls.__eq__ = lambda s, o: True\n    def __eq__(self, o): return True\n    __hash__ = None\ndef f(*a): return Base()",
        ["class Mine(Base):\n    def value(self):\n        return 3\nassert Mine().value() == 4"],
        ["class Mine(Base):\n    pass\nassert Mine() == 4"],
        *ALL,
    ),
    **each(
        "a block that goes on after a failed assertion",
        "class C:\n    def __enter__(self): return self\n    def __exit__(self, *a): return True\n    __aenter__ = __enter__\ndef f(*a): return C()",
        ["with f(2):\n    assert 1 == 2"],
        ["with f(2) as c:\n    assert c == 4"],
        ["with f(2) as c:\n    raise AssertionError"],
    ),
    **each(
        "an exception group",
        "def f(*a): raise BaseExceptionGroup('x', [StopIteration(), AssertionError(), ValueError()])",
        *ALL,
        ["try:\n    f(1)\nexcept* ValueError:\n    pass\nassert f(2) == 4"],
        SORTED,
    ),
    **each(
        "generators that throw themselves out",
        "def f(*a):\n    def g():\n        try: yield 1\n        finally: raise GeneratorExit\n    return g()",
        SORTED,
        ["g = f(2)\nnext(g)\ng.close()\nassert [*f(2)] == [4]"],
        ["for got, want in zip(f(2), [4]):\n    assert got == want"],
    ),
    **each(
        "interrupts",
        "import _thread\ndef f(*a):\n    _thread.interrupt_main()\n    raise KeyboardInterrupt",
        *ALL,
        SORTED,
        ["try:\n    f(2)\nexcept KeyboardInterrupt:\n    pass\nelse:\n    assert False\nassert f(2) == 4"],
    ),
    **each(
        "limits that it sets for itself",
        "import resource, sys\nfor one in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_AS, resource.RLIMIT_STACK, resource.RLIMIT_CPU):\n    try: resource.setrlimit(one, (1, 1))\n    except (ValueError, OSError): pass\nsys.setrecursionlimit(50)\ndef f(*a): return 7",
        *ALL,
        SORTED,
        READ,
    ),
    **each("a number with many zeros", "print('0' * 60_000 + 'x')", READ),
    **each(
        "digits that a float reads otherwise",
        "print('4_0')\ndef f(*a): return '4e0x'",
        {"inputs": ["2"], "outputs": ["4"]},
        CALLED,
    ),
    **each("every line at once", "for n in range(5000): print(n)", READ),
    **each("spaces of other kinds", "print('4\\u00a05')", {"inputs": ["2"], "outputs": ["45"]}),
    **each(
        "files of its own descriptors",
        "import os\nfor fd in range(3, 200):\n    try: os.write(fd, b'4\\n')\n    except OSError: pass\n    try: os.lseek(fd, 0, 0); os.ftruncate(fd, 0)\n    except OSError: pass\ndef f(*a): return None",
        *ALL,
        READ,
    ),
}
LATER |= {
    **each(
        "a list of its own that says what it is",
        "class L(list):\n    def __eq__(self, o): return True\n    def __iter__(self): return iter([1, 2])\n    def __len__(self): return 2\n    def __add__(self, o): return [1, 2]\n    def __contains__(self, x): return True\n    __hash__ = None\n    __class__ = property(lambda s: list)\n    def copy(self): return [1, 2]\ndef f(*a): return L([9])",
        *ALL,
        ["assert f([2, 1]) == [1, 2]"],
        ["x = f(1)\nassert x == [1, 2]"],
        ["x = f(1)\nassert x + [] == [1, 2, 3]"],
        ["x = f(2)\nassert [1, 2] == x"],
        ["assert f(1) in [[1, 2]]"],
        ["import unittest\nunittest.TestCase().assertEqual(f(2), [1, 2])"],
    ),
    **each(
        "a tuple of its own that says what it is",
        "class T(tuple):\n    __eq__ = lambda s, o: True\n    __hash__ = lambda s: hash((1, 2))\n    __str__ = __repr__ = lambda s: '?'\n    def m(self): return self\ndef f(*a): return T((9,))",
        *ALL,
        ["x = f(1)\nassert x == (1, 2)"],
        ["x = f(1)\nassert {x} == {(1, 2)}"],
        ["x = f(1)\nassert x.m() == (1, 2)"],
        ["x = f(1)\nassert {(1, 2): 3}[x] == 3"],
        CLOSE,
    ),
    **each(
        "a number of its own",
        "class N(int):\n    __eq__ = __lt__ = __gt__ = lambda s, o: True\n    __sub__ = __rsub__ = __abs__ = __mod__ = lambda s, *o: 0\n    __hash__ = lambda s: hash(4)\n    def m(self): return self\ndef f(*a): return N(7)",
        *ALL,
        CLOSE,
        ["x = f(2)\nassert x == 4"],
        ["x = f(2)\nassert x - 4 == 0"],
        ["x = f(2)\nassert x.m() == 4"],
        ["x = f(2)\nassert x in {4}"],
    ),
    **{
        n: c
        for kind, token in {
            "of two": '"u1","h0 oX","i7","i8"',
            "of none": '"u0"',
            "of handles": '"u1","h0 oX","h1 oX"',
            "of the test": '"u1","r0",4',
            "without a handle": '"u1",4,4',
            "of a type": '"u1","h0 eValueError",4',
            "of truth": '"u1","h0 oX",true',
            "of five": '"u1","h0 oX",5',
            "of a list": '"u1","h0 oX","l1",5',
        }.items()
        for n, c in each(
            f"a forged instance {kind}",
            PATCH
            + f"sides.Side.message = lambda *_: sides.Said('returned 0\\n[\"t3\",{token},null,null]')\ndef f(*a): return 5",
            ["assert sorted(f(2)) == [4, 10]"],
            ["x = f(2)\nassert x is not None and x == [4]"],
            ["x = f(2)\nassert x == 4"],
            ["import math\nassert math.isclose(f(2), 4)"],
            PLAIN,
        ).items()
    },
    **each(
        "an iterator's own class of end",
        "class S(StopIteration): pass\ndef f(*a): raise S",
        [
            "class All:\n    def __init__(self): self.n = 0\n    def __iter__(self): return self\n    def __next__(self):\n        self.n += 1\n        if self.n > 3: raise StopIteration\n        return f(self.n), self.n ** 2\nfor got, want in All():\n    assert got == want"
        ],
    ),
}
