"""An API for tests of collections, and its address."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.tools.api_server import Api
from tests.tools.loopback import serving


@pytest.fixture(scope="module")
def counterpart() -> Api:
    return Api()


@pytest.fixture(scope="module")
def url(counterpart: Api) -> Iterator[str]:
    with serving(counterpart.app) as url:
        yield url


@pytest.fixture
def api(counterpart: Api) -> Api:
    counterpart.forget()
    return counterpart
