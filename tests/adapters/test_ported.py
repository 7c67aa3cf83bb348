"""An environment written for openreward works here when nothing but its import lines is changed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from toolyard import Client
from toolyard.loading import load_targets
from toolyard.testing import check_environment, running

WRITTEN = Path(__file__).with_name("ported.py").read_text()


@pytest.fixture(scope="module")
def environments(tmp_path_factory) -> list[type]:
    lines = [line.replace("from openreward.environments", "from toolyard") for line in WRITTEN.splitlines()]
    changed = [new for old, new in zip(WRITTEN.splitlines(), lines, strict=True) if old != new]
    assert [line.partition(" import ")[0] for line in changed] == ["from toolyard", "from toolyard.types"]
    file = tmp_path_factory.mktemp("ported") / "ported_to_toolyard.py"
    file.write_text("\n".join(lines))
    return list(load_targets([str(file)]).environments)


@pytest.fixture(scope="module")
def client(environments) -> Iterator[Client]:
    with running(environments) as server:
        yield Client(server.url)


def names(tools):
    return [tool.name for tool in tools]


def test_a_tool_that_is_not_shared_is_listed_inside_a_session_only(client):
    geography = client.environments.get("geography")
    assert names(geography.list_tools()) == ["hand_in"]
    with geography.session(split="train", index=0) as session:
        assert session.get_prompt()[0].text == "Which is the tallest peak of the Alps?"
        assert names(session.list_tools()) == ["hand_in", "look_up"]
        found = session.call_tool("look_up", {"query": "tallest peak of the Alps"})
        assert (found.text, found.reward, found.finished) == ("Mont Blanc", None, False)
        done = session.call_tool("hand_in", {"answer": found.text})
        assert (done.text, done.reward, done.finished) == ("That is right.", 1.0, True)


@pytest.mark.parametrize(
    ("index", "tools"), [(0, ["hand_in", "pick"]), (1, ["hand_in", "look_up"]), (2, ["hand_in"])], ids=str
)
def test_tools_that_are_described_depend_on_the_task(client, index, tools):
    interfaces = client.environments.get("interfaces")
    assert names(interfaces.list_tools()) == ["hand_in"]
    with interfaces.session(split="train", index=index) as session:
        listed = session.list_tools()
        assert names(listed) == tools
        assert all(tool.input_schema["required"] for tool in listed)
        assert session.call_tool("hand_in", {"answer": "something else"}).reward == 0.0


def test_the_check_names_the_tools_that_nothing_runs(environments):
    geography, interfaces = environments
    assert check_environment(geography).ok
    report = str(check_environment(interfaces))
    assert "pick: list_task_tools() describes it, but nothing runs it" in report
