"""Common to tests of toolsets: sandboxes, and an API for collections at its address."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.sandboxes.backends import others
from tests.tools.api_server import Api
from tests.tools.loopback import serving
from toolyard.sandboxes import Provider


@pytest.fixture(scope="module", params=["native", *others("subprocess")])
async def sandboxes(request: pytest.FixtureRequest) -> AsyncIterator[Provider]:
    """The provider from which the toolsets of these tests open sandboxes."""
    async with Provider(request.param, "L0") as provider:
        yield provider


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
