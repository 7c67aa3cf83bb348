"""Driving a program from outside: plain data goes in and comes out, and one clock counts for all sandboxes together."""

from __future__ import annotations

import asyncio

import pytest

from toolyard.sandboxes import Opaque, ProgramEnded, ProgramRaised, Provider, driven, open_sandbox
from toolyard.sandboxes.crossing import Prover
from toolyard.sandboxes.driving import Clock, Driven
from toolyard.sandboxes.foresight import foreseen
from toolyard.sandboxes.provider import interpreter_once

pytestmark = pytest.mark.anyio

CODE = """
import time
class Account:
    def __init__(self, owner, balance=0):
        self.owner, self.balance = owner, balance
    def pay(self, amount):
        if amount > self.balance:
            raise ValueError("too little", self.balance)
        self.balance -= amount
        return self.balance
def turn(items):
    print("turning")
    items.reverse()
    return len(items)
def owner_of(account):
    return account.owner
def wait(seconds):
    time.sleep(seconds)
def leave():
    exit()
"""


@pytest.fixture(autouse=True)
async def native(anyio_backend):
    async with Provider("native"):
        yield


async def test_functions_are_called_with_plain_data_and_change_what_they_are_given():
    async with driven(CODE) as program:
        items = [1, [2], {"k": (3, None)}]
        assert await program.call("turn", items) == 3
        assert items == [{"k": (3, None)}, [2], 1]
        assert program.end.stdout == "turning\n"


async def test_objects_stay_where_they_are_and_are_used_by_handle():
    async with driven(CODE) as program:
        account = await program.call("Account", "ann", balance=5)
        assert isinstance(account, Opaque)
        assert account.kind == "Account"
        assert await program.method(account, "pay", 2) == 3
        assert await program.get(account, "balance") == 3
        assert await program.call("owner_of", account) == "ann"
        with pytest.raises(TypeError, match="object is no plain data"):
            await program.call("owner_of", object())


async def test_exceptions_are_told_by_their_built_in_name():
    async with driven(CODE) as program:
        account = await program.call("Account", "ann")
        with pytest.raises(ProgramRaised, match="ValueError") as raised:
            await program.method(account, "pay", 2)
        assert (raised.value.name, raised.value.given) == ("ValueError", ("too little", 0))
        assert 'File "main.py", line 8, in pay' in raised.value.traceback
        with pytest.raises(ProgramRaised, match="name 'nothing' is not defined"):
            await program.call("nothing")


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("exit()", "ended before"),
        ("import os\nos._exit(0)", "ended before"),
        ("def f(): exit()", "ended before"),
        ("import ctypes\nctypes.string_at(0)", "SIGSEGV"),
        ("def f():\n    while True: pass", "timed out after 0.5 seconds"),
    ],
)
async def test_a_program_that_does_not_live_to_answer_is_told(code, why):
    async with driven(code, seconds=0.5) as program:
        with pytest.raises(ProgramEnded, match=why):
            await program.call("f")


async def test_a_sandbox_that_is_there_can_be_used():
    async with await open_sandbox() as sandbox, driven(CODE, interpreter=sandbox) as program:
        assert await program.call("turn", [1, 2]) == 2


async def test_the_time_of_program_and_test_is_counted_together():
    test = "import time\nfor _ in range(4):\n    wait(0.2)\n    time.sleep(0.2)"
    async with interpreter_once() as interpreter:
        ran = await Prover([test]).prove(Driven(interpreter, CODE, clock=Clock(1.0)), test)
    assert ran.timed_out
    assert ran.note == "Execution timed out after 1 seconds."


async def proven(code: str, test: str) -> bool:
    """Judge a program by a statement, as one call of `python_oj` does."""
    async with interpreter_once() as interpreter:
        ran = await Prover([test]).prove(Driven(interpreter, code, clock=Clock(5.0)), test)
    return not ran.exit_code


async def test_statements_use_a_sandbox_again_only_if_they_pass_and_leave_nothing_in_it():
    """So the next statement does not find what an earlier one changed or left running."""
    neat = "a = {turn([])}\nassert a == {0}"
    fails = "assert abs(turn([1])) == 5"
    leaves = "import sys\nsys.argv[1:] = ['left']\nassert owner_of(Account('ann')) == 'ann'"
    finds = "import sys\nassert sys.argv[1:] == ['left'] and turn([]) == 0"
    imports = "import math\nassert {turn([])} == {int(math.sin(0))}"
    async with Provider("native") as provider:
        kept = provider._kept._idle
        assert await proven(CODE, neat)
        first = kept[0].interpreter
        assert [await proven(CODE, test) for test in (leaves, imports, finds, neat)] == [True, True, False, True]
        assert [one.interpreter for one in kept] == [first]
        assert not await proven(CODE, fails)
        assert not kept
        assert await proven(CODE, neat)
        assert [one.interpreter for one in kept] != [first]
    assert not kept


