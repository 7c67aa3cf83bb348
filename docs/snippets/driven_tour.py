"""Judge a program by calling its functions from outside: what is expected never enters its sandbox."""

import asyncio

from toolyard.sandboxes import Opaque, ProgramEnded, ProgramRaised, close_sandboxes, driven

WRITTEN_BY_A_MODEL = """
class Account:
    def __init__(self, balance):
        self.balance = balance
    def pay(self, amount):
        if amount > self.balance:
            raise ValueError("too little")
        self.balance -= amount

def unique(numbers):
    numbers[:] = sorted(set(numbers))
    return len(numbers)

class Anything:
    def __eq__(self, other):
        return True

def cheat():
    return Anything()
"""


async def main() -> None:
    async with driven(WRITTEN_BY_A_MODEL, seconds=5) as program:
        numbers = [3, 1, 3]
        print(await program.call("unique", numbers), numbers)  # changed in place, as it would be there
        account = await program.call("Account", balance=10)
        await program.method(account, "pay", 4)
        print(isinstance(account, Opaque), await program.get(account, "balance"))
        try:
            await program.method(account, "pay", 100)
        except ProgramRaised as error:
            print(error.name, error.given)
        print(await program.call("cheat") == 42)
        try:
            await program.call("exit")
        except ProgramEnded as error:
            print(error)
    await close_sandboxes()


asyncio.run(main())
