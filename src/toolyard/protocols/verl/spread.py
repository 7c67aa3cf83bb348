"""Spreads a batch over the gateways that own its trajectories: each gateway acts for its own."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

import orjson

from toolyard.asgi import decode
from toolyard.core.encoding import encode
from toolyard.protocols.verl.batches import Item
from toolyard.protocols.verl.observations import Observed, Result, lost
from toolyard.protocols.verl.trajectories import Trajectories
from toolyard.runtime.owners import GatewayLost
from toolyard.runtime.runtime import Runtime

PART = "/verl/part"
"""The path on which gateways ask each other to act."""

_FIRST = re.compile(rb'"trajectory_ids"\s*:\s*\[\s*("(?:[^"\\]|\\.)*"|-?[0-9.eE+-]+)')


def first_trajectory(body: bytes) -> str:
    """The first trajectory of a batch; empty if the body is no batch. Equal requests have the same, so that one gateway
    gets all repeats of a request."""
    found = _FIRST.search(body)
    if found is None:
        return ""
    try:
        return str(orjson.loads(found[1]))
    except orjson.JSONDecodeError:  # a lone surrogate, which other parsers let pass
        return found[1].decode("latin-1")


class Spread:
    def __init__(self, runtime: Runtime, trajectories: Trajectories) -> None:
        self._runtime = runtime
        self._trajectories = trajectories

    async def act(self, items: Sequence[Item]) -> list[Result]:
        """Let each gateway act for its trajectories, all at once. The observations are in the order of the items."""
        parts: dict[int, list[int]] = {}
        for i, (trajectory, *_) in enumerate(items):
            parts.setdefault(self._runtime.owners.of(trajectory), []).append(i)
        asked = await asyncio.gather(*(self._ask(owner, [items[i] for i in places]) for owner, places in parts.items()))
        results = {
            i: one
            for places, part in zip(parts.values(), asked, strict=True)
            for i, one in zip(places, part, strict=True)
        }
        return [results[i] for i in range(len(items))]

    async def act_here(self, body: bytes) -> bytes:
        """Act for another gateway. `body` and the answer are JSON."""
        results = await self._trajectories.act([tuple(item) for item in decode(body)])
        return encode([one if isinstance(one, str) else list(one) for one in results])

    async def _ask(self, owner: int, items: Sequence[Item]) -> Sequence[Result]:
        owners = self._runtime.owners
        if owner == owners.number:
            return await self._trajectories.act(items)
        try:
            answer = await owners.ask(owner, f"POST {PART}", encode(items))
        except GatewayLost as error:
            return [lost(str(error))] * len(items)
        return [one if isinstance(one, str) else Observed(*one) for one in decode(answer)]
