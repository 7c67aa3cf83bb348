"""The cases of the Model Context Protocol over HTTP, in both eras.

An `h` after a number stands for the era of handshakes, up to 2025-11-25; an `m` for the modern one, since 2026-07-28.
"""

from __future__ import annotations

from toolyard.testing.conformance.case import Kit
from toolyard.testing.conformance.mcp import handshake, modern, offers, transport
from toolyard.testing.conformance.mcp.probe import Mcp, speaks

_CHAPTERS = (handshake.CHAPTER, modern.CHAPTER, transport.CHAPTER, offers.CHAPTER)

KIT: Kit[Mcp] = Kit("mcp", Mcp, speaks, Mcp.close, [case for chapter in _CHAPTERS for case in chapter.cases])
