"""Ids of sessions in requests: how a client sends one, and the prefixes of ids that a protocol makes itself."""

from __future__ import annotations

from toolyard.asgi import HttpError, Request

TRAJECTORY = "verl:"
"""The prefix before a trainer's own name of a trajectory."""
NODE = "node:"
"""The prefix before the name of a ToolServer's node."""
RESERVED = (TRAJECTORY, NODE)
"""No client may choose an id with such a prefix, or send one."""
HEADER = b"x-session-id"


def session_id(request: Request) -> str:
    """The session that the client names in a header. Raises a 400 if it names none, or one of another protocol."""
    sid = request.header(HEADER)
    if not sid:
        raise HttpError(400, "X-Session-ID header is required")
    if sid.startswith(RESERVED):
        raise HttpError(400, f"a session id cannot begin with {' or '.join(RESERVED)}: that is for other protocols")
    return sid


def owned_as(session_id: str) -> str:
    """The name that tells which gateway has a session: the one that its clients know."""
    if session_id.startswith(TRAJECTORY):
        return session_id.removeprefix(TRAJECTORY)
    return session_id.removeprefix(NODE).partition(":")[0] if session_id.startswith(NODE) else session_id
