"""Answers of this wire that are not 200, in the form that its client reads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from toolyard.asgi import HttpError
from toolyard.core.errors import (
    EnvironmentNotFound,
    NoRoom,
    NotSupported,
    Overloaded,
    RequestError,
    SessionFailed,
    ToolyardError,
)
from toolyard.core.mistakes import advice
from toolyard.core.output import Reply, ToolFailure
from toolyard.protocols.toolserver.node import Node
from toolyard.runtime.call import Call

GO_ON = "wait_for_call"
"""The name that a client calls, as if it were a tool, for the result of a call that took long."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def refused(status: int, detail: object, **more: object) -> HttpError:
    """An HttpError whose body says everything once: the client shows the whole body to its model."""
    error = HttpError(status, detail)
    error.body = {"detail": detail, **more}
    return error


def ask_again(name: str, arguments: Mapping[str, Any]) -> HttpError:
    return refused(450, {"type": "retry", "next_calling": name, "arguments": arguments})


def come_back(call: Call[Reply]) -> HttpError:
    """Tell the client to come back with the id of the call, and keep the result until then."""
    call.kept = True
    return ask_again(GO_ON, {"call_id": call.id})


def as_answer(name: str, failure: ToolFailure, hint: str = "") -> HttpError:
    """A failed call, with a hint if the tool broke.

    503 makes the client give up the whole run, so it is only for a node that has ended.
    """
    match failure.reason:
        case "no_such_tool":
            return no_such_tool(name, advice(failure.metadata) if failure.metadata else "")
        case "tool_failed":
            words = failure.said or failure.message
            return refused(500, _COLOURS.sub("", words) if isinstance(words, str) else words)
        case "tool_raised":
            return refused(500, failure.message + hint)
        case "cancelled":
            return refused(503, failure.message, reason=failure.reason)
        case _:
            more = {"reason": failure.reason, "retryable": True} if failure.retryable else {}
            return refused(500, failure.message, **more)


def as_http(error: ToolyardError) -> HttpError:
    match error:
        case EnvironmentNotFound():
            return refused(404, str(error))
        case NotSupported():
            return refused(404, str(error))
        case RequestError():
            return refused(400, str(error))
        case Overloaded() | NoRoom():
            overloaded = refused(503, str(error))
            overloaded.headers = [(b"retry-after", b"%d" % error.retry_after)]
            return overloaded
        case SessionFailed():
            return refused(500, f"the environment could not be started: {error}")
        case _:
            return refused(503, str(error))


def no_such_tool(name: str, told: str = "") -> HttpError:
    """`told` goes on after the sentence that clients know."""
    return refused(404, f"The tool {echoed(name)} is not found!{told.removeprefix('.')}")


def unregistered(why: str) -> HttpError:
    return refused(406, f"Error happens when registering new tool:\n{why}")


def not_running(node: Node) -> HttpError:
    return refused(503, f"node is not running: {node.id}")


def echoed(given: str | None) -> str:
    return "None" if given is None else given[:200]
