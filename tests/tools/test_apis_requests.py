"""Calls of API tools, against a server that plays the API: requests, answers, and who is to blame."""

from __future__ import annotations

import json
import logging
import socket
import time
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest
from anyio.abc import ByteStream, SocketAttribute

from tests.tools.api_server import BOOKS, DESK_KEY, STAFF_KEY, Api, document, get, parameter, png
from tests.tools.loopback import serving
from toolyard.browser.addresses import Addresses
from toolyard.core.errors import DefinitionError, ServiceUnavailable, ToolError
from toolyard.tools import http
from toolyard.tools.apis.asking import ApiConnections
from toolyard.tools.apis.collection import ApiCollection, collection
from toolyard.tools.apis.operation import ApiRequest

pytestmark = pytest.mark.anyio

LIBRARY = Path(__file__).parents[2] / "examples" / "data" / "library.json"
PEM = Path(__file__).with_name("loopback.pem")
KEYS = {"desk": DESK_KEY, "staff": STAFF_KEY}


@pytest.fixture
async def library(url: str) -> AsyncIterator[ApiCollection]:
    async with one_session(collection(LIBRARY, base_url=f"{url}/v1", key=KEYS)) as session:
        yield session


@asynccontextmanager
async def one_session(toolset: type[ApiCollection]) -> AsyncIterator[ApiCollection]:
    session = toolset(None)
    try:
        yield session
    finally:
        await session.teardown()


def described(folder: Path, paths: dict[str, Any], **more: Any) -> Path:
    path = folder / "api.json"
    path.write_text(json.dumps(document(paths, **more)))
    return path


@asynccontextmanager
async def api_with(folder: Path, url: str, paths: dict[str, Any], **more: Any) -> AsyncIterator[ApiCollection]:
    key = more.pop("key", "")
    async with one_session(collection(described(folder, paths, **more), base_url=url, key=key)) as session:
        yield session


# Requests


async def test_values_reach_the_query_in_the_style_that_the_document_asks_for(library: ApiCollection, api: Api) -> None:
    arguments = {"author": "Ada & Marsh?", "subject": ["sea", "maths"], "years": {"from": 1980, "to": 2000}, "limit": 5}
    assert await library.call_task_tool("searchBooks", arguments) == []
    assert api.asked[0].target == (
        "/v1/books?author=Ada%20%26%20Marsh%3F&subject=sea&subject=maths&years%5Bfrom%5D=1980&years%5Bto%5D=2000&limit=5"
    )


async def test_an_answer_in_json_is_the_value_itself(library: ApiCollection) -> None:
    found = await library.call_task_tool("searchBooks", {"author": "Marsh", "subject": ["sea"]})
    assert found == [BOOKS["978-1"]]
    assert await library.call_task_tool("getBook", {"isbn": "978-2"}) == BOOKS["978-2"]


async def test_a_picture_comes_back_as_its_bytes(library: ApiCollection) -> None:
    assert await library.call_task_tool("getCover", {"isbn": "978-2"}) == png()


async def test_a_body_a_header_and_a_key_are_sent_where_they_belong(library: ApiCollection, api: Api) -> None:
    arguments = {"Request-Id": "r-1", "body": {"isbn": "978-2", "reader": "Cleo", "days": 3}}
    lent = await library.call_task_tool("borrowBook", arguments)
    assert lent == {"number": 7, "isbn": "978-2", "reader": "Cleo", "days": 3, "id": "r-1"}
    assert api.asked[0].headers["content-type"] == "application/json"
    assert api.asked[0].headers["x-library-key"] == DESK_KEY


