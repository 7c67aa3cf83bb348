"""The way from a request to its route, and back."""

from __future__ import annotations

import pytest
from starlette.routing import BaseRoute, Match

from tests.worlds import MathEnv
from toolyard import Server
from toolyard.asgi import ANSWER, by_path
from toolyard.settings import Settings

pytestmark = pytest.mark.anyio


class Naming(BaseRoute):
    def __init__(self, *paths: str):
        self.paths = paths

    def matches(self, scope):
        return (Match.FULL if scope["path"] in self.paths else Match.NONE), {}


class Asked(BaseRoute):
    def matches(self, scope):
        return Match.FULL, {}


def test_of_several_routes_that_name_a_path_the_first_has_it():
    first, second = Naming("/a", "/b"), Naming("/b", "/c")
    assert by_path([first, second]) == {"/a": first, "/b": first, "/c": second}


def test_behind_a_route_that_has_to_be_asked_no_path_is_known():
    first, last = Naming("/a"), Naming("/a", "/b")
    assert by_path([first, Asked(), last]) == {"/a": first}


async def test_a_server_with_a_key_answers_the_quick_way_too():
    """Our server offers it in the scope: one write in place of two messages."""
    written: list[tuple[int, bytes]] = []
    app = Server([MathEnv], settings=Settings(api_key="k")).app
    scope = {
        **{"type": "http", "method": "GET", "path": "/list_environments", "query_string": b""},
        **{"headers": [(b"x-api-key", b"k")], "root_path": ""},
        ANSWER: lambda status, headers, body: not written.append((status, body)),
    }

    async def nothing(*_: object) -> None:
        raise AssertionError("it was answered by messages")

    await app(scope, nothing, nothing)
    assert written == [(200, b'["mathenv"]')]
