"""The maths example: the right number earns 1 however it is written, and tasks never change."""

from __future__ import annotations

import re
import sys
from fractions import Fraction

import pytest

from toolyard import Client
from toolyard.loading import builtin_examples, load_targets

(environment,) = load_targets([str(builtin_examples()[0])]).environments
read_number = sys.modules[environment.__module__].read_number


def solve(question: str) -> Fraction:
    """Work the answer out from the question alone, as an agent must."""
    numbers = [Fraction(number) for number in re.findall(r"\d+(?:\.\d+)?", question)]
    if question.startswith("What is"):
        return Fraction(eval(question.removeprefix("What is ").removesuffix("?")))
    if "dollars" in question:
        price, count, delivery = numbers
        return price * count + delivery
    if "apples" in question:
        people, total, left = numbers
        return (total - left) / people
    speed, minutes = numbers
    return speed * minutes / 60


def test_every_kind_of_task_can_be_solved_from_its_question(client: Client):
    environment = client.environments.get("arithmetic")
    solved = set()
    for task in environment.get_task_range("train", 0, 40):
        with environment.session(task) as session:
            question = session.get_prompt()[0].text.partition("\n")[0]
            output = session.call_tool("submit", {"answer": f"{float(solve(question)):.2f}"})
        assert (output.reward, output.finished, output.text) == (1, True, "Correct."), question
        solved.add(task.task_spec["kind"])
    assert solved == {"expression", "shopping", "sharing", "journey"}


def test_a_wrong_answer_and_no_answer_earn_nothing_and_end_the_task(client: Client):
    environment = client.environments.get("arithmetic")
    for answer, said in (("-1", "Wrong: the answer is "), ("no idea", "There is no number")):
        with environment.session(split="test", index=0) as session:
            output = session.call_tool("submit", {"answer": answer})
        assert (output.reward, output.finished) == (0, True)
        assert output.text.startswith(said)


def test_the_splits_share_no_question_and_tasks_do_not_change(client: Client):
    environment = client.environments.get("arithmetic")
    train, test = (
        {task.task_spec["question"] for task in environment.list_tasks(split)} for split in ("train", "test")
    )
    assert not train & test
    assert environment.get_task("train", 0).task_spec["question"] == "What is (99 - 37) * 79?"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("42", 42),
        ("The answer is $1,250.00.", 1250),
        ("\\boxed{42}", 42),
        ("x = -7", -7),
        ("10-3", 3),
        ("−3", -3),
        ("3/4", Fraction(3, 4)),
        (".5 km", Fraction(1, 2)),
        ("1e3", 1000),
        ("12.50 dollars!", Fraction(25, 2)),
        ("1/0", None),
        ("none", None),
        ("", None),
        ("9" * 100_000, int("9" * 100)),
    ],
)
def test_a_number_is_read_however_it_is_written(text: str, number: object):
    assert read_number(text) == number