async def test_a_form_is_written_as_one(library: ApiCollection, api: Api) -> None:
    body = {"condition": "worn", "notes": ["page 3 & 4", "späte Rückgabe"]}
    assert await library.call_task_tool("returnBook", {"loan": 7, "body": body}) == "204 No Content"
    assert api.asked[0].headers["content-type"] == "application/x-www-form-urlencoded"
    assert api.asked[0].body == b"condition=worn&notes=page%203%20%26%204&notes=sp%C3%A4te%20R%C3%BCckgabe"
    await library.call_task_tool("returnBook", {"loan": 7})
    assert (api.asked[1].body, "content-type" in api.asked[1].headers) == (b"", False)


async def test_a_bearer_key_is_sent_to_who_asks_for_one(library: ApiCollection) -> None:
    assert await library.call_task_tool("getReader", {"reader": "Cleo"}) == {"name": "Cleo", "loans": []}


@pytest.mark.parametrize(
    ("value", "sent"),
    [
        ("a/b", "/files/a%2Fb"),
        ("a?b=c#d", "/files/a%3Fb%3Dc%23d"),
        ("%2e%2e", "/files/%252e%252e"),
        ("..x", "/files/..x"),
        ("a b\r\nHost: x", "/files/a%20b%0D%0AHost%3A%20x"),
        ("ü\ud800", "/files/%C3%BC%3F"),
        (True, "/files/true"),
        ([1, "b,c"], "/files/1,b%2Cc"),
        ({"k": "v;w"}, "/files/k,v%3Bw"),
    ],
)
async def test_a_value_in_the_path_stays_one_step_of_it(
    tmp_path: Path, api: Api, url: str, value: object, sent: str
) -> None:
    async with api_with(tmp_path, url, {"/files/{name}": get(parameter("name", "path"), operationId="file")}) as files:
        await files.call_task_tool("file", {"name": value})
    assert api.asked[0].target == sent


@pytest.mark.parametrize("value", ["..", ".", "../../admin", "a/../../admin", "a\\..\\b", "", [], None])
async def test_a_value_that_would_lead_to_another_path_is_refused(
    tmp_path: Path, api: Api, url: str, value: object
) -> None:
    async with api_with(
        tmp_path, url, {"/files/{name}/x": get(parameter("name", "path"), operationId="file")}
    ) as files:
        with pytest.raises(ToolError, match="part of the address"):
            await files.call_task_tool("file", {"name": value})
    assert api.asked == []


async def test_two_values_cannot_make_a_step_up_together(tmp_path: Path, api: Api, url: str) -> None:
    paths = {"/files/{a}{b}/x": get(parameter("a", "path"), parameter("b", "path"), operationId="file")}
    async with api_with(tmp_path, url, paths) as files:
        with pytest.raises(ToolError, match="steps"):
            await files.call_task_tool("file", {"a": ".", "b": "."})
    assert api.asked == []


async def test_queries_are_written_in_every_style(tmp_path: Path, api: Api, url: str) -> None:
    paths = {
        "/q": get(
            parameter("commas", "query", explode=False),
            parameter("spaces", "query", style="spaceDelimited"),
            parameter("pipes", "query", style="pipeDelimited"),
            parameter("fields", "query"),
            parameter("deep", "query", style="deepObject"),
            {"name": "filter[json]", "in": "query", "content": {"application/json": {"schema": {"type": "object"}}}},
            operationId="q",
        )
    }
    arguments = {
        "commas": ["a", "b,c"],
        "spaces": [1, 2],
        "pipes": [True, None],
        "fields": {"x": "1&2"},
        "deep": {"a": {"b": 1.5}},
        "filter_json": {"k": ["v"]},
    }
    async with api_with(tmp_path, url, paths) as styles:
        await styles.call_task_tool("q", arguments)
    assert urlsplit(api.asked[0].target).query.split("&") == [
        "commas=a,b%2Cc",
        "spaces=1%202",
        "pipes=true%7C",
        "x=1%262",
        "deep%5Ba%5D%5Bb%5D=1.5",
        "filter%5Bjson%5D=%7B%22k%22%3A%5B%22v%22%5D%7D",
    ]


