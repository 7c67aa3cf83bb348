"""Arithmetic with a reward that can be verified: the answer is a number, and it is right or it is not.

Shows: tasks that are generated and yet always the same, one tool with a plain typed parameter, and a grader that
accepts an answer the way models write it ("The answer is $1,250.00.", "3/4", "\\boxed{42}").

    toolyard serve examples/arithmetic.py
"""

import random
import re
import zlib
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from toolyard import Environment, Split, TextBlock, ToolOutput, tool

TASKS = {"train": 1000, "test": 100}


class Arithmetic(Environment):
    """Sums and word problems. One answer, one reward."""

    replayable = True  # the same calls lead to the same state, so a session can be forked or made again

    @classmethod
    def list_splits(cls) -> Sequence[Split]:
        return [Split(name="train", type="train"), Split(name="test", type="test")]

    @classmethod
    def list_tasks(cls, split: str) -> Sequence[dict[str, Any]]:
        return [make_task(split, number) for number in range(TASKS[split])]

    def get_prompt(self) -> str:
        return f"{self.task_spec['question']}\n\nWork it out, then call submit with the number."

    @tool
    def submit(self, answer: str) -> ToolOutput:
        """Hand in the answer. This ends the task.

        Args:
            answer: The number, for example 42, 12.50 or 3/4.
        """
        given = read_number(answer)
        wanted = Fraction(self.task_spec["answer"])
        if given is None:
            verdict = "There is no number in that answer."
        elif given == wanted:
            verdict = "Correct."
        else:
            verdict = f"Wrong: the answer is {self.task_spec['answer']}."
        return ToolOutput(blocks=[TextBlock(text=verdict)], reward=float(given == wanted), finished=True)


def make_task(split: str, number: int) -> dict[str, Any]:
    """The same task for the same split and number, in every process and on every machine."""
    dice = random.Random(f"{split}/{number}")
    while True:
        kind = dice.choice([expression, shopping, sharing, journey])
        question, answer = kind(dice)
        if split_of(question) == split:
            answer_text = f"{float(answer):.10g}"
            return {"id": f"{split}-{number}", "kind": kind.__name__, "question": question, "answer": answer_text}


def split_of(question: str) -> str:
    """The question itself decides, so that none is ever in both splits."""
    return "test" if zlib.crc32(question.encode()) % 8 == 0 else "train"


def expression(dice: random.Random) -> tuple[str, Fraction]:
    a, b, c = (dice.randint(2, 99) for _ in range(3))
    return dice.choice(
        [
            (f"What is {a} + {b} * {c}?", Fraction(a + b * c)),
            (f"What is ({a} - {b}) * {c}?", Fraction((a - b) * c)),
            (f"What is {a * b} / {b} - {c}?", Fraction(a - c)),
        ]
    )


def shopping(dice: random.Random) -> tuple[str, Fraction]:
    thing = dice.choice(["pencil", "notebook", "lamp", "basket"])
    count, cents, extra = dice.randint(2, 12), dice.randrange(25, 1000, 25), dice.randint(1, 20)
    question = (
        f"A {thing} costs ${cents / 100:.2f}. You buy {count} of them and pay ${extra}.00 for delivery. "
        f"How many dollars do you spend?"
    )
    return question, Fraction(count * cents, 100) + extra


def sharing(dice: random.Random) -> tuple[str, Fraction]:
    people, each, left = dice.randint(3, 30), dice.randint(2, 60), dice.randint(1, 30)
    question = (
        f"{people} friends pick {people * each + left} apples, keep {left} for the horse and share the rest equally. "
        f"How many apples does each of them get?"
    )
    return question, Fraction(each)


def journey(dice: random.Random) -> tuple[str, Fraction]:
    speed, quarters = dice.randint(30, 180), dice.randint(2, 60)
    question = f"A train goes {speed} km/h without stopping for {quarters * 15} minutes. How many kilometres is that?"
    return question, Fraction(speed * quarters, 4)


NUMBER = re.compile(
    r"""
    (?: (?<!\d) - )?                                       # a sign, but not the minus of 10-3
    (?: (?: \d{1,3}(?:,\d{3})+ | \d+ )(?:\.\d+)? | \.\d+ )  # 1,250.00 or 42 or .5
    (?: e[+-]?\d{1,2} )?                                   # 1e3
    (?: \s*/\s*\d+ )?                                      # 3/4
    """,
    re.VERBOSE | re.IGNORECASE,
)


def read_number(text: str) -> Fraction | None:
    """The last number in a text, whatever surrounds it."""
    found = NUMBER.findall(text[-100:].replace("−", "-"))
    if not found:
        return None
    above, _, below = found[-1].replace(",", "").partition("/")
    try:
        return Fraction(above.strip()) / Fraction(below.strip() or 1)
    except ZeroDivisionError:
        return None
