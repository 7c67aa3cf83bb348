"""Real servers for all tests: one that many share, and a way to start others."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Iterator
from typing import Any

import httpx2
import pytest

from tests.worlds import ManyEnv, MathEnv, OtherEnv
from toolyard.testing import Running, running


def pytest_configure() -> None:
    """Keep the settings and the proxy of whoever runs the tests away from the servers in here."""
    for name in [name for name in os.environ if name.startswith("TOOLYARD_")]:
        del os.environ[name]
    for name in ("NO_PROXY", "no_proxy"):
        os.environ[name] = ",".join(filter(None, (os.environ.get(name), "127.0.0.1,localhost,::1")))


def pytest_collection_finish() -> None:
    """Thousands of tests stay to the end: looking through them again and again would hold up the servers in here."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Half characters, which tests play with, cannot be sent to the process that shows what became of a test."""
    return _sendable((yield))


def _sendable(value: Any) -> Any:
    match value:
        case str():
            return value.encode(errors="backslashreplace").decode()
        case dict():
            return {name: _sendable(one) for name, one in value.items()}
        case list():
            return [_sendable(one) for one in value]
        case tuple():  # why a test was skipped is one, and pytest wants it back as such
            return tuple(_sendable(one) for one in value)
    return value


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def served() -> Iterator[Running]:
    with running([MathEnv, OtherEnv, ManyEnv]) as server:
        yield server


@pytest.fixture
def http(served: Running) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=served.url, timeout=30) as client:
        yield client
