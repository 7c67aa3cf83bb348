"""A client of the server that a module's tests share. Each test leaves the server as it was."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.wires.wire import Wire, until
from toolyard.testing import Running


@pytest.fixture
async def wire(served: Running) -> AsyncIterator[Wire]:
    async with Wire(served.url) as wire:
        yield wire
        for sid in list(served.server.runtime.sessions):
            await wire.end(sid)
    await until(lambda: not served.server.runtime.sessions)
