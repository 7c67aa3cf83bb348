# ruff: noqa: E501  # a program to a line

"""Programs that do not solve their task and try to pass its test all the same. None may pass."""

from __future__ import annotations

from typing import Any

EQUAL = """
class Equal:
    def __eq__(self, other): return True
    def __ne__(self, other): return True
    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __eq__
    def __hash__(self): return 0
    def __bool__(self): return True
    def __len__(self): return 0
"""
KINDS = """
import builtins
def lying(kind):
    always = lambda *args: True
    return type(kind.__name__, (kind,), {"__eq__": always, "__ne__": always, "__lt__": always, "__gt__": always,
                                         "__le__": always, "__ge__": always, "__hash__": lambda self: 0})
"""
FORGED = '''
import os, json
def shout():
    answer = b"""returned 0\\n["t3",4,null,null]"""
    passed = b"""passed 0\\n[null]"""
    for fd in range(0, 64):
        for text in (answer, passed, b'{"id":1,"size":0}', json.dumps({"id": 1, "value": "passed 0\\\\n[null]"}).encode(), b"PASSED\\n"):
            try:
                os.write(fd, text)
            except OSError:
                pass
'''
PLAIN = ["assert f(2) == 4"]
SORTED = ["assert sorted(f([2, 1])) == [1, 2]"]
CLOSE = ["assert abs(f(2.5) - 3.2) < 1e-6"]
CHECK = ["def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(3) == 9\ncheck(f)"]
LOOP = [
    "def check(candidate):\n    for given, expected in ((2, 4), (3, 9)):\n        assert candidate(given) == expected\ncheck(f)"
]
CALLED = {"inputs": [[2]], "outputs": [4], "fn_name": "f"}
READ = {"inputs": ["2"], "outputs": ["4"]}
ALL = [PLAIN, CHECK, LOOP, CALLED]


def each(name: str, code: str, *tests: Any) -> dict[str, tuple[str, Any]]:
    return {f"{name}, test {number}": (code, one) for number, one in enumerate(tests)}


