"""How the ids of sessions begin that a protocol names itself. No client may choose such an id, or ask for one."""

from __future__ import annotations

TRAJECTORY = "verl:"
"""Before a trainer's own name for a trajectory."""
NODE = "node:"
"""Before the name of a ToolServer's node."""
RESERVED = (TRAJECTORY, NODE)
