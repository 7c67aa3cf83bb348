"""`finish`: a name that verl-tool has among its tools. Here the wire itself ends trajectories; there is no tool."""

from __future__ import annotations

from toolyard.core.environment import Toolset


class Finish(Toolset):
    """Adds nothing to what the others offer."""
