"""The examples as a newcomer gets them: all files of the folder, on one real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from toolyard import Client
from toolyard.loading import load_targets
from toolyard.testing import Running, running


@pytest.fixture(scope="session")
def examples() -> Iterator[Running]:
    with running(load_targets([]).environments) as server:
        yield server


@pytest.fixture
def client(examples: Running) -> Iterator[Client]:
    with Client(examples.url) as client:
        yield client
