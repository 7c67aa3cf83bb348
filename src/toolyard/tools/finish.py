"""`finish`: one of verl-tool's names of tools. Here the wire itself ends trajectories, without a tool."""

from __future__ import annotations

from toolyard.core.environment import Toolset


class Finish(Toolset):
    """Adds no tool."""
