"""What the client says and when it gives up, with no server and no clock but ours."""

from __future__ import annotations

import json

import pytest

from toolyard.client.errors import (
    AuthenticationFailed,
    ConnectionLost,
    RequestRefused,
    ServerBusy,
    ServerFailed,
    SessionGone,
    ToolCallFailed,
    ToolLost,
)
from toolyard.client.flow import PATIENCE, STRANGER, Peer
from toolyard.client.steps import SILENCE, WAITING, Answer, Ask, Broken, Listen, Sleep
from toolyard.client.stream import Event, Heard
from toolyard.client.talk import EnvironmentTalk, SessionTalk, list_environments

OK = '{"ok":true,"output":{"blocks":[],"metadata":null,"reward":1.0,"finished":true}}'
UNKNOWN = Heard([Event("error", "unknown task_id")])
CUT = Heard([], broken="ReadError")
LOST = Broken("ReadError: connection reset")
NOBODY = Broken("ConnectError: refused", sent=False)


class Drive:
    """Runs a flow: answers its steps from a script, and lets time pass as it sleeps."""

    def __init__(self, **known):
        self.now = 0.0
        self.peer = Peer(clock=lambda: self.now, **known)
        self.steps = []

    def run(self, flow, *outcomes):
        """Each outcome is sent back once, the last one again and again. A callable makes it from the step."""
        waiting = list(outcomes)
        step = next(flow)
        try:
            while True:
                if isinstance(step, Sleep):
                    assert step.seconds > 0
                    self.now += step.seconds
                    step = flow.send(None)
                    continue
                self.steps.append(step)
                outcome = waiting.pop(0) if len(waiting) > 1 else waiting[0]
                step = flow.send(outcome(step) if callable(outcome) else outcome)
        except StopIteration as done:
            return done.value

    def call(self, *outcomes, **how):
        return self.run(self.session().call_tool("go", {}, **how), *outcomes)

    def session(self):
        return SessionTalk(self.peer, "env", {}, sid="s")

    @property
    def ids(self):
        return [step.body.get("task_id") for step in self.steps if isinstance(step, Listen)]


def answer(status, body=None, **headers):
    return Answer(status, {name.replace("_", "-"): value for name, value in headers.items()}, json.dumps(body).encode())


def runs(step):
    """A server that takes the id of the client."""
    return Heard([Event("task_id", step.body["task_id"]), Event("end", OK)])


def cut_after_its_name(step):
    return Heard([Event("task_id", step.body["task_id"])], broken="ReadError")


# Calls.


def test_the_first_request_already_has_an_id_that_the_client_chose():
    drive = Drive()
    assert drive.call(runs).reward == 1.0
    assert len(drive.ids) == 1
    assert len(drive.ids[0]) == 32


@pytest.mark.parametrize("drop", [CUT, LOST, cut_after_its_name, answer(502), answer(504)])
def test_after_any_drop_the_same_call_is_asked_for(drop):
    drive = Drive()
    drive.call(drop, drop, runs)
    assert len(drive.ids) == 3
    assert len(set(drive.ids)) == 1


def test_two_calls_have_two_ids():
    drive = Drive()
    drive.call(runs)
    drive.call(runs)
    assert len(set(drive.ids)) == 2


def test_chunks_that_came_before_a_drop_are_not_joined_to_those_that_come_after():
    def cut(step):
        return Heard([Event("task_id", step.body["task_id"]), Event("chunk", OK[:10])], broken="ReadError")

    def whole(step):
        return Heard([Event("task_id", step.body["task_id"]), Event("chunk", OK[:20]), Event("end", OK[20:])])

    assert Drive().call(cut, whole).finished


def test_a_server_that_takes_no_ids_is_asked_for_one_of_its_own_once_per_client():
    drive = Drive()
    theirs = Heard([Event("task_id", "theirs"), Event("end", OK)])
    assert drive.call(UNKNOWN, theirs).reward == 1.0
    assert drive.ids[1:] == [None]
    drive.steps.clear()
    drive.call(theirs)
    assert drive.ids == [None]


