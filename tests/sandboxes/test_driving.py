"""Driving a program from outside: plain data goes in and comes out, and one clock counts for all sandboxes together."""

from __future__ import annotations

import asyncio

import pytest

from toolyard.sandboxes import Opaque, ProgramEnded, ProgramRaised, Provider, driven, open_sandbox
from toolyard.sandboxes.crossing import Prover
from toolyard.sandboxes.driving import Clock, Driven
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


async def test_statements_share_a_sandbox_until_one_does_not_pass_if_they_leave_nothing_in_it():
    """So what a statement changes, or lets go on after its end, is not there for the next."""
    neat = "a = {turn([])}\nassert a == {0}"
    fails = "assert abs(turn([1])) == 5"
    leaves = "import sys\nsys.argv[1:] = ['left']\nassert owner_of(Account('ann')) == 'ann'"
    finds = "import sys\nassert sys.argv[1:] == ['left'] and turn([]) == 0"
    imports = "import math\nassert {turn([])} == {int(math.sin(0))}"
    prover = Prover([neat, fails, leaves, finds])
    used = []

    async def passes(test: str) -> bool:
        async with interpreter_once() as interpreter:
            ran = await prover.prove(Driven(interpreter, CODE, clock=Clock(5.0)), test)
        used.append(prover._interpreter)
        return not ran.exit_code

    async with interpreter_once() as interpreter:
        program = Driven(interpreter, CODE, clock=Clock(60.0))
        keeping = asyncio.ensure_future(prover.prove(program, "assert wait(60) is None"))  # under way all the time
        assert [await passes(test) for test in (neat, leaves, imports, finds, neat)] == [True, True, True, False, True]
        assert len({*used}) == 1
        assert [await passes(test) for test in (fails, neat)] == [False, True]
        assert used[-2] is None
        keeping.cancel()
        await asyncio.wait((keeping,))
    assert prover._interpreter is None