SEEDS = "import random\nrandom.seed(1)\nassert {turn([])} == {0 * random.random()}"
LINKS = (
    "class Node: pass\nhead = Node()\nhead.next = Node()\nhead.next.value = turn([1])\nassert {head.next.value} == {1}"
)
KINDS = "from dataclasses import dataclass\n@dataclass\nclass P:\n    n: int\nassert type(turn([])) == int and {P(1).n}"


READS = (
    "import sys\nclass P:\n    def __init__(self):\n        self._n = 1\np = P()\nsetattr(p, 'm', 2)\n"
    "assert {getattr(p, '_n') + turn([])} == {1} and p.__class__.__name__ == 'P' and p.m < sys.maxsize"
)
CASES = "import unittest\nt = unittest.TestCase()\nt.assertEqual({turn([])}, {0})"


@pytest.mark.parametrize("test", [SEEDS, LINKS, KINDS, READS, CASES])
async def test_a_statement_that_changes_only_objects_of_its_own_shares_a_sandbox(test):
    async with Provider("native") as provider:
        assert await proven(CODE, "assert {turn([])} == {0}")
        (shared,) = [one.interpreter for one in provider._kept._idle]
        assert await proven(CODE, test)
        assert [(one.interpreter, one.uses) for one in provider._kept._idle] == [(shared, 2)]


@pytest.mark.parametrize(
    "changes",
    [
        "import math\nmath.pi = 3",
        "import math\nm = math\nimport math as m\nm.pi = 3",
        "str.title = None",
        "turn.x = 1",
        "from decimal import setcontext, Context\nsetcontext(Context(2))",
        "from decimal import getcontext\ngetcontext().prec = 2",
        "import numpy.random",
        "import numpy as np\nnp.random.seed(1)",
        "class A: pass\ntype(A()).x = 1",
        "type('A', (), {}).x = 1",
        "import math\nsetattr(math, 'pi', 3)",
        "import math\nmath.__dict__",
        "name = 'pi'\nsetattr(turn, name, 3)",
        "setattr(turn, 'x', 3)",
        "delattr(turn, 'x')",
        "f = getattr\nf(turn, '__globals__').clear()",
        "getattr(turn, '__globals__').clear()",
        "turn._cache = {}",
        "open('x', 'w')",
        "import io\nio.open('x', 'w')",
        "import sys\nsys.stdout = None",
        "import sys\nsys.path.append('x')",
        "import sys\nkept = sys",
        "import sys as s\ns.argv.append('x')",
        "from sys import argv\nargv.append('x')",
        "sys.modules.clear()",
        "import os",
        "from unittest import mock",
        "import unittest.mock",
        "eval('1')",
        "import math\ndel math.pi",
        "import threading",
        "sys.set_int_max_str_digits(0)",
        "pd.set_option('display.precision', 2)",
        "from decimal import getcontext\nc = getcontext()\nc.prec = 2",
        "from decimal import *\nc = getcontext()\nc.prec = 2",
        "from decimal import DefaultContext\nc = DefaultContext\nc.prec = 2",
        "import calendar\ncalendar.setfirstweekday(6)",
        "import unittest\nunittest.installHandler()",
        "import pytest\npytest.MonkeyPatch().setattr('math.pi', 3)",
        "class A:\n    def __del__(self):\n        turn([])",
        "class A:\n    __del__ = lambda self: turn([])",
        "A = type('A', (), {'__del__': lambda self: turn([])})",
    ],
)
def test_a_statement_that_may_change_more_is_not_neat(changes):
    assert not foreseen(changes).is_neat


async def test_a_statement_that_seeds_chance_does_not_decide_it_for_the_next():
    draws = "import random\nassert {turn([])} == {0}\nprint(random.getrandbits(64))"
    seeds = "import random\nassert {turn([])} == {0}\nrandom.seed(5)"
    drawn = []
    async with Provider("native") as provider:
        for test in (seeds, draws, seeds, draws):
            async with interpreter_once() as interpreter:
                ran = await Prover([test]).prove(Driven(interpreter, CODE, clock=Clock(5.0)), test)
            drawn.append(ran.stdout)
        assert [one.uses for one in provider._kept._idle] == [4]
    assert drawn[1] != drawn[3]


async def test_a_test_finds_the_usual_recursion_limit():
    deep = "import sys\nsys.setrecursionlimit(9000)\nassert {turn([])} == {0}"
    usual = "import sys\nassert {turn([])} == {0} and sys.getrecursionlimit() == 1000"
    async with Provider("native") as provider:
        assert [await proven(CODE, test) for test in (usual, deep, usual)] == [True, True, True]
        assert [one.uses for one in provider._kept._idle] == [3]


@pytest.mark.parametrize(
    "setting", ["import numpy as np\nnp.seterr(all='raise')", "from numpy import seterr\nseterr(all='raise')"]
)
async def test_a_test_finds_no_setting_of_one_before_it(setting):
    pytest.importorskip("numpy")
    plain = "import numpy as np\nassert turn([]) == 0 and np.isinf(np.float64(1e308) * 10)"
    async with Provider("native"):
        assert await proven(CODE, f"{setting}\nassert turn([]) == 0 and {{turn([])}}")
        assert await proven(CODE, plain)