def test_a_call_that_the_server_named_is_asked_for_by_that_name():
    drive = Drive(takes_ids=False)
    drive.call(Heard([Event("task_id", "theirs")], broken="ReadError"), Heard([Event("end", OK)]))
    assert drive.ids == [None, "theirs"]


@pytest.mark.parametrize("drop", [CUT, LOST, answer(502)])
def test_a_call_that_only_the_server_could_name_is_not_repeated_blindly(drop):
    drive = Drive(takes_ids=False)
    with pytest.raises(ToolLost) as caught:
        drive.call(drop, Heard([Event("task_id", "x"), Event("end", OK)]))
    assert caught.value.reason == "lost"
    assert len(drive.steps) == 1


@pytest.mark.parametrize("never_started", [NOBODY, answer(503), answer(429)])
def test_a_call_that_never_started_may_be_repeated_without_a_name(never_started):
    drive = Drive(takes_ids=False, answered=True)
    drive.call(never_started, Heard([Event("task_id", "x"), Event("end", OK)]))
    assert drive.ids == [None, None]


def test_silence_is_waited_out_while_the_call_has_no_name():
    drive = Drive(takes_ids=False)
    drive.call(Heard([Event("task_id", "x")], broken="ReadTimeout"), Heard([Event("end", OK)]))
    assert [step.silence for step in drive.steps] == [WAITING, SILENCE]


def test_an_id_that_may_have_been_used_is_never_given_up_for_another():
    drive = Drive()
    with pytest.raises(ToolLost):
        drive.call(CUT, UNKNOWN, runs)
    assert len(drive.steps) == 2


def test_a_result_that_is_no_longer_kept_is_lost_and_not_computed_again():
    drive = Drive(takes_ids=True)
    with pytest.raises(ToolLost):
        drive.call(UNKNOWN, runs)
    assert len(drive.steps) == 1


def test_an_id_of_the_caller_is_never_replaced():
    drive = Drive()
    with pytest.raises(ToolLost):
        drive.call(UNKNOWN, runs, call_id="mine")
    assert drive.ids == ["mine"]
    with pytest.raises(RequestRefused, match="leave call_id out"):
        Drive(takes_ids=False).call(runs, call_id="mine")


def test_a_server_that_names_calls_as_it_likes_is_taken_at_its_word():
    drive = Drive()
    drive.call(Heard([Event("task_id", "theirs")], broken="ReadError"), Heard([Event("end", OK)]))
    assert drive.ids[1] == "theirs"
    assert drive.peer.takes_ids is False


def test_a_tool_that_raises_these_very_words_is_a_tool_that_raised():
    with pytest.raises(ToolCallFailed) as caught:
        Drive().call(lambda step: Heard([Event("task_id", step.body["task_id"]), Event("error", "unknown task_id")]))
    assert caught.value.reason == "tool_raised"


def test_a_stream_that_always_breaks_is_given_up_in_bounded_time():
    drive = Drive(answered=True)
    with pytest.raises(ConnectionLost, match="again and again"):
        drive.call(cut_after_its_name)
    assert PATIENCE / 2 < drive.now <= PATIENCE
    assert len(drive.steps) < 60


def test_a_call_may_run_for_hours_behind_a_proxy_that_cuts_every_minute():
    drive = Drive()

    def cut_by_the_proxy(step):
        drive.now += 60
        return Heard([Event("task_id", step.body["task_id"])], lived=60, broken="RemoteProtocolError")

    assert drive.call(*[cut_by_the_proxy] * 100, runs).reward == 1.0
    assert drive.now > 6000


