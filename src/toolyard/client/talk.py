"""The requests to a server, an environment and a session. Each is a flow."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal
from urllib.parse import quote

from toolyard.client import answers
from toolyard.client.answers import read
from toolyard.client.errors import ClientError, RequestRefused, ServerFailed, SessionGone, ToolCallFailed
from toolyard.client.flow import Peer, ask, follow
from toolyard.client.outcome import SessionOutcome
from toolyard.client.steps import SILENCE, WAITING, Answer, Ask, Flow, Listen
from toolyard.core.messages import GroupCandidate, GroupScore, Message
from toolyard.core.output import Block, JsonObject, ToolOutput
from toolyard.core.tool import ListToolsOutput, TerminalToolSpec, ToolSpec

log = logging.getLogger("toolyard.client")

_SAID_MOST = 32_000
"""Characters of a header: servers bound the head of a request."""

CLOSING = 90.0
"""Seconds to wait until a session is closed: its teardown() is over by then."""


@dataclass(frozen=True, slots=True)
class Task:
    """A task as an environment lists it: the author's own JSON, and the environment's name."""

    environment_name: str
    task_spec: JsonObject


def list_environments(peer: Peer) -> Flow[list[str]]:
    return read((yield from ask(peer, Ask("GET", "/list_environments"))), answers.names)


@dataclass(frozen=True, slots=True)
class EnvironmentTalk:
    """The requests to an environment that need no session."""

    peer: Peer
    name: str

    def list_tools(self) -> Flow[ListToolsOutput]:
        return read((yield from self._ask("GET", "tools")), answers.tools)

    def search_tools(self, question: str, top_k: int) -> Flow[list[ToolSpec]]:
        answer = yield from self._ask("POST", "search_tools", {"question": question, "top_k": top_k})
        return read(answer, lambda said: [ToolSpec.model_validate(spec) for spec in said["tools"]])

    def list_splits(self) -> Flow[list[str]]:
        return read((yield from self._ask("GET", "splits")), answers.splits)

    def list_tasks(self, split: str) -> Flow[list[Task]]:
        return read((yield from self._ask("POST", "tasks", {"split": split})), self._tasks)

    def num_tasks(self, split: str) -> Flow[int]:
        return read((yield from self._ask("POST", "num_tasks", {"split": split})), lambda said: int(said["num_tasks"]))

    def get_task(self, split: str, index: int) -> Flow[Task]:
        answer = yield from self._ask("POST", "task", {"split": split, "index": index})
        return read(answer, lambda said: Task(said.get("env_name") or self.name, said["task"]))

    def get_task_range(self, split: str, start: int | None, stop: int | None) -> Flow[list[Task]]:
        body = {"split": split, "start": start, "stop": stop}
        return read((yield from self._ask("POST", "task_range", body)), self._tasks)

    def session(
        self,
        task: Task | JsonObject | None,
        *,
        split: str | None,
        index: int | None,
        secrets: Mapping[str, str] | None,
        toolset: str | None,
        run: str = "",
        labels: Mapping[str, str] | None = None,
    ) -> SessionTalk:
        if (task is None) == (split is None and index is None) or (split is None) != (index is None):
            raise ValueError("a session is about either a task, or a split and an index in it")
        name = task.environment_name if isinstance(task, Task) else self.name
        body: dict[str, Any] = {"env_name": name}
        if task is None:
            body |= {"split": split, "index": index}
        else:
            body["task_spec"] = dict(task.task_spec if isinstance(task, Task) else task)
        if secrets:
            body["secrets"] = dict(secrets)
        if toolset is not None:
            body["toolset_name"] = toolset
        return SessionTalk(self.peer, name, body, origin_headers(run, labels or {}))

    def _ask(self, method: Literal["GET", "POST"], endpoint: str, body: JsonObject | None = None) -> Flow[Answer]:
        return (yield from ask(self.peer, Ask(method, path(self.name, endpoint), body)))

    def _tasks(self, said: JsonObject) -> list[Task]:
        return [Task(said.get("env_name") or self.name, spec) for spec in said["tasks"]]


@dataclass(frozen=True, slots=True)
class AgentUrl:
    """Lets an agent use one session, and nothing else. `str()` gives the URL; `repr()`, which logs show, leaves it
    out."""

    url: str = field(repr=False)
    """The address for MCP."""
    token: str = field(repr=False)
    expires_in: float
    """Seconds until it expires; it also ends with the session."""

    def __str__(self) -> str:
        return self.url


@dataclass(slots=True)
class SessionTalk:
    """One session from open to close, with all its state."""

    peer: Peer
    environment: str
    create: JsonObject
    origin: Mapping[str, str] = field(default_factory=dict)
    """Headers that name the run and the labels of its episode."""
    sid: str = ""
    """Its id; empty unless the session is open, or may be."""
    left: str = ""
    """The id that it had when it was last closed."""
    listed: ListToolsOutput | None = None
    forked_by: str = ""
    """How it was forked from another session, if it was: "process", "hook" or "replay"."""
    entered: bool = True
    """False for a fork, which is open when it is made, until its block is entered."""

    def check_closed(self) -> None:
        if self.sid and self.entered:
            raise RuntimeError("this session is open already; make another one with environment.session(…)")

    def open(self) -> Flow[None]:
        if not self.entered:
            self.entered = True
            return
        self.listed = None
        self.sid = answers.session_id((yield from ask(self.peer, Ask("POST", "/create_session", {}))))
        answer = yield from ask(self.peer, Ask("POST", "/create", self.create, self.sid, headers=self.origin))
        # No other client has this id: if it is taken, an earlier try succeeded and only its answer was lost.
        if answer.status != 200 and answers.detail(answer) != "Session already exists":
            self.sid = ""
            raise answers.refusal(answer)

    def close(self) -> Flow[None]:
        """Close the session. Raises nothing: a caller could do nothing, and the server closes idle sessions."""
        sid, self.sid = self.sid, ""
        self.left = sid or self.left
        try:
            for endpoint in ("/delete", "/delete_session") if sid else ():
                answer = yield from ask(self.peer, Ask("POST", endpoint, None, sid, CLOSING), most=10)
                if answer.status != 200:
                    raise answers.refusal(answer)
        except ClientError as error:
            log.warning("session %s was not closed; the server closes it when it is idle: %s", sid, error)

    def get_prompt(self) -> Flow[list[Block]]:
        return read(self._inside((yield from self._ask("prompt"))), answers.blocks)

    def get_messages(self) -> Flow[list[Message]]:
        answer = yield from self._ask("messages")
        if answer.status != 404:
            return read(answer, lambda said: [Message.model_validate(message) for message in said])
        return [Message(role="user", blocks=(yield from self.get_prompt()))]  # not every server has messages

    def list_tools(self) -> Flow[ListToolsOutput]:
        answer = yield from self._ask("task_tools")
        if answer.status == 404:
            yield from self._check_alive()
            answer = yield from self._ask("tools")  # not every server has tools of one task
        self.listed = read(answer, answers.tools)
        return self.listed

    def terminal_tool(self) -> Flow[TerminalToolSpec | None]:
        listed = self.listed or (yield from self.list_tools())
        return listed.terminal_tool

    def call_terminal_tool(self, message: str) -> Flow[ToolOutput]:
        terminal = yield from self.terminal_tool()
        if terminal is None:
            raise RequestRefused(f"{self.environment!r} has no terminal tool")
        return (yield from self.call_tool(terminal.name, {terminal.arg: message} if terminal.arg else {}))

    def call_tool(self, name: str, input: JsonObject, call_id: str | None = None, said: str = "") -> Flow[ToolOutput]:
        if not isinstance(input, Mapping):  # a model may write anything
            raise ToolCallFailed("bad_arguments", f"the input of a tool is an object, not {input!r}")
        result = yield from self._follow("call", {"name": name, "input": input}, call_id, said_headers(said))
        if isinstance(result, Answer):
            raise self._not_taken(self._inside(result))
        return answers.output(result)

    def score_group(self, candidates: Sequence[GroupCandidate]) -> Flow[list[GroupScore]]:
        body = {"candidates": [candidate.model_dump() for candidate in candidates]}
        result = yield from self._follow("score_group", body, None)
        if isinstance(result, str):
            return answers.parsed(result, answers.scores)
        if result.status == 404:
            yield from self._check_alive()
            raise RequestRefused(f"{self.environment!r} does not compare candidates", 404)
        raise self._not_taken(result)

    def outcome(self) -> Flow[SessionOutcome]:
        """The outcome of the session, while it is open and for a while after it was closed."""
        sid = self.sid or self.left or self._open_sid()
        answer = yield from ask(self.peer, Ask("GET", f"/sessions/{quote(sid, safe='')}/outcome"))
        if answer.status == 404:
            raise SessionGone(f"the server knows of no outcome of session {sid}: {answers.detail(answer)}")
        return read(answer, SessionOutcome.of)

    def fork(self, count: int) -> Flow[list[SessionTalk]]:
        """Fork the session. If the answer is lost and we ask again, the server closes the first forks when they are
        idle."""
        step = Ask("POST", path(self.environment, "fork"), {"count": count}, self._open_sid(), WAITING)
        answer = self._inside((yield from ask(self.peer, step)))
        ids, how = read(answer, lambda said: ([answers.sid(one) for one in said["sids"]], str(said["strategy"])))
        return [replace(self, sid=sid, forked_by=how, entered=False) for sid in ids]

    def agent_url(self, expires_in: float | None) -> Flow[AgentUrl]:
        """If the answer is lost and the client asks again, an unused token is left until the session is over."""
        body = {} if expires_in is None else {"expires_in": expires_in}
        step = Ask("POST", path(self.environment, "agent"), body, self._open_sid())
        answer = self._inside((yield from ask(self.peer, step)))
        return read(answer, lambda said: AgentUrl(str(said["url"]), str(said["token"]), float(said["expires_in"])))

    def revoke_agents(self, agent: AgentUrl | None) -> Flow[int]:
        body = {} if agent is None else {"token": agent.token}
        step = Ask("DELETE", path(self.environment, "agent"), body, self._open_sid())
        return read(self._inside((yield from ask(self.peer, step))), lambda said: int(said["revoked"]))

    def pack(self, folder: str) -> Flow[bytes]:
        answer = yield from self._with_files("download_files", {"path": folder})
        return answer.body

    def unpack(self, archive: bytes, folder: str) -> Flow[None]:
        yield from self._with_files("upload_files", {"path": folder, "archive": base64.b64encode(archive).decode()})

    def _with_files(self, endpoint: str, body: JsonObject) -> Flow[Answer]:
        answer = yield from ask(self.peer, Ask("POST", path(self.environment, endpoint), body, self._open_sid()))
        if answer.status == 404:
            yield from self._check_alive()
            raise RequestRefused(f"the server of {self.environment!r} gives no access to files", 404)
        if answer.status != 200:
            raise answers.refusal(answer)
        return answer

    def _ask(self, endpoint: str) -> Flow[Answer]:
        return (yield from ask(self.peer, Ask("GET", path(self.environment, endpoint), None, self._open_sid())))

    def _follow(
        self, endpoint: str, body: JsonObject, call_id: str | None, headers: Mapping[str, str] = {}
    ) -> Flow[Answer | str]:
        step = Listen(path(self.environment, endpoint), body, self._open_sid(), SILENCE, headers)
        return (yield from follow(self.peer, step, call_id))

    def _open_sid(self) -> str:
        if not self.sid:
            raise RuntimeError("this session is not open; use it inside `with environment.session(…) as session`")
        return self.sid

    def _inside(self, answer: Answer) -> Answer:
        """Check the answer to a request that every open session answers. Raises `SessionGone` for a 404."""
        if answer.status == 404:
            raise SessionGone(f"the server has no session {self.sid} any more")
        return answer

    def _check_alive(self) -> Flow[None]:
        self._inside((yield from ask(self.peer, Ask("POST", "/ping", None, self._open_sid()))))

    def _not_taken(self, answer: Answer) -> ClientError:
        if answer.status == 200:
            return ServerFailed(f"a call was answered by something that is no stream of events: {answer.body[:200]!r}")
        return answers.refusal(answer)


def origin_headers(run: str, labels: Mapping[str, str]) -> Mapping[str, str]:
    """Headers by which a server that records episodes tells them apart."""
    if not (run.isascii() and run.isprintable()):
        raise ValueError(
            f"the name of a run is sent in a header, which {run!r} cannot be: write it in ASCII, on one line"
        )
    headers = {"X-Toolyard-Run": run} if run else {}
    return {**headers, "X-Toolyard-Labels": json.dumps(dict(labels))} if labels else headers


def said_headers(said: str) -> Mapping[str, str]:
    """What a model wrote beside a call, as one header: servers that do not know it ignore it."""
    if not said:
        return {}
    text = _quoted(said)
    while len(text) > _SAID_MOST:
        said = said[: len(said) * _SAID_MOST // len(text) - 2]
        text = _quoted(f"{said}…")
    return {"X-Toolyard-Said": text}


def _quoted(text: str) -> str:
    return quote(text, safe="/!?,.:;()*+-=", errors="replace")


def path(environment: str, endpoint: str) -> str:
    return f"/{quote(environment, safe='')}/{endpoint}"
