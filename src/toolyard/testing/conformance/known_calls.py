"""Finds calls that succeed on a server, once, and keeps them for all cases."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolyard.testing.conformance.case import Untried

TRIED_TOOLS = 8
"""Call at most this many tools with made-up arguments, in search of a call that succeeds."""


@dataclass(frozen=True, slots=True)
class KnownCall:
    """A call that succeeds."""

    tool: str
    arguments: Mapping[str, Any]
    finishes: bool


class KnowsCalls(ABC):
    _calls: Sequence[KnownCall | None] | None = None

    async def known(self) -> KnownCall:
        """A call that succeeds, preferably one that does not end the episode."""
        calls = await self._known()
        if not calls:
            raise Untried("no tool succeeds with made-up arguments; name one with --tool and --arguments")
        return min(calls, key=lambda call: call.finishes)

    async def finishing(self) -> KnownCall:
        for call in await self._known():
            if call.finishes:
                return call
        raise Untried("no call was found that ends the episode; name one with --tool and --arguments")

    async def _known(self) -> Sequence[KnownCall]:
        if self._calls is None:
            self._calls = await self._try_calls()
        return [call for call in self._calls if call is not None]

    @abstractmethod
    async def _try_calls(self) -> Sequence[KnownCall | None]:
        """Make the call that the target names, or else some of each tool. None for a call that fails."""