def test_a_server_that_takes_the_call_and_falls_silent_is_given_up():
    drive = Drive(answered=True)

    def silent(step):
        drive.now += step.silence
        return Heard([Event("task_id", step.body["task_id"])], lived=0.01, broken="ReadTimeout")

    with pytest.raises(ConnectionLost):
        drive.call(silent)
    assert drive.now < PATIENCE + 2 * SILENCE


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"error": "'x' is not a valid tool", "reason": "not_found"}, "no_such_tool"),
        ({"error": "'x' is not a valid tool"}, "no_such_tool"),
        ({"error": "Tool input validation error: []", "reason": "input_validation"}, "bad_arguments"),
        ({"error": "Tool input validation error: []"}, "bad_arguments"),
        ({"error": "Tool 'x' failed: no file"}, "tool_failed"),
        ({"error": "over", "reason": "episode_finished"}, "episode_finished"),
        ({"error": "new", "reason": "something_new"}, "something_new"),
    ],
)
def test_what_the_agent_did_has_a_reason(said, reason):
    with pytest.raises(ToolCallFailed) as caught:
        Drive().call(Heard([Event("end", json.dumps({"ok": False, **said}))]))
    assert caught.value.reason == reason
    assert str(caught.value) == said["error"]


@pytest.mark.parametrize("reason", ["timed_out", "overloaded", "lost", "cancelled"])
def test_what_the_infrastructure_did_is_never_the_agents_failure(reason):
    for event in (
        Event("end", json.dumps({"ok": False, "error": "sorry", "reason": reason})),
        Event("error", "sorry", reason),
    ):
        with pytest.raises(ToolLost) as caught:
            Drive().call(Heard([event]))
        assert caught.value.reason == reason


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", '{"ok":true}', '{"ok":true,"output":{"blocks":[{"type":"?"}]}}']
)
def test_a_result_that_makes_no_sense_is_the_servers_failure(text):
    with pytest.raises(ServerFailed):
        Drive().call(Heard([Event("end", text)]))


def test_a_call_answered_by_a_web_page_is_the_servers_failure():
    with pytest.raises(ServerFailed, match="no stream"):
        Drive().call(Answer(200, {"content-type": "text/html"}, b"<html>"))


def test_input_that_is_no_object_is_the_agents_failure_and_not_sent():
    drive = Drive()
    with pytest.raises(ToolCallFailed) as caught:
        drive.run(drive.session().call_tool("go", ["a"]), runs)
    assert caught.value.reason == "bad_arguments"
    assert not drive.steps


# Questions.


def test_a_question_is_asked_again_until_it_is_answered():
    drive = Drive(answered=True)
    assert drive.run(list_environments(drive.peer), LOST, NOBODY, answer(502), answer(200, ["a"])) == ["a"]
    assert len(drive.steps) == 4


def test_a_server_that_was_never_there_is_not_waited_for_long():
    drive = Drive()
    with pytest.raises(ConnectionLost, match="refused"):
        drive.run(list_environments(drive.peer), NOBODY)
    assert drive.now <= STRANGER


def test_a_server_that_answered_before_is_waited_for_while_it_restarts():
    drive = Drive(answered=True)
    with pytest.raises(ConnectionLost):
        drive.run(list_environments(drive.peer), NOBODY)
    assert drive.now > PATIENCE - 10


@pytest.mark.parametrize("seconds", [0, 3, 1000])
def test_patience_can_be_chosen(seconds):
    drive = Drive(answered=True, patience=seconds)
    with pytest.raises(ConnectionLost):
        drive.run(list_environments(drive.peer), NOBODY)
    assert seconds - 5 < drive.now <= seconds


def test_retry_after_is_honoured():
    drive = Drive()
    drive.run(list_environments(drive.peer), answer(503, retry_after="7"), answer(200, []))
    assert drive.now == 7


def test_a_server_that_stays_busy_is_busy_and_not_lost():
    drive = Drive()
    with pytest.raises(ServerBusy, match="all in use"):
        drive.run(list_environments(drive.peer), answer(503, {"detail": "all in use"}, retry_after="5"))
    assert PATIENCE - 10 < drive.now <= PATIENCE


def test_a_retry_after_beyond_our_patience_is_not_waited_for():
    drive = Drive()
    with pytest.raises(ServerBusy):
        drive.run(list_environments(drive.peer), answer(503, {"detail": "no"}, retry_after="86400"))
    assert drive.now == 0


