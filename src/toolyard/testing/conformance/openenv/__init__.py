"""The cases of OpenEnv."""

from __future__ import annotations

from toolyard.testing.conformance.case import Kit
from toolyard.testing.conformance.openenv import episodes, routes
from toolyard.testing.conformance.openenv.probe import OpenEnv, speaks

_CHAPTERS = (routes.CHAPTER, episodes.CHAPTER)

KIT: Kit[OpenEnv] = Kit(
    "openenv", OpenEnv, speaks, OpenEnv.close, [case for chapter in _CHAPTERS for case in chapter.cases]
)
