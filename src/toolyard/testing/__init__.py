"""For tests of environments: a real server on a free port, and a check that an environment holds together."""

from __future__ import annotations

from toolyard.testing.running import Running, running

__all__ = ["Running", "running"]