async def test_what_is_not_given_is_not_sent(tmp_path: Path, api: Api, url: str) -> None:
    paths = {"/q": get(parameter("a", "query"), parameter("X-B", "header"), parameter("c", "cookie"), operationId="q")}
    async with api_with(tmp_path, url, paths) as some:
        await some.call_task_tool("q", {"a": None})
        await some.call_task_tool("q", {"c": "x; admin=1", "X-B": ["1", "2"]})
    assert api.asked[0].target == "/q"
    assert not {"x-b", "cookie", "content-type"} & api.asked[0].headers.keys()
    assert api.asked[1].headers["cookie"] == "c=x%3B%20admin%3D1"
    assert api.asked[1].headers["x-b"] == "1,2"


@pytest.mark.parametrize("value", ["a\r\nX-Admin: 1", "a\nb", "a\0b", "é", {"k\r\nX": "v"}, ["a", "\n"]])
async def test_no_value_can_add_a_header(tmp_path: Path, api: Api, url: str, value: object) -> None:
    paths = {"/q": get(parameter("X-B", "header"), operationId="q")}
    async with api_with(tmp_path, url, paths) as some:
        with pytest.raises(ToolError, match="'X-B' is sent as a header"):
            await some.call_task_tool("q", {"X-B": value})
    assert api.asked == []


async def test_headers_that_belong_to_the_request_are_no_parameters(tmp_path: Path, api: Api, url: str) -> None:
    paths = {"/q": get(*(parameter(n, "header") for n in ("Host", "Authorization", "Content-Length")), operationId="q")}
    async with api_with(tmp_path, url, paths) as some:
        assert some.catalogue["q"].input_schema == {
            "type": "object",
            "properties": {},
            "required": [],
            "additionalProperties": False,
        }
        await some.call_task_tool("q", {"Host": "evil.example", "Authorization": "x"})
    assert api.asked[0].headers["host"] == urlsplit(url).netloc
    assert "authorization" not in api.asked[0].headers


async def test_two_parameters_of_one_name_are_two_arguments(tmp_path: Path, api: Api, url: str) -> None:
    paths = {"/q/{id}": get(parameter("id", "path"), parameter("id", "query"), operationId="q")}
    async with api_with(tmp_path, url, paths) as some:
        await some.call_task_tool("q", {"id": "a", "id_2": "b"})
    assert api.asked[0].target == "/q/a?id=b"


async def test_texts_and_other_kinds_of_json_are_sent_as_what_they_are(tmp_path: Path, api: Api, url: str) -> None:
    def post(name: str, media: str) -> dict[str, Any]:
        return {"post": {"operationId": name, "requestBody": {"content": {media: {"schema": {}}}}, "responses": {}}}

    paths = {"/a": post("text", "text/plain; charset=utf-8"), "/b": post("json", "application/vnd.api+json")}
    async with api_with(tmp_path, url, paths) as some:
        await some.call_task_tool("text", {"body": "ü"})
        await some.call_task_tool("json", {"body": {"n": float("nan")}})
    sent = [(asked.headers["content-type"], asked.body) for asked in api.asked]
    assert sent == [("text/plain", "ü".encode()), ("application/vnd.api+json", b'{"n":null}')]


# Keys

SCHEMES = {
    "head": {"type": "apiKey", "in": "header", "name": "X-Key"},
    "ask": {"type": "apiKey", "in": "query", "name": "key"},
    "jar": {"type": "apiKey", "in": "cookie", "name": "sid"},
    "pair": {"type": "http", "scheme": "Basic"},
    "oauth": {"type": "oauth2", "flows": {}},
    "tls": {"type": "mutualTLS"},
}
SECRET = "s3cret/key=="


def secured(*ways: dict[str, Any], name: str = "q", path: str = "/echo") -> dict[str, Any]:
    return {path: get(parameter("X-Key", "header"), parameter("key", "query"), operationId=name, security=list(ways))}


