"""Prefixes of session ids that a protocol makes itself. No client may choose such an id, or send one."""

from __future__ import annotations

TRAJECTORY = "verl:"
"""The prefix before a trainer's own name of a trajectory."""
NODE = "node:"
"""The prefix before the name of a ToolServer's node."""
RESERVED = (TRAJECTORY, NODE)
