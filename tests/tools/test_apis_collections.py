"""Collections of APIs: lists for a ToolBench endpoint, ToolBench's tool files, folders, keys, and all that over ORS."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.tools.api_server import BOOKS, DESK_KEY, TOOLBENCH_KEY, Api, document, get, parameter
from toolyard.client import Client, InfrastructureError, ToolCallFailed
from toolyard.core.errors import DefinitionError, ServiceUnavailable
from toolyard.core.output import ImageBlock
from toolyard.testing import running
from toolyard.tools.apis.collection import ApiCollection, collection, collections
from toolyard.tools.apis.environment import api_environment, base_urls
from toolyard.tools.apis.files import read_keys
from toolyard.tools.apis.operation import ApiRequest

pytestmark = pytest.mark.anyio

LIBRARY = Path(__file__).parents[2] / "examples" / "data" / "library.json"


def written(folder: Path, name: str, content: Any) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


async def called(toolset: type[ApiCollection], name: str, arguments: dict[str, Any]) -> object:
    session = toolset(None)
    try:
        return await session.call_task_tool(name, arguments)
    finally:
        await session.teardown()


# Lists for a ToolBench endpoint


def entry(tool: str = "ferry_times", api: str = "next", **more: Any) -> dict[str, Any]:
    inputs = {"harbour": {"type": "string", "description": "A harbour."}, "kind": {"type": "enum"}}
    return {
        "name": f"rapi_{tool}_{api}",
        "category": "Travel",
        "api": tool,
        "description": "When ferries leave.",
        "parameters": {"type": "object", "properties": inputs, "required": ["harbour"]},
        **more,
    }


def lines(*entries: Any) -> str:
    return "\n".join(one if isinstance(one, str) else json.dumps(one) for one in entries)


async def test_the_endpoint_is_asked_as_xagents_env_asks_it(tmp_path: Path, api: Api, url: str) -> None:
    path = written(tmp_path, "list.jsonl", lines(entry(), "", entry(api="all")))
    ferries = collection(path, base_url=f"{url}/rapidapi", key=TOOLBENCH_KEY)
    assert ferries.__name__ == "RapidAPIEnv"
    assert [*ferries.catalogue] == ["rapi_ferry_times_next", "rapi_ferry_times_all"]
    answer = await called(ferries, "rapi_ferry_times_next", {"harbour": "Oban"})
    assert answer == {"error": "", "response": 'Travel/ferry_times/next {"harbour": "Oban"}'}
    assert json.loads(api.asked[0].body) == {
        "category": "Travel",
        "tool_name": "ferry_times",
        "api_name": "next",
        "tool_input": {"harbour": "Oban"},
        "strip": "truncate",
        "toolbench_key": TOOLBENCH_KEY,
    }


def test_the_types_that_json_does_not_have_are_texts(tmp_path: Path) -> None:
    spec = collection(written(tmp_path, "list.jsonl", lines(entry()))).catalogue["rapi_ferry_times_next"]
    assert spec.input_schema == {
        "type": "object",
        "properties": {"harbour": {"type": "string", "description": "A harbour."}, "kind": {"type": "string"}},
        "required": ["harbour"],
    }


async def test_without_an_endpoint_nothing_is_asked(tmp_path: Path) -> None:
    ferries = collection(written(tmp_path, "list.jsonl", lines(entry())))
    with pytest.raises(ServiceUnavailable, match="RapidAPIEnv needs a base URL"):
        await called(ferries, "rapi_ferry_times_next", {"harbour": "Oban"})


async def test_a_wrong_key_is_not_the_agents_failure(tmp_path: Path, api: Api, url: str) -> None:
    ferries = collection(written(tmp_path, "list.jsonl", lines(entry())), base_url=f"{url}/rapidapi", key="wrong-key")
    with pytest.raises(ServiceUnavailable, match="401 Unauthorized"):
        await called(ferries, "rapi_ferry_times_next", {"harbour": "Oban"})


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "this line is not JSON"),
        ("[]", "an object is expected here, not list"),
        ({}, "name: a text is expected here, not None"),
        (entry(api="a b"), "'rapi_ferry_times_a b' is not made of letters, digits and underscores"),
        ({**entry(), "api": None}, "api: a text is expected here"),
        (entry(description=3), "description: a text is expected here, not 3"),
        (entry(parameters=[]), "parameters: an object is expected here, not list"),
        (entry(parameters={"properties": 3}), "parameters.properties: an object is expected here, not 3"),
        (entry(parameters={"properties": {"a": 3}}), "parameters.properties.a: an object is expected here"),
        (entry(parameters={"required": ["a"]}), "parameters.required: there is no parameter 'a'"),
        (entry(parameters={"required": [[]]}), "parameters.required: there is no parameter []"),
        (entry(parameters={"required": "a"}), "parameters.required: a list is expected here, not 'a'"),
    ],
)
def test_what_is_wrong_with_a_line_is_said_with_its_number(tmp_path: Path, line: Any, problem: str) -> None:
    path = written(tmp_path, "list.jsonl", lines(entry(), "", line))
    with pytest.raises(DefinitionError, match=re.escape(f"{path}:3: {problem}")):
        collection(path)


def test_thousands_of_apis_are_read_in_a_moment(tmp_path: Path) -> None:
    path = written(tmp_path, "list.jsonl", lines(*(entry(api=f"api_{n}", description="d" * 400) for n in range(4208))))
    collection(path)
    started = time.perf_counter()
    assert len(collection(path).catalogue) == 4208
    assert time.perf_counter() - started < 0.5


def test_names_that_are_too_long_or_come_twice_are_told_apart(tmp_path: Path) -> None:
    path = written(tmp_path, "list.jsonl", lines(entry(), entry(), entry(api="x" * 80)))
    names = [*collection(path).catalogue]
    assert names == ["rapi_ferry_times_next", "rapi_ferry_times_next_2", f"rapi_ferry_times_{'x' * 47}"]


# ToolBench's tool files


def tool_file(url: str = "https://tides.p.rapidapi.com", **more: Any) -> dict[str, Any]:
    days, point = {"name": "days", "type": "NUMBER", "default": ""}, {"name": "z", "type": "GEOPOINT"}
    harbour = {"name": "harbour", "type": "STRING", "description": "Which.", "default": "Oban"}
    return {
        "tool_name": "Tide Tables (UK)",
        "tool_description": "High and low water.",
        "host": "tides.p.rapidapi.com",
        "api_list": [
            {
                "name": "by Harbour",
                "url": f"{url}/tides/{{harbour}}?format=json",
                "method": "GET",
                "description": "For one harbour.",
                "required_parameters": [harbour],
                "optional_parameters": [days, point],
            },
            {
                "name": "report",
                "url": f"{url}/reports",
                "method": "post",
                "required_parameters": [harbour],
                "optional_parameters": [{"name": "height", "type": "NUMBER"}],
            },
        ],
        **more,
    }


async def test_the_apis_of_a_host_are_asked_with_its_name_and_the_key(tmp_path: Path, api: Api, url: str) -> None:
    tides = collection(written(tmp_path, "tides.json", tool_file()), base_url=f"{url}/echo/", key="rapid-key")
    assert tides.__name__ == "RapidAPI"
    assert [*tides.catalogue] == ["rapi_tide_tables_uk_by_harbour", "rapi_tide_tables_uk_report"]
    assert tides.catalogue["rapi_tide_tables_uk_by_harbour"].description == "High and low water.\nFor one harbour."
    assert tides.catalogue["rapi_tide_tables_uk_by_harbour"].input_schema == {
        "type": "object",
        "properties": {
            "harbour": {"type": "string", "description": "Which.", "default": "Oban"},
            "days": {"type": "number"},
            "z": {"type": "string"},
        },
        "required": ["harbour"],
        "additionalProperties": False,
    }
    await called(tides, "rapi_tide_tables_uk_by_harbour", {"harbour": "St. Ives/1", "days": 2})
    await called(tides, "rapi_tide_tables_uk_report", {"harbour": "Oban", "height": 1.5})
    assert [(asked.method, asked.target, asked.body) for asked in api.asked] == [
        ("GET", "/echo/tides/St.%20Ives%2F1?format=json&days=2", b""),
        ("POST", "/echo/reports", b'{"harbour":"Oban","height":1.5}'),
    ]
    assert api.asked[0].headers["x-rapidapi-host"] == "tides.p.rapidapi.com"
    assert api.asked[0].headers["x-rapidapi-key"] == "rapid-key"


def asked_of(path: Path, **more: Any) -> ApiRequest:
    return next(iter(collection(path, **more).operations.values())).request({"harbour": "Oban"})


def test_rapidapis_key_goes_to_rapidapi_and_not_to_any_host_that_a_file_names(tmp_path: Path) -> None:
    there = asked_of(written(tmp_path, "a.json", tool_file()), key="rapid-key")
    assert there.url == "https://tides.p.rapidapi.com/tides/Oban?format=json"
    assert there.headers["x-rapidapi-key"] == "rapid-key"
    for host in ("https://tides.example", "https://rapidapi.com.example", "https://evilrapidapi.com"):
        elsewhere = asked_of(written(tmp_path, "b.json", tool_file(host)), key="rapid-key")
        assert "x-rapidapi-key" not in elsewhere.headers
        assert elsewhere.secrets == []


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (tool_file(tool_name=None), ": tool_name: a text is expected here"),
        (tool_file(api_list={}), ": api_list: a list is expected here"),
        (tool_file(api_list=[3]), ": api_list[0]: an object is expected here"),
        (tool_file(api_list=[{"name": "a", "url": "/a"}]), ": api_list[0].url: there is no host in it"),
        (tool_file(api_list=[{"name": "a", "url": "https://h.example/{b"}]), ": api_list[0].url: a brace in"),
        (tool_file(host="a\r\nb"), ": host: 'a\\r\\nb' is none"),
        (
            tool_file(api_list=[{"name": "a", "url": "https://a.example", "method": "FLY"}]),
            ": api_list[0].method: 'FLY' is none of GET",
        ),
        (tool_file("http://127.0.0.1:8000"), ": api_list[0].url: 127.0.0.1 is not a public address"),
        (tool_file("https://h.example/.."), ": api_list[0].url: "),
        ([tool_file(), 3], ": [1]: an object is expected here"),
    ],
)
def test_what_is_wrong_with_a_tool_file_is_said_with_its_place(tmp_path: Path, said: Any, problem: str) -> None:
    path = written(tmp_path, "tool.json", said)
    with pytest.raises(DefinitionError, match=re.escape(f"{path}{problem}")):
        collection(path)


# Several at once


def test_a_folder_of_tool_files_is_one_collection_and_each_document_is_another(tmp_path: Path) -> None:
    written(tmp_path, "Travel/tides.json", tool_file())
    written(tmp_path, "Travel/more.json", [tool_file(tool_name="Winds")])
    written(tmp_path, "list.jsonl", lines(entry()))
    written(tmp_path, "library.json", LIBRARY.read_text())
    written(tmp_path, "again.json", LIBRARY.read_text())
    written(tmp_path, "notes.txt", "nothing")
    found = collections([tmp_path])
    assert [one.__name__ for one in found] == ["RapidAPI", "TownLibrary", "TownLibrary2", "RapidAPIEnv"]
    assert [len(one.catalogue) for one in found] == [4, 6, 6, 1]
    names = [name for one in found for name in one.catalogue]
    assert len(set(names)) == len(names)
    assert "searchBooks_2" in found[2].catalogue


def test_base_urls_and_keys_are_for_the_collections_that_they_name(tmp_path: Path) -> None:
    paths = [LIBRARY, written(tmp_path, "list.jsonl", lines(entry()))]
    urls = base_urls("TownLibrary=http://127.0.0.1:1/v1 , https://all.example/x?y=z")
    library, ferries = collections(paths, base_urls=urls, keys={"TownLibrary": "k-1", "RapidAPIEnv": "k-2"})
    assert library.operations["searchBooks"].request({}).url == "http://127.0.0.1:1/v1/books"
    asked = ferries.operations["rapi_ferry_times_next"].request({})
    assert (asked.url, asked.headers["toolbench_key"]) == ("https://all.example/x?y=z", "k-2")
    with pytest.raises(DefinitionError, match="a key for 'Libary', but no such collection; there are TownLibrary"):
        collections([LIBRARY], keys={"Libary": "k"})
    with pytest.raises(DefinitionError, match="a base URL for 'A', but no such collection"):
        collections([LIBRARY], base_urls={"A": "https://a.example"})


def test_a_file_of_keys_has_keys_or_the_variables_that_hold_them(tmp_path: Path) -> None:
    path = written(tmp_path, "keys.json", {"A": "k-1", "B": {"one": "$THE_KEY", "two": "$ not one"}})
    assert read_keys(path, {"THE_KEY": "k-2"}) == {"A": "k-1", "B": {"one": "k-2", "two": "$ not one"}}


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"A": 12345}, "'A': a key is expected here, as text"),
        ({"A": ["secret"]}, "'A': a key is expected here, as text"),
        ({"A": {"b": {"c": "secret"}}}, "'A': a key is expected here, as text"),
        ({"A": "$NOT_SET_ANYWHERE"}, "'A': the environment variable NOT_SET_ANYWHERE is not set"),
        ({"A": "secret\r\nX: y"}, "'A': this key has characters in it that cannot be sent"),
        ({"A": "secret "}, "'A': this key has characters in it that cannot be sent"),
        ({"": "secret"}, "a key is for a collection, which has a name"),
        (["secret"], "an object is expected here, not list"),
    ],
)
def test_what_is_wrong_with_a_file_of_keys_is_said_without_showing_them(
    tmp_path: Path, keys: Any, problem: str
) -> None:
    path = written(tmp_path, "keys.json", keys)
    with pytest.raises(DefinitionError, match=re.escape(problem)) as told:
        read_keys(path, {})
    assert "secret" not in str(told.value)
    assert "12345" not in str(told.value)


@pytest.mark.parametrize("url", ["a.example", "ftp://a.example", "http://", "http://a.example/?q=1", "http://a b"])
def test_a_base_url_that_cannot_be_one_is_told(url: str) -> None:
    with pytest.raises(DefinitionError, match="the base URL of TownLibrary: "):
        collection(LIBRARY, base_url=url)


# Served


@pytest.fixture
def served(tmp_path: Path, api: Api, url: str) -> Iterator[str]:
    files = [LIBRARY, written(tmp_path, "list.jsonl", lines(entry())), written(tmp_path, "odd.json", ODD)]
    keys = written(tmp_path, "keys.json", {"TownLibrary": {"desk": DESK_KEY}, "RapidAPIEnv": TOOLBENCH_KEY})
    where = f"TownLibrary={url}/v1,RapidAPIEnv={url}/rapidapi,{url}"
    apis = api_environment(",".join(map(str, files)), base_url=where, keys=str(keys))
    assert apis is not None
    with running([apis]) as server:
        yield server.url


ODD = document({"/status/{code}": get(parameter("code", "path", schema={"type": "integer"}), operationId="status")})


def test_hidden_tools_are_found_by_searching_and_can_then_be_called(served: str, api: Api) -> None:
    with Client(served) as client, client.environment("apis").session(split="train", index=0) as session:
        assert [spec.name for spec in session.list_tools()] == ["search_tools"]
        assert [spec.name for spec in client.environment("apis").list_tools()] == ["search_tools"]
        found = session.call_tool("search_tools", {"question": "which books did this author write?", "top_k": 3}).text
        assert "searchBooks" in found
        assert json.loads(session.call_tool("searchBooks", {"author": "Quay"}).text) == [BOOKS["978-2"]]
        assert "rapi_ferry_times_next" in session.call_tool("search_tools", {"question": "when do ferries leave?"}).text
        assert "Travel/ferry" in session.call_tool("rapi_ferry_times_next", {"harbour": "Oban"}).text
        (picture,) = session.call_tool("getCover", {"isbn": "978-1"}).blocks
        assert isinstance(picture, ImageBlock)
        assert picture.mimeType == "image/png"


def test_failures_are_told_apart_for_the_trainer(served: str, api: Api) -> None:
    with Client(served) as client, client.environment("apis").session(split="train", index=0) as session:
        with pytest.raises(ToolCallFailed, match=r"the API answered 404 Not Found: .*there is no such book"):
            session.call_tool("getBook", {"isbn": "0"})
        with pytest.raises(InfrastructureError, match="the API answered 429 Too Many Requests"):
            session.call_tool("status", {"code": "429"})
        with pytest.raises(InfrastructureError, match="none is set for 'staff'"):
            session.call_tool("getReader", {"reader": "Cleo"})
        with pytest.raises(ToolCallFailed, match="autor"):
            session.call_tool("searchBooks", {"autor": "Quay"})
        with pytest.raises(ToolCallFailed, match="isbn"):
            session.call_tool("getBook", {})
    assert [asked.target for asked in api.asked] == ["/v1/books/0", "/status/429"]


def test_without_files_there_is_no_such_environment() -> None:
    assert api_environment(" , ") is None