@pytest.mark.parametrize(
    ("scheme", "sent"),
    [
        ("head", ("x-key", SECRET)),
        ("jar", ("cookie", f"sid={SECRET}")),
        ("pair", ("authorization", "Basic czNjcmV0L2tleT09")),
        ("oauth", ("authorization", f"Bearer {SECRET}")),
    ],
)
async def test_each_kind_of_key_goes_where_its_scheme_says(
    tmp_path: Path, api: Api, url: str, scheme: str, sent: tuple[str, str]
) -> None:
    paths = secured({scheme: []})
    async with api_with(tmp_path, url, paths, key=SECRET, components={"securitySchemes": SCHEMES}) as some:
        shown = await some.call_task_tool("q", {})
    assert sent in api.asked[0].headers.items()
    assert SECRET not in str(shown), "the API repeats what it was sent, and the agent reads that"
    assert "czNjcmV0L2tleT09" not in str(shown)


async def test_a_key_in_the_query_is_nowhere_else(
    tmp_path: Path, api: Api, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    more = {"key": SECRET, "components": {"securitySchemes": SCHEMES}}
    async with api_with(tmp_path, url, secured({"ask": []}), **more) as some:
        shown = str(await some.call_task_tool("q", {}))
        assert "key" not in some.catalogue["q"].input_schema["properties"], "an argument would come beside it"
        assert "X-Key" in some.catalogue["q"].input_schema["properties"]
        described = f"{some.operations['q']!r} {some.operations['q'].request({})!r} {some.catalogue}"
    assert api.asked[0].target == "/echo?key=s3cret%2Fkey%3D%3D"
    ours = " ".join(record.getMessage() for record in caplog.records if record.name != "uvicorn.access")
    for text in (shown, described, ours):
        assert "s3cret" not in text


async def test_the_first_way_that_has_all_its_keys_is_taken(tmp_path: Path, api: Api, url: str) -> None:
    keys = {"head": "the-head", "ask": "the-ask"}
    paths = secured({}, {"oauth": [], "head": []}, {"tls": []}, {"head": [], "ask": []}, {"head": []})
    async with api_with(tmp_path, url, paths, key=keys, components={"securitySchemes": SCHEMES}) as some:
        await some.call_task_tool("q", {})
    assert (api.asked[0].headers["x-key"], api.asked[0].target) == ("the-head", "/echo?key=the-ask")


async def test_an_api_that_needs_no_key_is_asked_without_one(tmp_path: Path, api: Api, url: str) -> None:
    paths = secured({"oauth": []}, {})
    async with api_with(tmp_path, url, paths, components={"securitySchemes": SCHEMES}) as some:
        await some.call_task_tool("q", {})
    assert "authorization" not in api.asked[0].headers


async def test_neither_half_of_a_name_and_password_that_is_secret_is_shown(tmp_path: Path, api: Api, url: str) -> None:
    more = {"key": "clerk:s3cret", "components": {"securitySchemes": SCHEMES}}
    async with api_with(tmp_path, f"{url}/s3cret", secured({"pair": []}), **more) as some:
        shown = str(await some.call_task_tool("q", {}))
    assert api.asked[0].headers["authorization"] == "Basic Y2xlcms6czNjcmV0"
    assert "'target': '/***/echo'" in shown
    assert "Y2xlcms6czNjcmV0" not in shown


async def test_without_its_key_an_api_is_not_asked_at_all(api: Api, url: str, caplog: pytest.LogCaptureFixture) -> None:
    async with one_session(collection(LIBRARY, base_url=f"{url}/v1", key={"desk": DESK_KEY})) as session:
        with pytest.raises(ServiceUnavailable, match="none is set for 'staff'"):
            await session.call_task_tool("getReader", {"reader": "Cleo"})
    assert api.asked == []
    assert "TownLibrary: no key is set for 'staff', which 1 of its tools need" in caplog.text


async def test_an_operation_that_needs_no_key_gets_none(library: ApiCollection, api: Api) -> None:
    await library.call_task_tool("searchBooks", {})
    assert not {"x-library-key", "authorization"} & api.asked[0].headers.keys()


async def test_a_key_that_the_api_repeats_in_an_error_is_not_shown(tmp_path: Path, url: str) -> None:
    paths = {f"/status/{code}": secured({"head": []}, name=f"s{code}")["/echo"] for code in (400, 401, 503)}
    async with api_with(tmp_path, url, paths, key=SECRET, components={"securitySchemes": SCHEMES}) as some:
        for code in (400, 401, 503):
            with pytest.raises((ToolError, ServiceUnavailable), match=rf"{code} .*because of \*\*\* x") as told:
                await some.call_task_tool(f"s{code}", {})
            assert len(str(told.value)) < 600


async def test_cookies_of_one_session_are_not_those_of_another(tmp_path: Path, api: Api, url: str) -> None:
    async with api_with(tmp_path, url, {"/echo": get(operationId="q")}) as some:
        await some.call_task_tool("q", {})
        await some.call_task_tool("q", {})
    assert all("cookie" not in asked.headers for asked in api.asked)


# Answers


@pytest.mark.parametrize("code", [400, 404, 405, 409, 410, 418, 422, 451])
async def test_what_the_agent_did_wrong_it_is_told(tmp_path: Path, url: str, code: int) -> None:
    async with api_with(tmp_path, url, {f"/status/{code}": get(operationId="q")}) as some:
        with pytest.raises(ToolError, match=f"^the API answered {code} .*: because"):
            await some.call_task_tool("q", {})


@pytest.mark.parametrize("code", [401, 403, 407, 408, 429, 500, 502, 503, 504])
async def test_what_the_agent_can_do_nothing_about_is_not_its_failure(tmp_path: Path, url: str, code: int) -> None:
    async with api_with(tmp_path, url, {f"/status/{code}": get(operationId="q")}) as some:
        with pytest.raises(ServiceUnavailable, match=f"^the API answered {code} "):
            await some.call_task_tool("q", {})


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("words", "plain words"),
        ("packed", {"unpacked": True}),
        ("wrong", "{not JSON"),
        ("binary", "[6 bytes of application/pdf]"),
        ("deep", "[" * 5000 + "]" * 5000),
        ("large", {"numbers": list(range(200_000))}),
    ],
)
async def test_answers_of_every_kind_are_understood(tmp_path: Path, url: str, kind: str, value: object) -> None:
    async with api_with(tmp_path, url, {f"/answer/{kind}": get(operationId="q")}) as some:
        assert await some.call_task_tool("q", {}) == value


