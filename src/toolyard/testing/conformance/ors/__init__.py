"""The cases of the Open Reward Standard."""

from __future__ import annotations

from toolyard.testing.conformance.case import Kit
from toolyard.testing.conformance.ors import calls, discovery, sessions
from toolyard.testing.conformance.ors.probe import Ors, speaks

_CHAPTERS = (discovery.CHAPTER, sessions.CHAPTER, calls.CHAPTER)

KIT: Kit[Ors] = Kit("ors", Ors, speaks, Ors.close, [case for chapter in _CHAPTERS for case in chapter.cases])
