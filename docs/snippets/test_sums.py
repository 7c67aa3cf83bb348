import pytest
from sums import Sums

from toolyard import Client
from toolyard.client import ServerBusy, ToolCallFailed
from toolyard.testing import check_environment, running


@pytest.fixture(scope="module")
def sums():
    with running([Sums]) as server, Client(server.url) as client:
        yield client.environments.get("sums")


def test_it_holds_together():
    report = check_environment(Sums)
    assert report.ok, str(report)


def test_this_episode_reaches_the_end():
    report = check_environment(Sums, calls=[("submit", {"answer": 7})], split="train", index=3)
    assert report.ok, str(report)
    assert "rewards from 1 to 1" in str(report)


def test_the_right_answer_earns_the_reward(sums):
    with sums.session(split="train", index=3) as session:
        assert session.get_prompt()[0].text.startswith("What is 3 + 4?")
        output = session.call_tool("submit", {"answer": 7})
    assert (output.reward, output.finished) == (1.0, True)


def test_a_word_is_refused_and_the_episode_goes_on(sums):
    with sums.session(split="train", index=3) as session:
        with pytest.raises(ToolCallFailed) as refused:
            session.call_tool("submit", {"answer": "seven"})
        assert refused.value.reason == "bad_arguments"
        assert session.call_tool("submit", {"answer": 7}).reward == 1.0


def test_a_task_of_our_own(sums):
    with sums.session({"a": 20, "b": 22}) as session:
        assert session.call_tool("submit", {"answer": 42}).reward == 1.0


def test_a_server_that_is_full_says_so():
    with running([Sums], max_sessions=1) as server, Client(server.url, patience=1) as client:
        sums = client.environments.get("sums")
        with sums.session(split="train", index=0), pytest.raises(ServerBusy), sums.session(split="train", index=1):
            pass
