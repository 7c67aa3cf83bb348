"""The example that runs code: state is kept, code is stopped, and only the answer counts."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from toolyard import Client
from toolyard.client import Environment
from toolyard.loading import builtin_examples, load_targets
from toolyard.testing import check_environment, running

(path,) = (path for path in builtin_examples() if path.stem == "code_runner")
(environment,) = load_targets([str(path)]).environments
module = sys.modules[environment.__module__]

SOLUTIONS = {
    "revenue": "sum(int(r['units']) * int(r['cents']) for r in rows "
    "if r['city'] == {city!r} and r['goods'] == {goods!r})",
    "largest": "max(int(r['units']) * int(r['cents']) for r in rows if r['goods'] == {goods!r})",
    "best city": "max(sum(int(r['units']) for r in rows if r['city'] == c and r['goods'] == {goods!r}) "
    "for c in set(r['city'] for r in rows))",
}
"""Found from the file alone, as an agent must."""


@pytest.fixture(scope="module")
def served() -> Iterator[Environment]:
    with running([environment], sandbox_seconds=0.5) as server, Client(server.url) as client:
        yield client.environment("coderunner")


def test_every_kind_of_task_is_solved_with_what_python_says(served: Environment):
    solved = set()
    for task in served.get_task_range("train", 0, 8):
        with served.session(task) as session:
            session.call_tool("python", {"code": "import csv\nrows = list(csv.DictReader(open('orders.csv')))"})
            said = session.call_tool("python", {"code": SOLUTIONS[task.task_spec["kind"]].format(**task.task_spec)})
            assert said.metadata["isolation"].startswith("L3")
            output = session.call_tool("submit", {"answer": int(said.text)})
        assert (output.text, output.reward, output.finished) == ("Correct.", 1, True)
        solved.add(task.task_spec["kind"])
    assert solved == set(SOLUTIONS)


def test_code_that_fails_or_runs_on_is_told_and_costs_nothing(served: Environment):
    with served.session(split="test", index=0) as session:
        failed = session.call_tool("python", {"code": "x = 1\nx / 0"})
        assert failed.text.endswith("ZeroDivisionError: division by zero")
        endless = session.call_tool("python", {"code": "while True: pass"})
        assert endless.text.endswith("s: it took longer than it may]")
        assert endless.metadata["killed_by"] == "wall"
        assert session.call_tool("python", {"code": "x"}).text == "1"
        assert {failed.reward, endless.reward} == {None}
        output = session.call_tool("submit", {"answer": -1})
    assert (output.text, output.reward, output.finished) == ("Wrong.", 0, True)


def test_sessions_do_not_see_each_other(served: Environment):
    with served.session(split="test", index=0) as one, served.session(split="test", index=0) as other:
        one.call_tool("python", {"code": "secret = 1; open('note', 'w').write('x')"})
        assert "NameError" in other.call_tool("python", {"code": "secret"}).text
        assert other.call_tool("python", {"code": "import os; os.listdir()"}).text == "['orders.csv']"


def test_each_task_has_one_answer():
    for split, count in module.TASKS.items():
        tasks = environment.list_tasks(split)
        assert len(tasks) == count
        assert all(module.solve(task, module.make_orders(task)) >= 0 for task in tasks)


@pytest.mark.thorough
def test_it_passes_the_check_without_a_warning():
    report = check_environment(environment)
    assert report.ok, str(report)
    assert report.of("warning") == [], str(report)


def test_it_is_not_served_unless_it_is_named():
    assert environment.__name__ not in [each.__name__ for each in load_targets([]).environments]
