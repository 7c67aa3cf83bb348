"""Limits that an author sets: `Turns` for `max_turns` of an environment, `TimeLimit` for `@tool(timeout=…)`."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from toolyard.core.output import AskAgain, Reply, TextBlock, ToolFailure, ToolOutput, as_output
from toolyard.core.stalls import Countdown
from toolyard.runtime.call import Call
from toolyard.runtime.outcomes import refused


class Turns:
    """The calls that an episode has left."""

    __slots__ = ("_left", "_most", "_running")

    def __init__(self, most: int) -> None:
        self._most = most
        self._left = most
        self._running = 0

    def take(self) -> bool:
        """Take one. Return False if none is left."""
        if not self._left:
            return False
        self._left -= 1
        self._running += 1
        return True

    def give_back(self) -> None:
        """The call came to nothing, through no fault of the agent."""
        self._left += 1
        self._running -= 1

    def spend(self) -> bool:
        """The call is over. Return whether it was the last, and no other runs."""
        self._running -= 1
        return not self._left and not self._running

    def copy(self) -> Turns:
        """A copy for a fork of the session, made while no call runs."""
        made = Turns(self._most)
        made._left = self._left
        return made

    def refuse(self, tool: str) -> ToolFailure:
        return refused(tool, f"it has {self._counted}, and all are used")

    def last(self, reply: Reply) -> Reply:
        """The result of the last call, with words that tell the agent that it was the last. It gets no reward by it."""
        words = f"This was the last call: the episode has {self._counted} and is over now."
        if isinstance(reply, ToolFailure):
            said = f"{reply.said}\n{words}" if isinstance(reply.said, str) else reply.said
            return replace(reply, message=f"{reply.message}\n{words}", said=said, finished=True)
        assert not isinstance(reply, AskAgain)
        output = as_output(reply)
        if output.finished:
            return output
        blocks = [*output.blocks, TextBlock(text=words)]
        return ToolOutput(blocks=blocks, metadata=output.metadata, reward=output.reward, finished=True)

    @property
    def _counted(self) -> str:
        return "one call" if self._most == 1 else f"{self._most} calls"


def counts(reply: Reply) -> bool:
    """Whether a call has used up a turn: not if it has no result yet, or was lost through no fault of the agent."""
    return not isinstance(reply, AskAgain) and not (isinstance(reply, ToolFailure) and reply.retryable)


class TimeLimit:
    """Stops a call whose tool runs longer than its own limit. The call's deadline holds as well."""

    __slots__ = ("_call", "_countdown", "_seconds")

    def __init__(self, call: Call[Any], seconds: float) -> None:
        self._call = call
        self._seconds = seconds

    def start(self) -> None:
        self._countdown = Countdown(self._seconds, self._expire)

    def end(self) -> None:
        self._countdown.cancel()

    def _expire(self) -> None:
        self._call.seconds = self._seconds
        self._call.stop_by = time.monotonic()
        self._call.stop("timed_out")
