"""A session over each wire, in the same four words, so that a test states a behaviour once for all of them.

A class reads its wire's answers strictly: it fails on a status, a key or a value that the wire does not have, and so
fixes how that wire encodes a result. To test one more wire, write its class and put it into `DIALECTS`.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, Self

from websockets.exceptions import ConnectionClosed

from tests.wires import mcp_wire, openenv_wire, toolserver_wire, verl_wire
from tests.wires.wire import Answer, H, Wire, call_body, strict_json

Kind = Literal["ok", "failed", "lost", "over"]
"""The tool answered; the agent made a mistake and reads about it; the infrastructure lost the call; no session."""


@dataclass(frozen=True)
class Came:
    """The outcome of a call."""

    kind: Kind
    text: str
    reward: float | None = None
    finished: bool = False
    reason: str = ""
    """Why it was lost."""


class Refused(Exception):
    """The server opened no session, and gave the reason."""


class Dialect(Protocol):
    """A client with one session."""

    name: ClassVar[str]
    tells_exceptions: ClassVar[bool] = True
    """Whether the agent reads an exception's message under default settings."""

    named: Mapping[str, float] | None
    """The named rewards of the last call."""

    def __init__(self, url: str, **more: Any) -> None: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *ended: object) -> None: ...
    async def open(self, environment: str, task: Mapping[str, Any]) -> None: ...
    async def call(self, tool: str, **arguments: Any) -> Came: ...
    async def vanish(self) -> None:
        """Send nothing more, and leave the connections open."""

    async def close(self) -> None: ...


class Ors(Wire):
    name = "ors"
    tells_exceptions = True
    named: Mapping[str, float] | None = None

    def __init__(self, url: str, **more: Any) -> None:
        super().__init__(url, **more)
        self._sid, self._environment = f"s-{uuid.uuid4()}", ""

    async def open(self, environment: str, task: Mapping[str, Any]) -> None:
        self._environment = environment
        response = await self.post("/create", headers=H(self._sid), json={"env_name": environment, "task_spec": task})
        if response.status_code != 200:
            raise Refused(response.json()["detail"])

    async def call(self, tool: str, **arguments: Any) -> Came:
        body = call_body(tool, arguments)
        response = await self.post(f"/{self._environment}/call", headers=H(self._sid), json=body)
        if response.status_code != 200:
            return Came("over", response.json()["detail"])
        answer = Answer.of(response)
        if answer.names[-1] == "error":
            reason = next((line[9:] for line in response.text.splitlines() if line.startswith(": reason ")), "")
            return Came("lost" if reason else "failed", answer.error, reason=reason)
        return self._read(answer)

    def _read(self, answer: Answer) -> Came:
        if not answer.result["ok"]:
            assert answer.failure.keys() - {"reason", "metadata"} == {"ok", "error"}
            reason = answer.failure.get("reason", "")
            return Came("lost" if reason == "timed_out" else "failed", answer.failure["error"], reason=reason)
        output = answer.output
        assert output.keys() == {"blocks", "metadata", "reward", "finished"}
        self.named = (output["metadata"] or {}).get("rewards")
        return Came("ok", answer.text, output["reward"], output["finished"])

    async def vanish(self) -> None: ...

    async def close(self) -> None:
        await self.end(self._sid)


class Verl(verl_wire.Trainer):
    name = "verl"
    tells_exceptions = True
    named: Mapping[str, float] | None = None

    def __init__(self, url: str, **more: Any) -> None:
        super().__init__(url, **more)
        self._trajectory, self._about = uuid.uuid4().hex, {}

    async def open(self, environment: str, task: Mapping[str, Any]) -> None:
        """A trajectory begins with its first action, and an empty one calls no tool."""
        self._about = {"environment": environment, "task_spec": dict(task)}
        seen = await self.act(self._trajectory, "", self._about)
        if seen.done:
            assert not seen.valid
            assert seen.observation.get("reward") is None
            raise Refused(seen.observation["error"])

    async def call(self, tool: str, **arguments: Any) -> Came:
        seen = await self.act(self._trajectory, verl_wire.call(tool, **arguments), self._about)
        told = seen.observation if isinstance(seen.observation, dict) else {"obs": seen.observation}
        if "error" in told:
            assert told.keys() == {"obs", "error", "reason", "retryable", "reward"}
            assert (told["obs"], told["retryable"], told["reward"]) == (told["error"], True, None)
            assert (seen.done, seen.valid) == (True, False)
            return Came("lost", told["error"], reason=told["reason"])
        if told == {"obs": ""} and not seen.valid:
            return Came("failed", "", finished=seen.done)  # a text that calls no tool of the session
        text = told["obs"].removeprefix("\n<tool_response>\n").removesuffix("\n</tool_response>\n")
        assert verl_wire.answered(text) == told["obs"], told
        if not seen.valid or text.startswith(f"Tool {tool!r} failed: "):  # a valid call, whose error the agent reads
            return Came("failed", text, finished=seen.done)
        self.named = told.get("rewards")
        return Came("ok", text, told.get("reward"), seen.done)

    async def vanish(self) -> None: ...

    async def close(self) -> None:
        await self.finish(self._trajectory)


