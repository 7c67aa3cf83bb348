"""Which of several gateways a session belongs to: its id alone tells, and all of them agree."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias
from zlib import crc32

Ask: TypeAlias = Callable[[int, str, bytes], Awaitable[bytes]]
"""Ask another gateway a question, which some protocol there understands, and hear what it answers. Raises
`GatewayLost`."""


class GatewayLost(Exception):
    """The gateway has ended, and its sessions with it."""


async def _nobody(owner: int, question: str, about: bytes) -> bytes:
    raise GatewayLost(f"there is no gateway {owner}")


class Owners:
    """Of `count` gateways, which are numbered from 0, this is the one with that number."""

    def __init__(self, number: int = 0, count: int = 1, ask: Ask = _nobody) -> None:
        self.number = number
        self.count = count
        self.ask = ask

    @property
    def alone(self) -> bool:
        return self.count == 1

    def of(self, name: str) -> int:
        """The owner of the session that clients know by this name, whoever chose it."""
        return crc32(name.encode(errors="surrogatepass")) % self.count

    def draw(self, make: Callable[[], str]) -> str:
        """A name for a session that is to live here: names are made until one is ours."""
        name = make()
        while self.count > 1 and self.of(name) != self.number:
            name = make()
        return name
