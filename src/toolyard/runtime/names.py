"""Prefixes of session ids that a protocol makes itself. No client may choose such an id, or send one."""

from __future__ import annotations

TRAJECTORY = "verl:"
"""The prefix before a trainer's own name of a trajectory."""
NODE = "node:"
"""The prefix before the name of a ToolServer's node."""
RESERVED = (TRAJECTORY, NODE)


def owned_as(session_id: str) -> str:
    """The name that tells which gateway has a session: the one that its clients know."""
    if session_id.startswith(TRAJECTORY):
        return session_id.removeprefix(TRAJECTORY)
    return session_id.removeprefix(NODE).partition(":")[0] if session_id.startswith(NODE) else session_id
