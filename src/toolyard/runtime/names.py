"""Prefixes of session ids that a protocol makes itself. No client may choose such an id, or send one."""

from __future__ import annotations

TRAJECTORY = "verl:"
"""Before a trainer's own name for a trajectory."""
NODE = "node:"
"""Before the name of a ToolServer's node."""
RESERVED = (TRAJECTORY, NODE)