async def test_an_answer_that_is_too_long_is_not_taken(tmp_path: Path, url: str) -> None:
    async with api_with(tmp_path, url, {"/answer/huge": get(operationId="q")}) as some:
        with pytest.raises(ToolError, match="longer than 8,388,608 bytes"):
            await some.call_task_tool("q", {})


async def test_an_answer_that_unpacks_to_too_much_is_not_unpacked(tmp_path: Path, url: str) -> None:
    async with api_with(tmp_path, url, {"/answer/bomb": get(operationId="q")}) as some:
        tracemalloc.start()
        try:
            with pytest.raises(ToolError, match="longer than"):
                await some.call_task_tool("q", {})
            assert tracemalloc.get_traced_memory()[1] < 32 * 2**20, "it is 64 MiB"
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize(("kind", "problem"), [("strange", "packed as 'br'"), ("torn", "ends too early")])
async def test_an_answer_that_cannot_be_unpacked_is_the_apis_failure(
    tmp_path: Path, url: str, kind: str, problem: str
) -> None:
    async with api_with(tmp_path, url, {f"/answer/{kind}": get(operationId="q")}) as some:
        with pytest.raises(ServiceUnavailable, match=problem):
            await some.call_task_tool("q", {})


async def test_an_api_that_is_slow_is_given_up_in_time(tmp_path: Path, url: str) -> None:
    path = described(tmp_path, {"/slow": get(operationId="q")})
    async with one_session(collection(path, base_url=url, seconds=0.3)) as some:
        started = time.monotonic()
        with pytest.raises(ServiceUnavailable, match=r"no answer within 0\.3 seconds"):
            await some.call_task_tool("q", {})
        assert time.monotonic() - started < 5