@pytest.mark.parametrize("header", ["Wed, 21 Oct 2026 07:28:00 GMT", "", "-1", "²"])
def test_a_retry_after_that_is_no_number_is_ignored(header):
    drive = Drive()
    drive.run(list_environments(drive.peer), answer(503, {}, retry_after=header), answer(200, []))
    assert 0 < drive.now < 1


def test_a_session_that_is_still_starting_is_waited_for_longer_than_anything_else():
    drive = Drive()
    starting = answer(503, {"detail": "starting"}, x_backend_state="starting", retry_after="2")
    assert drive.run(drive.session().get_prompt(), *[starting] * 300, answer(200, [])) == []
    assert drive.now == 600
    with pytest.raises(ServerBusy):
        drive.run(drive.session().get_prompt(), starting)


@pytest.mark.parametrize(
    ("status", "error"),
    [(400, RequestRefused), (401, AuthenticationFailed), (403, AuthenticationFailed), (405, RequestRefused),
     (410, SessionGone), (413, RequestRefused), (422, RequestRefused), (500, ServerFailed)],
)  # fmt: skip
def test_a_refusal_is_not_repeated(status, error):
    drive = Drive()
    with pytest.raises(error, match="because"):
        drive.run(list_environments(drive.peer), answer(status, {"detail": "because"}))
    assert len(drive.steps) == 1


def test_the_most_helpful_words_are_shown():
    drive = Drive()
    with pytest.raises(RequestRefused, match="there are 'train'"):
        drive.run(
            EnvironmentTalk(drive.peer, "env").list_tasks("tset"),
            answer(400, {"detail": "Invalid split", "hint": "no split 'tset'; there are 'train'"}),
        )
    with pytest.raises(RequestRefused, match=r"^split: Field required; index: Bad$"):
        drive.run(
            list_environments(drive.peer),
            answer(
                422,
                {
                    "detail": [
                        {"loc": ["body", "split"], "msg": "Field required"},
                        {"loc": ["body", "index"], "msg": "Bad"},
                    ]
                },
            ),
        )
    with pytest.raises(RequestRefused, match="Session not found"):
        drive.run(list_environments(drive.peer), answer(400, {"error": "Session not found"}))
    with pytest.raises(RequestRefused, match='HTTP 418: "teapot"'):
        drive.run(list_environments(drive.peer), answer(418, "teapot"))


def test_a_redirect_says_where_to():
    drive = Drive()
    with pytest.raises(RequestRefused, match="https://there"):
        drive.run(list_environments(drive.peer), answer(301, {}, location="https://there"))


@pytest.mark.parametrize("body", [b"<html>", b"{}", b"3", b'{"tools": [3]}', b'{"tools": {"a": {}}}'])
def test_an_answer_that_makes_no_sense_is_the_servers_failure(body):
    drive = Drive()
    with pytest.raises(ServerFailed):
        drive.run(EnvironmentTalk(drive.peer, "env").list_tools(), Answer(200, {}, body))


# Sessions.


def test_a_session_is_opened_under_the_id_that_the_server_gives():
    for given in (
        answer(200, {"sid": "abc"}, content_type="application/json"),
        Answer(
            200,
            {"content-type": "text/event-stream; charset=utf-8"},
            b"event: task_id\r\ndata: abc\r\n\r\nevent: end\r\ndata:\r\n\r\n",
        ),
    ):
        drive = Drive()
        session = EnvironmentTalk(drive.peer, "env").session(
            None, split="train", index=3, secrets={"k": "v"}, toolset=None
        )
        drive.run(session.open(), given, answer(200, {"sid": "abc"}))
        assert drive.steps[1] == Ask(
            "POST", "/create", {"env_name": "env", "split": "train", "index": 3, "secrets": {"k": "v"}}, "abc"
        )
        assert session.sid == "abc"


def test_a_session_whose_creation_was_answered_into_the_void_is_there_all_the_same():
    drive = Drive()
    session = drive.session()
    session.sid = ""
    drive.run(session.open(), answer(200, {"sid": "abc"}), LOST, answer(400, {"detail": "Session already exists"}))
    assert session.sid == "abc"


