"""Tools that cannot work on this host are not offered, and the banner says what would bring them."""

from __future__ import annotations

import pytest

from tests.wires.wire import Wire
from tests.worlds import OneTask
from toolyard import Toolset, tool
from toolyard.cli.serve import banner
from toolyard.core.errors import DefinitionError
from toolyard.server import Server
from toolyard.testing import running
from toolyard.tools.web_search import GoogleSearch
from toolyard.tools.workspace import Workspace

pytestmark = pytest.mark.anyio

KEYS = ("SERPER_API_KEY", "BRIGHTDATA_API_KEY", "TOOLYARD_SEARCH_CORPUS")
SAID = (
    "not offered here: google_search: set SERPER_API_KEY to your key, or TOOLYARD_SEARCH_CORPUS to a file or folder of "
    "texts to search instead of the web (library)"
)


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch):
    for key in KEYS:
        monkeypatch.delenv(key, raising=False)


class Pages(Toolset):
    @classmethod
    def missing(cls) -> str:
        return "the printer is off"

    @tool
    def print_page(self) -> str: ...

    @tool
    def fold_page(self) -> str: ...


class Library(OneTask):
    """A library, in which one can search."""

    toolsets = [GoogleSearch]

    @tool
    def read(self) -> str:
        """Read."""
        return type(self).__doc__ or ""


def said_of(server: Server) -> str:
    return " ".join(banner(server, 8080).split())


async def test_a_tool_without_its_key_is_not_offered_and_the_banner_says_which_key():
    with running([Library]) as server:
        async with Wire(server.url) as wire:
            listed = (await wire.get("/library/tools")).json()
            sid = await wire.open(env_name="library")
            assert (await wire.call(sid, "read", env="library")).text == Library.__doc__
            searched = await wire.call(sid, "google_search", {"query": "x"}, env="library")
        assert [spec["name"] for spec in listed["tools"]] == ["read"]
        assert searched.failure["error"] == "'google_search' is not a valid tool. The tools are: read."
        assert SAID in said_of(server.server)


async def test_with_the_key_it_is_offered_and_the_banner_says_nothing(monkeypatch):
    monkeypatch.setenv("SERPER_API_KEY", "some key")
    server = Server([Library])
    assert server.environments == [Library]
    assert "not offered" not in said_of(server)


def test_what_several_environments_lack_is_said_once_for_all_tools_of_a_toolset():
    two = [type(name, (Library,), {"toolsets": [Pages]}) for name in ("First", "Second")]
    told = said_of(Server(two))
    assert told.count("not offered here: print_page, fold_page: the printer is off (first, second)") == 1


def test_an_environment_of_which_nothing_can_work_is_refused_with_every_reason():
    members = {name: vars(OneTask)[name] for name in ("list_splits", "list_tasks", "get_prompt")}
    nothing = type("Nothing", (OneTask.__base__,), {**members, "toolsets": [Pages]})
    with pytest.raises(DefinitionError) as caught:
        Server([nothing])
    assert str(caught.value) == (
        "none of the tools of Nothing can work here. print_page, fold_page: the printer is off"
    )


def test_the_workspace_says_what_it_leaves_out():
    told = said_of(Server([Workspace]))
    assert "not offered here: bing_search: set BRIGHTDATA_API_KEY or SERPER_API_KEY to your key, or " in told
