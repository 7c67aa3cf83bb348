"""The exam example: each kind of question comes with its own tools, and they really work."""

from __future__ import annotations

import pytest

from toolyard import Client
from toolyard.client import ToolCallFailed


def task_of(client: Client, kind: str):
    environment = client.environments.get("exam")
    return environment, next(task for task in environment.list_tasks("train") if task.task_spec["type"] == kind)


def test_only_submit_answer_is_there_before_a_task_is_chosen(client: Client):
    assert [tool.name for tool in client.environments.get("exam").list_tools()] == ["submit_answer"]


@pytest.mark.parametrize(
    ("kind", "tools"),
    [
        ("multiple_choice", ["submit_answer", "select_option"]),
        ("open_book", ["submit_answer", "search"]),
        ("closed_book", ["submit_answer"]),
    ],
)
def test_the_tools_depend_on_the_kind_of_question(client: Client, kind: str, tools: list[str]):
    environment, task = task_of(client, kind)
    with environment.session(task) as session:
        assert [tool.name for tool in session.list_tools()] == tools


def test_a_multiple_choice_question_is_answered_with_a_letter(client: Client):
    environment, task = task_of(client, "multiple_choice")
    with environment.session(task) as session:
        assert "B. nitrogen" in session.get_prompt()[0].text
        output = session.call_tool("select_option", {"option": "B"})
    assert (output.reward, output.finished) == (1, True)


def test_a_letter_that_is_no_option_is_refused_and_the_task_goes_on(client: Client):
    environment, task = task_of(client, "multiple_choice")
    with environment.session(task) as session:
        with pytest.raises(ToolCallFailed) as refused:
            session.call_tool("select_option", {"option": "E"})
        assert refused.value.reason == "bad_arguments"
        assert session.call_tool("select_option", {"option": "A"}).reward == 0


def test_an_open_book_question_is_answered_from_the_notes(client: Client):
    environment, task = task_of(client, "open_book")
    with environment.session(task) as session:
        found = session.call_tool("search", {"query": "who built the lighthouse"})
        assert found.reward is None
        assert not found.finished
        assert found.text.startswith("Lighthouse: ")
        assert session.call_tool("search", {"query": "zebra"}).text == "No note has any of these words."
        output = session.call_tool("submit_answer", {"answer": "ada brandt."})
    assert (output.reward, output.finished) == (1, True)


def test_a_closed_book_question_has_no_search(client: Client):
    environment, task = task_of(client, "closed_book")
    with environment.session(task) as session:
        with pytest.raises(ToolCallFailed) as refused:
            session.call_tool("search", {"query": "hexagon"})
        assert refused.value.reason == "no_such_tool"
        assert session.call_tool("submit_answer", {"answer": "6"}).reward == 1
