"""For tests of environments: a real server on a free port, and checks of environments and sandboxes."""

from __future__ import annotations

from toolyard.testing.check import check_environment
from toolyard.testing.check_sandbox import check_sandbox
from toolyard.testing.report import Finding, Report
from toolyard.testing.running import Running, running

__all__ = ["Finding", "Report", "Running", "check_environment", "check_sandbox", "running"]
