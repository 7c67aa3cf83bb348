"""For tests of environments: a real server on a free port, and a check that an environment holds together."""

from __future__ import annotations

from toolyard.testing.check import check_environment
from toolyard.testing.report import Finding, Report
from toolyard.testing.running import Running, running

__all__ = ["Finding", "Report", "Running", "check_environment", "running"]
