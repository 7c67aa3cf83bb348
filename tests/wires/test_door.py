"""The way from a path to the route that takes it."""

from __future__ import annotations

from starlette.routing import BaseRoute, Match

from toolyard.asgi import by_path


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