class ToolServer(toolserver_wire.Node):
    name = "toolserver"
    tells_exceptions = True
    named: Mapping[str, float] | None = None

    async def open(self, environment: str, task: Mapping[str, Any]) -> None:
        response = await self.post("/get_cookies", json={"environment": environment, "task_spec": task})
        if response.status_code != 200:
            raise Refused(response.json()["detail"])

    async def call(self, tool: str, **arguments: Any) -> Came:
        response = await self.asked(tool, **arguments)
        answer = strict_json(response.content)
        match response.status_code:
            case 200:
                return self._read(answer)
            case 500 if "reason" in answer:
                assert answer.keys() == {"detail", "reason", "retryable"}
                assert answer["retryable"] is True
                return Came("lost", answer["detail"], reason=answer["reason"])
            case 404 | 500:
                assert answer.keys() == {"detail"}
                return Came("failed", answer["detail"])
            case status:
                assert status in (403, 503)
                return Came("over", answer["detail"])

    def _read(self, answer: Any) -> Came:
        match answer:
            case str():
                return Came("ok", answer)
            case {"type": "composite", "data": [said, {"type": "simple", "data": {"reward": reward, **more}}]}:
                self.named = more.pop("rewards", None)
                return Came("ok", self._text(said), reward, **more)
        raise AssertionError(f"what a ToolServer does not answer: {answer}")

    def _text(self, said: Any) -> str:
        match said:
            case str():
                return said
            case {"type": "composite", "data": [*blocks]}:
                return "\n".join(map(self._text, blocks))
        raise AssertionError(f"what a ToolServer does not answer: {said}")

    async def vanish(self) -> None: ...

    async def close(self) -> None:
        await self.answer("/release_session")


class Mcp(Ors):
    """A session that the trainer opens over ORS and an agent plays over MCP. The trainer reads the outcome."""

    name = "mcp"
    tells_exceptions = False

    async def call(self, tool: str, **arguments: Any) -> Came:
        headers = {"Accept": mcp_wire.ACCEPT, "MCP-Protocol-Version": mcp_wire.HANDSHAKE}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
        told = mcp_wire.Told.of(await self.post(f"/mcp/s/{self._sid}", headers=headers, json=body))
        if "result" in told.answer:
            return await self._came(told.result)
        error = told.error
        match error["code"]:
            case -32000:
                assert error["data"].keys() == {"reason", "retryAfter"}
                kind: Kind = "over" if error["data"]["reason"] == "failed" else "lost"
                return Came(kind, error["message"], reason=error["data"]["reason"])
            case -32600:
                assert told.status == 404
                return Came("over", error["message"])
            case code:
                assert (told.status, code) in [(200, -32602), (200, -32603)]
                return Came("failed", error["message"])

    async def _came(self, result: dict[str, Any]) -> Came:
        assert result.keys() - ({"_meta"} if result["isError"] else set()) == {"content", "isError"}
        text = "".join(block["text"] for block in result["content"])
        outcome = (await self.get(f"/sessions/{self._sid}/outcome")).json()
        if result["isError"]:  # after a timeout, only the trainer reads that the agent is not to blame
            late = outcome["failure"] == {"reason": "timed_out", "retryable": True}
            return Came("lost", text, reason="timed_out") if late else Came("failed", text)
        return Came("ok", text, outcome["rewards"][-1], outcome["finished"])


class OpenEnv(openenv_wire.Player):
    """One socket, on which the trainer resets and steps."""

    name = "openenv"
    tells_exceptions = True
    _is_calling = False
    named: Mapping[str, float] | None = None

    async def open(self, environment: str, task: Mapping[str, Any]) -> None:
        self.path = f"/openenv/{environment}/ws"
        try:
            seen = await self.reset(task_spec=dict(task))
        except openenv_wire.Error as error:
            raise Refused(error.message) from None
        assert (seen.reward, seen.done) == (None, False)
        assert seen.observation.keys() == {"metadata", "prompt"}

    async def call(self, tool: str, **arguments: Any) -> Came:
        self._is_calling = True
        try:
            seen = await self.step(tool, **arguments)
        except openenv_wire.Error as error:
            return lost(error)
        except openenv_wire.Closed:
            return Came("over", "")
        finally:
            self._is_calling = False
        assert seen.observation.keys() == {"metadata", "tool_name", "result", "error"}
        if (error := seen.observation["error"]) is None:
            self.named = (seen.metadata or {}).get("rewards")
            return Came("ok", seen.observation["result"]["data"], seen.reward, seen.done)
        assert error.keys() == {"error_type", "message"}
        assert (seen.observation["result"], seen.reward) == (None, None)
        if error["error_type"] == "timeout":
            return Came("lost", error["message"], reason="timed_out")
        return Came("failed", error["message"], finished=seen.done)

    async def close(self) -> None:
        """Send a close message, and wait until the server closes the socket: then the session is torn down. While a
        call runs, the server answers nothing else: leave without a message."""
        if not (self._is_calling or self.has_vanished):
            with suppress(openenv_wire.Closed, ConnectionClosed):
                await self.say(json.dumps({"type": "close"}))
                await self.hear()
        await super().close()


def lost(error: openenv_wire.Error) -> Came:
    """A frame that reports a failure of the infrastructure."""
    assert error.code == "EXECUTION_ERROR"
    assert error.more == {"reason": error.more["reason"], "retryable": True}
    return Came("lost", error.message, reason=error.more["reason"])


DIALECTS: list[type[Dialect]] = [Ors, Verl, ToolServer, Mcp, OpenEnv]
