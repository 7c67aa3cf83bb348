"""Numbered conformance cases for each protocol, which run against any server: see docs/conformance.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolyard.testing.conformance import mcp, openenv, ors, toolserver, verl
from toolyard.testing.conformance.case import Case, Kit, Result, Verdict
from toolyard.testing.conformance.run import conform, detect, reach
from toolyard.testing.conformance.target import Target

KITS: Mapping[str, Kit[Any]] = {kit.protocol: kit for kit in (ors.KIT, verl.KIT, toolserver.KIT, mcp.KIT, openenv.KIT)}

__all__ = ["KITS", "Case", "Kit", "Result", "Target", "Verdict", "conform", "detect", "reach"]