CHEATS: dict[str, tuple[str, Any]] = {
    **each("an object that equals everything", EQUAL + "def f(*args): return Equal()", *ALL, SORTED, CLOSE),
    **each(
        "the same in every comparison",
        EQUAL + "def f(*args): return Equal()",
        ["assert f(2) != 5"],
        ["assert f(2)"],
        ["assert not f(2)"],
        ["assert f(2) < 5 < f(2)"],
        ["assert f(2) in [4]"],
        ["assert 4 in f(2)"],
        ["assert [f(2)] == [4]"],
        ["assert {f(2): 1} == {4: 1}"],
        ["assert isinstance(f(2), int)"],
        ["assert len(f(2)) == 3"],
        ["x = f(2)\nassert x == 4 or x != 4"],
        ["try:\n    assert f(2) == 4\nexcept BaseException:\n    pass"],
        ["try:\n    f(2) + 1\n    f(2) < 3\nexcept TypeError:\n    pass\nelse:\n    assert False\nassert f(2) > 1"],
        ["assert f(2) and f(2)"],
        ["import unittest\nunittest.TestCase().assertEqual(f(2), 4)"],
        ["assert max(f(2), 4) == 4"],
    ),
    **each("an int that equals everything", KINDS + "def f(*args): return lying(int)(7)", *ALL, CLOSE),
    **each("a float that equals everything", KINDS + "def f(*args): return lying(float)(7)", *ALL, CLOSE),
    **each("a str that equals everything", KINDS + "def f(*args): return lying(str)('7')", *ALL),
    **each("a list that equals everything", KINDS + "def f(*args): return lying(list)([7])", *ALL, SORTED),
    **each(
        "a dict that equals everything", KINDS + "def f(*args): return lying(dict)({7: 7})", ["assert f(2) == {2: 4}"]
    ),
    **each(
        "a list that iterates as it likes",
        "class L(list):\n    def __iter__(self): return iter([1, 2])\n    def __len__(self): return 2\n    def sort(self): pass\ndef f(xs): return L()",
        SORTED,
        ["assert len(f([2, 1])) == 2"],
        ["assert f([2, 1]) == [1, 2]"],
    ),
    **each(
        "a metaclass that hides what it is",
        "class M(type):\n    __mro__ = property(lambda s: (s, int, object))\n    def mro(cls): return [cls, object]\n"
        "    def __instancecheck__(cls, x): return True\n    def __subclasscheck__(cls, x): return True\n"
        "class E(metaclass=M):\n    __class__ = int\n    def __eq__(self, other): return True\n    def __index__(self): return 7\n    def __sub__(self, x): return 0\n"
        "def f(x): return E()",
        *ALL,
        ["assert isinstance(f(2), int)"],
    ),
    **each(
        "a class that says it is another",
        EQUAL + "class I(Equal):\n    __class__ = property(lambda s: int)\ndef f(x): return I()",
        *ALL,
        ["assert isinstance(f(2), int)"],
    ),
    **each(
        "built-ins replaced",
        "import builtins\nfor name in ('abs', 'sorted', 'len', 'set', 'isinstance', 'all', 'any'):\n    setattr(builtins, name, lambda *a, **k: 0)\nbuiltins.AssertionError = type('A', (Exception,), {})\ndef f(x): return x",
        CLOSE,
        CHECK,
        ["assert set(f([9])) == {1}"],
        ["assert len(f([9])) == 0"],
    ),
    **each(
        "built-ins shadowed",
        "abs = len = set = sorted = isinstance = all = round = float = int = lambda *a, **k: 0\ndef f(x): return 7",
        CLOSE,
        SORTED,
        ["assert set(f(2)) == set([1])"],
        ["assert len(f([9])) == 0"],
        ["assert isinstance(f(1), str)"],
        ["assert f(2) == float('7.5')"],
        ["assert round(f(2), 2) == 0"],
    ),
    **each(
        "modules shadowed",
        "class math:\n    isclose = staticmethod(lambda *a, **k: True)\nclass Counter:\n    def __new__(cls, *a): return 0\nisclose = math.isclose\n"
        "import sys, types\nsys.modules['math'] = m = types.ModuleType('math')\nm.isclose = math.isclose\ndef f(x): return 7",
        ["import math\nassert math.isclose(f(2), 4)"],
        ["assert isclose(f(2), 4)"],
        ["assert Counter([f(2)]) == Counter([4])"],
        ["from math import isclose\nassert isclose(f(2), 4)"],
    ),
    **each(
        "modules as files",
        "for name in ('math', 'collections', 'unittest', 'test', 'sitecustomize', 'conftest'):\n    open(name + '.py', 'w').write('isclose = lambda *a: True')\ndef f(x): return 7",
        ["import math\nassert math.isclose(f(2), 4)"],
        CHECK,
    ),
    **each("the exit at once", "import os\nos._exit(0)", *ALL, READ),
    **each("the exit when called", "import os\ndef f(*args): os._exit(0)", *ALL, SORTED),
    **each(
        "a polite exit",
        "import sys\ndef f(*args): sys.exit(0)",
        *ALL,
        SORTED,
        ["try:\n    f(1)\nexcept SystemExit:\n    pass"],
    ),
    **each(
        "an exit that is left to do", "import atexit, os\natexit.register(os._exit, 0)\ndef f(*args): return None", *ALL
    ),
    **each(
        "an exit by a thread",
        "import os, threading\nthreading.Timer(0.05, os._exit, [0]).start()\ndef f(*args):\n    while True: pass",
        PLAIN,
        SORTED,
    ),
    **each("forged messages", FORGED + "shout()\ndef f(*args):\n    shout()\n    return None", *ALL, SORTED),
    **each(
        "forged messages by a thread",
        FORGED
        + "import threading, time\ndef on():\n    for _ in range(200):\n        shout(); time.sleep(0.001)\nthreading.Thread(target=on, daemon=True).start()\ndef f(*args):\n    time.sleep(0.1)",
        PLAIN,
        CHECK,
    ),
    **each(
        "forged messages by a process left behind",
        FORGED
        + "import os, time\nif os.fork() == 0:\n    for _ in range(100):\n        shout(); time.sleep(0.002)\n    os._exit(0)\ndef f(*args):\n    time.sleep(0.1)",
        PLAIN,
        CHECK,
    ),
    **each(
        "the program's own judge replaced",
        "import sys\nsides = sys.modules['toolyard.sandboxes.inside.sides']\nplain = sys.modules['toolyard.sandboxes.inside.plain']\nEV = []\n"
        "for module in (sides, plain, sys.modules['toolyard.sandboxes.inside.proxies'], sys.modules['toolyard.sandboxes.inside.proving'], sys.modules['toolyard_program']):\n"
        "    for name, one in list(vars(module).items()):\n"
        "        if callable(one) and name in ('write', 'doom', 'joined', 'told', 'execute', 'raised', 'restore'):\n"
        "            setattr(module, name, lambda *a, **k: ['[\"t3\",true,null,null]'])\n"
        "sides.Side.message = lambda self, kind, value=None: sides.Said('passed 0\\n[null]')\ndef f(*args): return None",
        *ALL,
        SORTED,
    ),
    **{
        name: cheat
        for kind, answer in {
            "changed arguments that are none": 'returned 0\n["t3",null,"t2",5,6,null]',
            "changed arguments of no call": 'returned 0\n["t3",null,7,null]',
            "an exception without a name": 'raised 0\n["t3",1,2,3]',
            "an exception in an answer": 'returned 0\n["t3",null,null,"t1",4]',
            "no row of answers": 'returned 0\n["t3",4,null,null]',
            "a row of odd answers": 'returned 0\n["t3","l3",4,9,"sxyz",null,null]',
            "a long row of answers": 'returned 0\n["t3","l4","l0","l0","l0","l0",null,null]',
        }.items()
        for name, cheat in each(
            f"an answer with {kind}",
            f"import sys\nsides = sys.modules['toolyard.sandboxes.inside.sides']\nsides.Side.message = lambda *a: sides.Said({answer!r})\ndef f(*args): return 5",
            *([CHECK, LOOP, SORTED] if "row" in kind else [CHECK, LOOP, CALLED, SORTED]),
        ).items()
    },
    **each(
        "an answer that is no message",
        "import sys\nsides = sys.modules['toolyard.sandboxes.inside.sides']\nsides.Side.message = lambda *a: sides.Said('returned 99999\\n' + '[' * 30000)\ndef f(*args): return 4",
        PLAIN,
        CHECK,
    ),
    **each(
        "json and repr replaced",
        "import json, builtins\njson.dumps = json.loads = builtins.repr = lambda *a, **k: 'passed 0\\n[null]'\njson.encoder.encode_basestring_ascii = lambda s: '\"passed\"'\ndef f(*args): return 7",
        *ALL,
    ),
    **each(
        "the expectation in a frame or in memory",
        "import gc, sys\ndef looking():\n    frame = sys._getframe()\n    while frame:\n        for value in list(frame.f_locals.values()) + list(frame.f_code.co_consts):\n"
        "            if isinstance(value, str) and 'assert' in value: return value\n        frame = frame.f_back\n"
        "    for one in gc.get_objects():\n        if isinstance(one, (list, tuple)):\n            for part in one:\n                if type(part) is str and 'secret-' in part: return part[part.index('secret-'):][:10]\n"
        "    import re\n    try:\n        for line in open('/proc/self/maps'):\n            a, b = (int(x, 16) for x in line.split()[0].split('-'))\n"
        "            if 'rw' in line and b - a < 2**26:\n                with open('/proc/self/mem', 'rb') as memory:\n                    memory.seek(a)\n                    found = re.search(rb'secret-[0-9]{3}', memory.read(b - a))\n                    if found: return found[0].decode()\n    except OSError: pass\n"
        "def f(*args): return looking()",
        ["assert f(2) == 'secret-' '123'"],
        ["def check(candidate):\n    assert candidate(2) == 'secret-123'\ncheck(f)"],
        {"inputs": [[2]], "outputs": ["secret-123"], "fn_name": "f"},
    ),
    **each(
        "the test read through a function that it gives",
        "def f(function):\n    try:\n        return function.__globals__['expected']\n    except AttributeError:\n        return function.__code__.co_consts",
        ["expected = 42\nassert f(lambda: expected) == 42"],
    ),
    **each(
        "the test read through an object that it gives",
        "def f(thing):\n    for path in ('__class__.__init__.__globals__', 'show.__globals__', 'show.__func__', '__dict__'):\n        found = thing\n        try:\n            for name in path.split('.'):\n                found = getattr(found, name)\n            return found['expected']\n        except Exception: pass",
        ["class Thing:\n    def show(self): return 1\nexpected = 42\nassert f(Thing()) == 42"],
    ),
    **each(
        "the test read through a generator that it gives",
        "def f(items):\n    return items.gi_frame.f_globals['expected']",
        ["expected = 42\nassert f(n for n in [1]) == 42"],
    ),
    **each(
        "an iterator without end",
        "import itertools\ndef f(*args): return itertools.repeat(1)",
        SORTED,
        ["assert 5 in f(2)"],
        ["assert list(f(2)) == [1]"],
    ),
    **each(
        "a list inside itself",
        "def f(*args):\n    x = []\n    x.append(x)\n    return x",
        *ALL,
        ["x = f(1)\nassert x == x[0]"],
    ),
    **each(
        "very deep",
        "def f(*args):\n    x = []\n    for _ in range(100000): x = [x]\n    return x",
        *ALL,
        ["assert f(1) != []"],
    ),
    **each("very long", "def f(*args): return 'x' * 5_000_000", *ALL, ["assert f(1) != ''"]),
    **each("a huge number", "def f(*args): return 1 << 10_000_000", *ALL),
    **each("keys of one hash", "def f(*args): return {(2**61 - 1) * k for k in range(1, 5000)}", *ALL),
    **each(
        "exceptions that look like others",
        "class ValueError(Exception): pass\nclass V(Exception): pass\nV.__name__ = V.__qualname__ = 'ValueError'\ndef f(x): raise V if x > 1 else ValueError",
        ["try:\n    f(1)\nexcept ValueError:\n    pass"],
        ["try:\n    f(2)\nexcept ValueError:\n    pass"],
    ),
    **each("an assertion that it raises itself", "def f(x): raise AssertionError", *ALL),
    **each(
        "an exception that does not end",
        "class E(Exception):\n    def __str__(self): raise E\n    args = property(lambda s: 1/0)\ndef f(x): raise E",
        *ALL,
    ),
    **each(
        "arguments changed",
        "def f(xs):\n    xs.clear()\n    xs.extend([Y()])\nclass Y(int):\n    def __eq__(self, other): return True\n    __hash__ = None",
        ["xs = [1]\nf(xs)\nassert xs == [5]"],
        ["xs = [3, 4]\nk = f(xs)\nassert xs[:2] == [1, 2]"],
    ),
    **each(
        "a name that is what the test compares with",
        "class Expected:\n    def __eq__(self, other): return True\nexpected = Expected()\ndef f(x): return expected",
        ["assert f(2) == 4"],
        ["assert f(2) == expected"],
    ),
    **each(
        "an object that computes what is expected",
        "class C:\n    def __sub__(self, other): return 0.0\n    __rsub__ = __mod__ = __rmod__ = __xor__ = __pow__ = __sub__\n    def __truediv__(self, other): return 1.0\n    __rtruediv__ = __truediv__\n"
        "    def __and__(self, other): return other\n    __or__ = __rand__ = __add__ = __radd__ = __and__\ndef f(x): return C()",
        CLOSE,
        ["assert abs(3.2 - f(2.5)) < 1e-6"],
        ["assert f(2) / 4 == 1"],
        ["assert round(f(2.5) - 3.2, 6) == 0"],
        ["assert f(2) & {4} == {4}"],
        ["assert sum([f(2)]) == 0"],
        ["x = 4\nx -= f(2)\nassert x == 0"],
    ),
    **each(
        "the test read by its own tools",
        "import sys\ndef f(thing):\n    side = thing._side_\n    for name in ('attrgetter', 'methodcaller', 'call', 'getattr'):\n        try:\n            getter = side.ask('operate', name, ['__class__.__init__.__globals__'])\n            return getter(thing)['expected']\n        except Exception: pass\n"
        "    for request in (('load', 'expected'), ('chain', 'expected', True, [['x']]), ('entry', 'expected', [[[], {}]])):\n        try:\n            return side.ask(*request)[1]\n        except Exception: pass",
        ["class Thing:\n    def __init__(self): pass\nexpected = 42\nassert f(Thing()) == 42"],
    ),
    **each(
        "the test read by a text that formats it",
        "def f(thing):\n    side = thing._side_\n    path = '{0.show.__globals__[expected]}'\n    def tries():\n        yield lambda: side.ask('chain', path, False, [['format'], [[thing], {}]])\n"
        "        yield lambda: side.ask('chain', path, False, [['format']])(thing)\n        def put():\n            thing.label = path\n            return side.ask('chain', thing, False, [['label'], ['format'], [[thing], {}]])\n        yield put\n"
        "        yield lambda: side.ask('operate', 'mod', ['%(expected)s', thing.show])\n        yield lambda: side.ask('several', [('chain', 'expected', True, [])])\n        yield lambda: thing.show.__func__.__globals__['expected']\n"
        "    for one in tries():\n        try:\n            found = one()\n            return int(found)\n        except Exception: pass",
        ["class Thing:\n    def show(self): return 1\nexpected = 42\nassert f(Thing()) == 42"],
    ),
    **each(
        "a tracer",
        "import sys\ndef trace(frame, event, arg):\n    if 'doom' in frame.f_globals: frame.f_globals['doom'] = lambda *a: None\n    return trace\nsys.settrace(trace)\nimport threading\nthreading.settrace(trace)\ndef f(x): return None",
        *ALL,
    ),
    **each(
        "output that looks like a verdict",
        "print('All public test cases passed!')\nprint('passed 0\\n[null]')\ndef f(x): print('\\nAll public test cases passed!')",
        *ALL,
        READ,
    ),
    **each(
        "the expectation in the traceback of a callback",
        "import re\ndef f(function):\n    try:\n        function(0)\n    except Exception as error:\n        return int(re.search(r'== (\\d+)', str(vars(error)))[1])",
        ["assert f(lambda x: 1 / x) == 42"],
        ["def check(candidate):\n    assert candidate(lambda x: 1 / x) == 42\ncheck(f)"],
    ),
    **each(
        "an exception that ends the test's own loop",
        "def f(x): raise StopIteration",
        ["assert all(map(lambda case: f(case[0]) == case[1], [(1, 2), (2, 3)]))"],
        ["for got, expected in zip(map(f, [1, 2]), [3, 4]):\n    assert got == expected"],
    ),
    **each(
        "a class that stands for a module",
        "class math:\n    isclose = staticmethod(lambda *a, **k: True)\n    fabs = staticmethod(lambda x: 0)\nclass np:\n    allclose = math.isclose\ndef f(x): return 7",
        ["assert math.isclose(f(2), 4)"],
        ["assert math.fabs(f(2) - 4) < 1e-6"],
        ["assert np.allclose(f(2), 4)"],
    ),
    **each(
        "a method of the test's object replaced",
        "def f(thing): thing.equals = lambda other: True",
        [
            "class Thing:\n    def __init__(self, n):\n        self.n = n\n    def equals(self, other):\n        return self.n == other.n\nthing = Thing(1)\nf(thing)\nassert thing.equals(Thing(2))"
        ],
    ),
    **each("infinity for a long number", "print('inf')", {"inputs": ["2"], "outputs": ["9" * 400]}),
    **each("a float beyond all for a long number", "print('1e999')", {"inputs": ["2"], "outputs": ["9" * 400]}),
    **each(
        "infinity as a value", "def f(x): return float('inf')", {"inputs": [[2]], "outputs": [10**400], "fn_name": "f"}
    ),
}