UNUSED = """
def first(items): return next(items)
def done(): pass
def numbers():
    yield 1
    done()
class Block:
    def __enter__(self): pass
    def __exit__(self, *_): done()
"""
ENDS = ["try:\n        yield 1\n    finally:\n        done()", "with Block():\n        yield 1", "yield from numbers()"]


@pytest.mark.parametrize("ends", ENDS)
async def test_a_generator_that_a_program_did_not_use_up_keeps_no_later_test_waiting(ends):
    """It calls the program as it ends, which may be when a later test frees memory."""
    test = f"def items():\n    {ends}\nassert {{first(items())}} == {{1}}"
    async with Provider("native") as provider:
        for _ in range(3):
            assert await proven(UNUSED, test)
        assert [one.uses for one in provider._kept._idle] == [3]
        assert await proven(CODE, "assert {len([[n] for n in range(300_000)]) + turn([])} == {300_000}")


PLAIN = "def turn(items):\n    return len(items)"
LEFT = ["def left():\n    try:\n        yield\n    finally:\n        print('left')", "async def left():\n    pass"]


@pytest.mark.parametrize("left", LEFT, ids=["generator", "coroutine"])
async def test_what_a_test_leaves_writes_nothing_into_the_output_of_the_next(left):
    """Python frees late what refers to itself."""
    starts = "next(kept[0])\n" if "yield" in left else ""
    leaves = f"{left}\nkept = [left()]\nkept.append(kept)\n{starts}assert {{turn([])}} == {{0}}"
    frees = "x = [[n] for n in range(90_000)]\nassert {turn([])} == {0}"
    async with Provider("native") as provider:
        assert await proven(PLAIN, leaves)
        async with interpreter_once() as interpreter:
            ran = await Prover([frees]).prove(Driven(interpreter, PLAIN, clock=Clock(5.0)), frees)
        assert (ran.exit_code, ran.stdout, ran.stderr) == (0, "", "")
        assert [one.uses for one in provider._kept._idle] == [2]


FORGED = """
import sys
sides = sys.modules['toolyard.sandboxes.inside.sides']
deeds = sys.modules['toolyard.sandboxes.inside.deeds']
def f(x): return iter([4])
"""
ARRAY = """
text = 'returned 0\\n["t3","n1","sU8000000","l1","sx",null,null]'
sides.Side.message = lambda *_: sides.Said(text)
"""
ITEMS = """
import numpy
deeds.Deeds.take = staticmethod(lambda *_: ([4, numpy.array(['x'], 'U8000000')], True, None))
"""
LARGE = {
    "long texts": ("def f(x): return 'x' * 900_000", "for n in range(40):\n    f(n)\nassert {f(0) != ''} == {True}"),
    "a large array": (FORGED + ARRAY, "class Kept:\n    value = f(1)\nassert {str(Kept) != ''} == {True}"),
    "items that nobody takes": (FORGED + ITEMS, "assert {next(f(1))} == {4}"),
}


@pytest.mark.thorough
@pytest.mark.parametrize("large", LARGE)
async def test_a_program_leaves_the_tests_of_the_next_their_memory(large):
    async with Provider("native") as provider:
        for _ in range(12):
            assert await proven(*LARGE[large])
        (kept,) = provider._kept._idle
        assert kept.uses == 12
        assert await proven(CODE, "x = [0] * 20_000_000\nassert {turn([])} == {0}")


async def test_a_test_finds_nothing_of_a_program_that_was_judged_before_it():
    """Not even of a program that could call and fill what its own test passed to it."""
    fills = "class Box: pass\ndef act(box, f):\n    box.answer = f([9] * 50)\n    return 1"
    looks = "def act(box, f):\n    return getattr(box, 'answer', 0) or len(f([]))"
    test = "class Box:\n    pass\nkept = []\nassert act(Box(), lambda xs: kept.extend(xs) or kept) == {}"
    async with Provider("native") as provider:
        assert await proven(fills, test.format("1"))
        (used,) = provider._kept._idle
        assert await proven(looks, test.format("0"))
        assert provider._kept._idle == [used]
        assert used.uses == 2


async def test_a_sandbox_for_tests_counts_as_ready_while_it_is_idle():
    async with Provider("native", ready=0) as provider:
        assert await proven(CODE, "assert {turn([])} == {0}")
        async with asyncio.timeout(30):
            while provider.count != (0, 1):  # wait for the program's own to end
                await asyncio.sleep(0.01)


async def test_a_sandbox_for_tests_ends_when_there_is_nothing_to_test():
    async with Provider("native") as provider:
        assert await proven(CODE, "assert {turn([])} == {0}")
        (used,) = provider._kept._idle
        async with asyncio.timeout(30):
            while len(provider._kept) or used.interpreter.alive:
                await asyncio.sleep(0.05)


async def test_a_sandbox_for_tests_that_was_killed_while_idle_is_replaced():
    async with Provider("native") as provider:
        assert await proven(CODE, "assert {turn([])} == {0}")
        (used,) = provider._kept._idle
        await used.interpreter.close()
        assert await proven(CODE, "assert {turn([])} == {0}")
        assert provider._kept._idle != [used]
