"""Answer a question about a file by running Python, in a sandbox that each session has to itself.

Shows: `uses_sandbox`, which makes the server prepare its isolation before it accepts requests, or refuse to start; a
sandbox that lives as long as the session, with a file in it and variables kept from call to call; code that a limit
stops, and a message about that for the model; and a reward that depends on the answer only, not on what was run.

    toolyard serve examples/code_runner.py

Without a target, `toolyard serve` leaves this example out: the others work on hosts that cannot isolate anything.
"""

import csv
import io
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from toolyard import Environment, TextBlock, ToolOutput, tool
from toolyard.sandboxes import Sandbox, open_sandbox, tool_output

CITIES = ["Aarhus", "Bergen", "Cork", "Dakar", "Esfahan", "Faro"]
GOODS = ["bolts", "cloth", "dates", "eggs", "flour"]
TASKS = {"train": 300, "test": 60}
Order = tuple[str, str, int, int]
"""City, goods, units, and the price of one in cents."""


class CodeRunner(Environment):
    """A file of orders, a Python interpreter, and a question with one right answer."""

    uses_sandbox = True
    sandbox: Sandbox | None = None

    @classmethod
    def list_splits(cls) -> Sequence[str]:
        return ["train", "test"]

    @classmethod
    def list_tasks(cls, split: str) -> Sequence[dict[str, Any]]:
        return [make_task(split, number) for number in range(TASKS[split])]

    async def setup(self) -> None:
        self.sandbox = await open_sandbox()
        await self.sandbox.write("orders.csv", as_csv(make_orders(self.task_spec)).encode())

    async def teardown(self) -> None:
        if self.sandbox is not None:
            await self.sandbox.close()

    def get_prompt(self) -> str:
        return (
            f"The file orders.csv has {self.task_spec['orders']} orders: city, goods, units, cents (the price of one "
            f"unit). {question(self.task_spec)}\n\n"
            f"Use python to find out, as often as you like: variables are kept. Then call submit."
        )

    @tool
    async def python(self, code: str) -> ToolOutput:
        """Run Python. It prints, and shows the value of the last line; variables and files are kept.

        Args:
            code: Any number of lines. The file is in the current directory.
        """
        assert self.sandbox is not None
        return tool_output(await self.sandbox.exec(code))

    @tool
    async def submit(self, answer: int) -> ToolOutput:
        """Hand in the answer. This ends the task.

        Args:
            answer: A whole number.
        """
        right = answer == solve(self.task_spec, make_orders(self.task_spec))
        verdict = "Correct." if right else "Wrong."
        return ToolOutput(blocks=[TextBlock(text=verdict)], reward=float(right), finished=True)


def make_task(split: str, number: int) -> dict[str, Any]:
    """The same task for the same split and number, in every process and on every machine."""
    dice = random.Random(f"{split}/{number}")
    return {
        "id": f"{split}-{number}",
        "kind": dice.choice(["revenue", "largest", "best city"]),
        "orders": dice.randint(200, 600),
        "city": dice.choice(CITIES),
        "goods": dice.choice(GOODS),
    }


def make_orders(task: Mapping[str, Any]) -> Sequence[Order]:
    dice = random.Random(task["id"])
    return [
        (dice.choice(CITIES), dice.choice(GOODS), dice.randint(1, 40), dice.randrange(5, 2000, 5))
        for _ in range(task["orders"])
    ]


def as_csv(orders: Sequence[Order]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([("city", "goods", "units", "cents"), *orders])
    return text.getvalue()


def question(task: Mapping[str, Any]) -> str:
    match task["kind"]:
        case "revenue":
            return f"For how many cents, in all, was {task['goods']} sold to {task['city']}?"
        case "largest":
            return f"How many cents did the dearest single order of {task['goods']} come to?"
        case _:
            return f"How many units of {task['goods']} went to the city that took the most units of it?"


def solve(task: Mapping[str, Any], orders: Sequence[Order]) -> int:
    wanted = [(city, units, cents) for city, goods, units, cents in orders if goods == task["goods"]]
    match task["kind"]:
        case "revenue":
            return sum(units * cents for city, units, cents in wanted if city == task["city"])
        case "largest":
            return max(units * cents for _, units, cents in wanted)
        case _:
            taken: Counter[str] = Counter()
            for city, units, _ in wanted:
                taken[city] += units
            return max(taken.values())