async def test_an_api_that_is_not_there_is_not_the_agents_failure(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # not listening
        path = described(tmp_path, {"/q": get(operationId="q")})
        async with one_session(collection(path, base_url=f"http://127.0.0.1:{taken.getsockname()[1]}")) as some:
            with pytest.raises(ServiceUnavailable, match="cannot be reached: ConnectError"):
                await some.call_task_tool("q", {})


# Destinations


def moving(where: str) -> dict[str, Any]:
    both = {**get(operationId="get"), "post": {"operationId": "post", "responses": {}}}
    both["post"]["requestBody"] = {"content": {"application/json": {"schema": {}}}}
    return {f"/moved/{where}": both}


async def test_a_redirect_within_the_host_is_followed(tmp_path: Path, api: Api, url: str) -> None:
    async with api_with(tmp_path, url, moving("here")) as some:
        assert (await some.call_task_tool("get", {}))["target"] == "/echo/there?a=1"  # type: ignore[index]
        await some.call_task_tool("post", {"body": 1})
    assert [(asked.method, asked.body) for asked in api.asked[-2:]] == [("POST", b"1"), ("GET", b"")]


async def test_a_redirect_that_keeps_the_method_keeps_the_body(tmp_path: Path, api: Api, url: str) -> None:
    async with api_with(tmp_path, url, moving("kept")) as some:
        await some.call_task_tool("post", {"body": 1})
    assert [(asked.method, asked.target, asked.body) for asked in api.asked] == [
        ("POST", "/moved/kept", b"1"),
        ("POST", "/echo/kept", b"1"),
    ]


async def test_a_redirect_to_another_host_is_not_followed(tmp_path: Path, api: Api, url: str) -> None:
    other = Api()
    more = {"key": SECRET, "components": {"securitySchemes": SCHEMES}, "security": [{"head": []}]}
    with serving(other.app) as api.elsewhere:
        async with api_with(tmp_path, url, moving("away"), **more) as some:
            with pytest.raises(ServiceUnavailable, match="redirects to another server"):
                await some.call_task_tool("get", {})
    assert (len(api.asked), other.asked) == (1, [])


@pytest.mark.parametrize("where", ["round", "odd"])
async def test_a_redirect_that_leads_nowhere_ends(tmp_path: Path, api: Api, url: str, where: str) -> None:
    async with api_with(tmp_path, url, moving(where)) as some:
        with pytest.raises(ServiceUnavailable):
            await some.call_task_tool("get", {})
    assert len(api.asked) <= 6


@asynccontextmanager
async def one_line(addresses: Addresses) -> AsyncIterator[ApiConnections]:
    """Connections to a server that only a document names."""
    line = ApiConnections(addresses, sessions=1)
    try:
        yield line
    finally:
        await line.leave()


async def test_a_name_that_only_a_document_has_is_not_asked_if_it_leads_inside(url: str, api: Api) -> None:
    inside = url.replace("127.0.0.1", "localhost")
    async with one_line(Addresses()) as line:
        with pytest.raises(ServiceUnavailable, match="localhost has no public address"):
            await line.ask(ApiRequest("GET", f"{inside}/echo", {}), 5)
    assert api.asked == []


async def test_a_name_is_looked_up_once_and_that_address_is_asked(url: str, api: Api) -> None:
    named = url.replace("127.0.0.1", "localhost")
    async with one_line(Addresses.parse("127.0.0.1")) as line:
        for _ in range(2):
            await line.ask(ApiRequest("GET", f"{named}/echo", {}), 5)
    assert {asked.headers["host"] for asked in api.asked} == {urlsplit(named).netloc}
    assert len(api.peers) == 2, "a connection by address is not kept for another name"


async def test_a_certificate_must_be_that_of_the_name_and_not_of_the_address(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(PEM))  # issued for 127.0.0.1
    http.tls.cache_clear()
    try:
        with serving(api.app, ssl_certfile=str(PEM), ssl_keyfile=str(PEM), loop="asyncio") as url:
            async with one_line(Addresses.parse("127.0.0.1")) as line:
                assert (await line.ask(ApiRequest("GET", f"{url}/echo", {}), 5)).status == 200
                named = url.replace("127.0.0.1", "localhost")
                with pytest.raises(ServiceUnavailable, match="cannot be reached"):
                    await line.ask(ApiRequest("GET", f"{named}/echo", {}), 5)
    finally:
        http.tls.cache_clear()
    assert len(api.asked) == 1


async def test_a_server_with_tls_is_asked_through_the_proxy_that_variables_name(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(PEM))
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    http.tls.cache_clear()
    try:
        with serving(api.app, ssl_certfile=str(PEM), ssl_keyfile=str(PEM), loop="asyncio") as url:
            async with one_proxy() as (proxy, wanted):
                monkeypatch.setenv("HTTPS_PROXY", proxy)
                for addresses in (None, Addresses.parse("127.0.0.1")):
                    line = ApiConnections(addresses, sessions=1)
                    assert (await line.ask(ApiRequest("GET", f"{url}/echo", {}), 5)).status == 200
                    await line.leave()
            assert wanted == [f"CONNECT {urlsplit(url).netloc} HTTP/1.1"] * 2
    finally:
        http.tls.cache_clear()


@asynccontextmanager
async def one_proxy() -> AsyncIterator[tuple[str, list[str]]]:
    """Its address, and the requests that it got."""
    wanted: list[str] = []

    async def carry(source: ByteStream, sink: ByteStream) -> None:
        with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
            while True:
                await sink.send(await source.receive())

    async def serve(near: ByteStream) -> None:
        wanted.append((await near.receive()).decode().partition("\r\n")[0])
        host, _, port = wanted[-1].split()[1].partition(":")
        async with near, await anyio.connect_tcp(host, int(port)) as far, anyio.create_task_group() as both:
            await near.send(b"HTTP/1.1 200 OK\r\n\r\n")
            both.start_soon(carry, far, near)
            await carry(near, far)
            both.cancel_scope.cancel()

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, serve)
        yield f"http://127.0.0.1:{listener.extra(SocketAttribute.local_port)}", wanted
        group.cancel_scope.cancel()


@pytest.mark.parametrize(
    "server",
    ["http://localhost:8080", "http://10.0.0.1", "https://[::1]/v1", "http://169.254.169.254", "http://a.localhost"],
)
def test_a_document_cannot_name_a_server_inside(tmp_path: Path, server: str) -> None:
    path = described(tmp_path, {"/q": get()}, servers=[{"url": server}])
    with pytest.raises(DefinitionError, match=r"#/servers/0/url: .* is not a public address"):
        collection(path)


async def test_connections_are_shared_by_sessions_and_closed_with_the_last(library: ApiCollection, api: Api) -> None:
    toolset = type(library)
    await library.call_task_tool("searchBooks", {})
    async with one_session(toolset) as other:
        await other.call_task_tool("searchBooks", {})
    await library.call_task_tool("searchBooks", {})
    assert len(api.peers) == 1
    async with one_session(toolset) as other:
        await other.call_task_tool("searchBooks", {})
        (line,) = toolset._connections_of_loops.values()
        assert line.sessions == 2
    assert (line.sessions, len(line._transports)) == (1, 1)
