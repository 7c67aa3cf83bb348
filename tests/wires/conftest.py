"""The server of the conformance cases, and a client for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.wires.wire import Wire
from tests.worlds import MathEnv, OtherEnv
from toolyard.testing import Running, running


@pytest.fixture(scope="session")
def pair() -> Iterator[Running]:
    """MathEnv, the default, and OtherEnv: exactly what the cases assume."""
    with running([MathEnv, OtherEnv], ping_seconds=0.2) as server:
        yield server


@pytest.fixture
async def wire(pair: Running) -> AsyncIterator[Wire]:
    async with Wire(pair.url) as client:
        yield client