def test_a_session_that_was_refused_is_not_closed():
    drive = Drive()
    session = drive.session()
    session.sid = ""
    with pytest.raises(RequestRefused):
        drive.run(session.open(), answer(200, {"sid": "abc"}), answer(400, {"detail": "Invalid split"}))
    drive.steps.clear()
    assert list(session.close()) == []


def test_a_session_that_cannot_be_closed_raises_nothing(caplog):
    drive = Drive(answered=True)
    drive.run(drive.session().close(), NOBODY)
    assert "was not closed" in caplog.text
    assert drive.now <= 10


def test_the_environment_of_a_task_is_named_with_it():
    from toolyard.client import Task

    session = EnvironmentTalk(Peer(), "env").session(
        Task("Other", {"a": 1}), split=None, index=None, secrets=None, toolset="shell"
    )
    assert session.create == {"env_name": "Other", "task_spec": {"a": 1}, "toolset_name": "shell"}


@pytest.mark.parametrize(
    "given",
    [{}, {"split": "train"}, {"index": 0}, {"task": {}, "split": "train", "index": 0}, {"task": {}, "index": 0}],
)
def test_a_session_is_about_one_thing(given):
    with pytest.raises(ValueError, match="either a task"):
        EnvironmentTalk(Peer(), "env").session(
            **{"task": None, "split": None, "index": None, "secrets": None, "toolset": None, **given}
        )


def test_a_session_that_is_not_open_says_how_to_open_it():
    with pytest.raises(RuntimeError, match=r"with environment\.session"):
        next(SessionTalk(Peer(), "env", {}).get_prompt())


@pytest.mark.parametrize("question", ["get_prompt", "get_messages", "list_tools", "terminal_tool"])
def test_a_session_that_the_server_does_not_have_is_gone(question):
    drive = Drive()
    with pytest.raises(SessionGone):
        drive.run(getattr(drive.session(), question)(), answer(404, {"detail": "Active environment not found"}))
    with pytest.raises(SessionGone):
        drive.call(answer(404, {"detail": "Active environment not found"}))
    with pytest.raises(SessionGone):
        drive.run(drive.session().score_group([]), answer(404, {"detail": "Active environment not found"}))


def test_a_server_without_messages_has_a_prompt():
    drive = Drive()
    block = {"type": "text", "text": "hello", "detail": None}
    (message,) = drive.run(drive.session().get_messages(), answer(404), answer(200, [block]))
    assert message.role == "user"
    assert message.blocks[0].text == "hello"


def test_a_server_without_tools_of_a_task_has_tools():
    drive = Drive()
    tool = {"name": "go", "description": "Go.", "input_schema": None, "new": "field"}
    listed = drive.run(drive.session().list_tools(), answer(404), answer(200, {}), answer(200, {"tools": [tool]}))
    assert [tool.name for tool in listed.tools] == ["go"]
    assert [step.path for step in drive.steps] == ["/env/task_tools", "/ping", "/env/tools"]


def test_an_environment_that_compares_nothing_is_not_a_session_that_is_gone():
    drive = Drive()
    with pytest.raises(RequestRefused, match="does not compare"):
        drive.run(drive.session().score_group([]), answer(404, {"detail": "x"}), answer(200, {}))


def test_the_terminal_tool_takes_the_message_under_the_name_it_has():
    for arg, input in (("text", {"text": "bye"}), (None, {})):
        drive = Drive()
        listed = {"tools": [], "terminal_tool": {"name": "last", "arg": arg, "description": ""}}
        drive.run(drive.session().call_terminal_tool("bye"), answer(200, listed), runs)
        assert drive.steps[1].body["name"] == "last"
        assert drive.steps[1].body["input"] == input


def test_an_environment_name_is_one_part_of_a_path():
    drive = Drive()
    drive.run(EnvironmentTalk(drive.peer, "a b/c?d").num_tasks("s"), answer(200, {"num_tasks": 3}))
    assert drive.steps[0].path == "/a%20b%2Fc%3Fd/num_tasks"
