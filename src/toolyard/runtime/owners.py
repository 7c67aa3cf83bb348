"""Which of several gateways owns a session. The session's id alone decides, so that all gateways agree."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias
from zlib import crc32

Ask: TypeAlias = Callable[[int, str, bytes], Awaitable[bytes]]
"""Send a question to a gateway, where the route of some protocol answers it. Raises `GatewayLost`."""


class GatewayLost(Exception):
    """The gateway has ended, and its sessions with it."""


async def _nobody(owner: int, question: str, about: bytes) -> bytes:
    raise GatewayLost(f"there is no gateway {owner}")


class Owners:
    """Finds the owner of a session among `count` gateways, numbered from 0. This gateway is `number`."""

    def __init__(self, number: int = 0, count: int = 1, ask: Ask = _nobody) -> None:
        self.number = number
        self.count = count
        self.ask = ask

    @property
    def alone(self) -> bool:
        return self.count == 1

    def of(self, name: str) -> int:
        """The gateway that owns the session of this name, as clients know it."""
        return crc32(name.encode(errors="surrogatepass")) % self.count

    async def ask_others(self, question: str) -> Mapping[int, bytes]:
        """Send a question to all other gateways at once. Return the answers by gateway, of those that answer."""
        others = [number for number in range(self.count) if number != self.number]
        answers = await asyncio.gather(*(self.ask(number, question, b"") for number in others), return_exceptions=True)
        return {number: one for number, one in zip(others, answers, strict=True) if isinstance(one, bytes)}

    def draw(self, make: Callable[[], str]) -> str:
        """Make names until this gateway owns one, for a new session that is to live here."""
        name = make()
        while self.count > 1 and self.of(name) != self.number:
            name = make()
        return name
