"""Both clients under one surface, for what has to hold of either."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from toolyard import AsyncClient, Client


class Plain:
    """As its users have it."""

    def __init__(self, url: str, **options) -> None:
        self.client = Client(url, **options)

    def list(self):
        return self.client.environments.list()

    @contextmanager
    def session(self, name: str = "mathenv", task={"q": "x"}):
        with self.client.environment(name).session(task) as session:
            yield session.call_tool

    def close(self) -> None:
        self.client.close()


class Awaited:
    """On an event loop of its own."""

    def __init__(self, url: str, **options) -> None:
        self.runner = asyncio.Runner()
        self.client = AsyncClient(url, **options)

    def list(self):
        return self.runner.run(self.client.environments.list())

    @contextmanager
    def session(self, name: str = "mathenv", task={"q": "x"}):
        session = self.client.environment(name).session(task)
        self.runner.run(session.__aenter__())
        try:
            yield lambda *args, **more: self.runner.run(session.call_tool(*args, **more))
        finally:
            self.runner.run(session.close())

    def close(self) -> None:
        self.runner.run(self._end())
        self.runner.close()

    async def _end(self) -> None:
        """And hear which connections servers have ended."""
        await self.client.aclose()
        for _ in range(5):
            await asyncio.sleep(0)


@contextmanager
def kind_of(kind: type, url: str, **options) -> Iterator[Plain | Awaited]:
    client = kind(url, **options)
    try:
        yield client
    finally:
        client.close()
