"""Hostile programs run once for all tests of a module: as root if we are root, and as an ordinary user."""

from __future__ import annotations

import pytest

from tests.sandboxes import hostile


@pytest.fixture(scope="module", params=hostile.modes())
def played(request: pytest.FixtureRequest) -> hostile.Played:
    """The results of those cases in the module's SUITE that this run tests."""
    asked = [
        item.callspec.params["case"]
        for item in request.session.items
        if item.module is request.module and "case" in getattr(getattr(item, "callspec", None), "params", {})
    ]
    return hostile.play(request.module.__name__, request.param, list(dict.fromkeys(asked)))
