"""Requests from web pages: which ones every wire accepts, and what the others get."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import anyio
import httpx2
import pytest

from tests.command import TOOLYARD, WarmCommand
from tests.worlds import MathEnv
from toolyard import Server
from toolyard.settings import Settings, SettingsError
from toolyard.testing import Running, running

EXAMPLE = Path(__file__).parents[2] / "examples" / "arithmetic.py"
INSPECTOR = "http://localhost:6274"

ASKED = [
    ("GET", "/"),
    ("GET", "/health"),
    ("GET", "/metrics"),
    ("GET", "/list_environments"),
    ("POST", "/create_session"),
    ("POST", "/mathenv/call"),
    ("POST", "/get_observation"),
    ("POST", "/verl/get_observation"),
    ("POST", "/run_code"),
    ("GET", "/get_cookie"),
    ("POST", "/execute_tool"),
    ("POST", "/toolserver/execute_tool"),
    ("POST", "/mcp"),
    ("POST", "/mcp/mathenv"),
    ("POST", "/openenv/mathenv/mcp"),
    ("POST", "/openenv/mathenv/reset"),
    ("GET", "/openenv/mathenv/ws"),
    ("GET", "/sessions/x/outcome"),
    ("GET", "/nothing/here"),
    ("OPTIONS", "/get_observation"),
]
"""A request of every wire."""


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(
        [MathEnv], tools="base", allow_origin=(INSPECTOR,), allow_host=("tools.example", "other.example:99")
    ) as one:
        yield one


@pytest.fixture(scope="module")
def plain() -> Iterator[Running]:
    """A server as a developer starts it: on loopback, without a key or any list."""
    with running([MathEnv]) as one:
        yield one


@contextmanager
def command(*args: str, says: str = r"http://127\.0\.0\.1:\d+") -> Iterator[str]:
    """A started server, and its address."""
    process = WarmCommand([TOOLYARD, *args, "--port", "0"], env={})
    try:
        yield process.until(says).group()
    finally:
        process.process.terminate()
        process.wait()


def serving(*flags: str) -> AbstractContextManager[str]:
    return command("serve", str(EXAMPLE), *flags)


def ask(
    url: str, method: str = "GET", path: str = "/health", body: bytes = b"", host: str | None = None, **headers: str
) -> HTTPResponse:
    """A request with just these headers. In names of headers `_` stands for `-`."""
    with closing(HTTPConnection(url.removeprefix("http://"), timeout=10)) as connection:
        connection.putrequest(method, path, skip_host=host is not None, skip_accept_encoding=True)
        if host:
            connection.putheader("Host", host)
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        answer.text = answer.read().decode()  # type: ignore[attr-defined]
        return answer


def said(answer: HTTPResponse) -> str:
    return json.loads(answer.text)["error"]  # type: ignore[attr-defined]


# The host name of a request.


@pytest.mark.parametrize(("method", "path"), ASKED)
def test_no_route_of_any_wire_answers_to_a_name_that_a_page_made_up(plain, method, path):
    answer = ask(plain.url, method, path, host="rebound.example")
    assert answer.status == 421
    assert "'rebound.example'" in said(answer)
    assert "--allow-host rebound.example" in said(answer)


@pytest.mark.parametrize(
    "host",
    [
        *("rebound.example:{port}", "127.0.0.1.rebound.example", "localhost.rebound.example", "notlocalhost"),
        *("169.254.169.254", "10.0.0.1", "0.0.0.0:{port}", "[::]", "[::ffff:10.0.0.1]"),
        *("localhost@rebound.example", "localhost:80:80", "."),
        *(
            "[::ffff:127.0.0.1]",
            "[::ffff:7f00:1]:{port}",
            "[::1%rebound.example]",
        ),  # browsers do not send Sec-Fetch-Site there
    ],
)
def test_a_name_that_only_looks_like_this_machine_is_another(plain, host):
    port = plain.url.rpartition(":")[2]
    assert ask(plain.url, host=host.format(port=port)).status == 421


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:8080", "127.0.0.1", "127.0.0.1:9", "127.9.9.9:1", "[::1]", "[::1]:8080", "a.localhost:1"],
)
def test_every_name_of_loopback_is_answered_at_any_port_so_tunnels_work(plain, host):
    assert ask(plain.url, host=host).status == 200


def test_a_request_without_a_host_comes_from_no_browser(plain):
    assert ask(plain.url, host="").status == 200


def test_a_host_that_is_empty_comes_from_no_browser_either(plain):
    with closing(HTTPConnection(plain.url.removeprefix("http://"), timeout=10)) as connection:
        connection.putrequest("GET", "/health", skip_host=True)
        connection.putheader("Host", "")
        connection.endheaders()
        assert connection.getresponse().status == 200


def test_long_names_of_this_machine_are_answered_and_take_no_memory(plain):
    for number in range(20):
        assert ask(plain.url, host=f"{number}{'a' * 50_000}.localhost").status == 200
    assert sum(map(len, plain.server._gate._known)) < 10_000


def test_a_socket_with_a_path_does_not_open_the_one_on_loopback_to_any_name(tmp_path):
    server = Server([MathEnv])
    with socket.socket(socket.AF_UNIX) as by_path, socket.create_server(("127.0.0.1", 0)) as on_loopback:
        by_path.bind(str(tmp_path / "socket"))
        started = threading.Event()
        thread = threading.Thread(target=server.serve, args=(by_path, on_loopback), kwargs={"on_start": started.set})
        thread.start()
        try:
            assert started.wait(30)
            url = f"http://127.0.0.1:{on_loopback.getsockname()[1]}"
            assert ask(url, host="rebound.example").status == 421
            assert ask(url, host="localhost").status == 200
        finally:
            server.stop()
            thread.join()


def test_a_name_that_is_allowed_is_answered_and_loopback_still_is(server):
    assert ask(server.url, host="tools.example").status == 200
    assert ask(server.url, host="Tools.Example:8443").status == 200
    assert ask(server.url, host="localhost:1").status == 200
    assert ask(server.url, host="rebound.example").status == 421


def test_a_name_that_is_allowed_at_one_port_is_not_at_others(server):
    assert ask(server.url, host="other.example:99").status == 200
    assert ask(server.url, host="other.example:98").status == 421
    assert ask(server.url, host="other.example").status == 421


def test_with_a_key_any_name_is_answered_unless_there_is_a_list():
    with running([MathEnv], api_key="k") as one:
        assert ask(one.url, host="anything.example").status == 200
        assert ask(one.url, path="/list_environments", host="anything.example").status == 401
    with running([MathEnv], api_key="k", allow_host=("tools.example",)) as one:
        assert ask(one.url, host="anything.example").status == 421
        assert ask(one.url, host="tools.example").status == 200


@pytest.mark.parametrize(("flags", "status"), [([], 200), (["--allow-host", "tools.example"], 421)])
def test_on_every_address_any_name_is_answered_unless_there_is_a_list(flags, status):
    with serving("--host", "0.0.0.0", "--allow-anonymous", *flags) as url:
        assert ask(url, host="anything.example").status == status
        assert ask(url, host="tools.example").status == 200


@pytest.mark.parametrize(("allowed", "status"), [((), 200), (("tools.example",), 421)])
def test_under_another_server_the_name_counts_only_if_there_is_a_list(allowed, status):
    app = Server([MathEnv], settings=Settings(allow_host=allowed)).app

    async def look() -> int:
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://testserver") as client:
            return (await client.get("/list_environments")).status_code

    assert anyio.run(look) == status


# The origin of the requesting page.


@pytest.mark.parametrize(("method", "path"), ASKED)
@pytest.mark.parametrize("origin", ["https://evil.example", "null", "http://localhost:1", "file://", "", "http://"])
def test_no_route_of_any_wire_takes_a_request_of_a_foreign_page(server, method, path, origin):
    answer = ask(server.url, method, path, b"{}", Origin=origin, Content_Type="text/plain")
    assert answer.status == 403
    assert "--allow-origin" in said(answer)
    assert answer.headers["access-control-allow-origin"] is None


@pytest.mark.parametrize(("method", "path"), ASKED)
@pytest.mark.parametrize("site", ["cross-site", "same-site", "anything"])
def test_no_route_of_any_wire_takes_what_a_foreign_page_embeds(server, method, path, site):
    answer = ask(server.url, method, path, Sec_Fetch_Site=site, Sec_Fetch_Mode="no-cors", Sec_Fetch_Dest="image")
    assert answer.status == 403
    assert "--allow-origin" in said(answer)


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_our_own_pages_and_an_address_that_somebody_types_are_answered(server, site):
    assert ask(server.url, path="/list_environments", Sec_Fetch_Site=site).status == 200


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://{here}", None),
        ("https://{here}", None),  # a proxy has added TLS
        ("https://tools.example", "tools.example"),
        ("https://tools.example", "tools.example:443"),
        ("http://tools.example", "tools.example:80"),
        ("https://TOOLS.example:8443", "tools.example:8443"),
    ],
)
def test_a_page_that_came_from_this_server_is_answered(server, origin, host):
    here = server.url.removeprefix("http://")
    answer = ask(server.url, path="/list_environments", host=host, Origin=origin.format(here=here))
    assert answer.status == 200


@pytest.mark.parametrize(
    ("origin", "host"),
    [
        ("http://tools.example:80", "tools.example:443"),
        ("http://tools.example", "tools.example:8080"),
        ("http://tools.example.evil.example", "tools.example"),
        ("http://evil.example/tools.example", "tools.example"),
        ("tools.example", "tools.example"),
    ],
)
def test_a_page_of_another_port_or_name_is_foreign(server, origin, host):
    assert ask(server.url, host=host, Origin=origin).status == 403


def test_a_link_on_another_site_leads_to_a_page_for_people_and_nowhere_else(server):
    link = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    assert ask(server.url, path="/", **link).status == 200
    assert ask(server.url, path="/get_cookie", **link).status == 403
    assert ask(server.url, path="/list_environments", **link).status == 403
    assert ask(server.url, "POST", "/", **link).status == 403
    assert ask(server.url, path="/", **link | {"Sec_Fetch_Dest": "iframe"}).status == 403
    assert ask(server.url, path="/", **link | {"Sec_Fetch_Mode": "no-cors"}).status == 403


def test_no_address_that_a_browser_opens_makes_a_node(server):
    """Another site may redirect a typed address here, and the browser does not say so."""
    typed = {"Sec_Fetch_Site": "none", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    for path in ("/get_cookie", "/get_cookies", "/toolserver/get_cookie"):
        answer = ask(server.url, path=path, **typed)
        assert answer.status == 403
        assert answer.headers["set-cookie"] is None
    assert not server.server.runtime.sessions


def test_no_cache_keeps_a_refusal_for_those_who_are_let_in(server):
    refused = [
        ask(server.url, host="rebound.example"),
        ask(server.url, Origin="https://evil.example"),
        ask(server.url, Sec_Fetch_Site="cross-site"),
    ]
    assert [answer.headers["cache-control"] for answer in refused] == ["no-store"] * 3


def test_nobody_is_told_to_allow_the_origin_that_every_page_can_have(server):
    told = said(ask(server.url, Origin="null"))
    assert "--allow-origin" in told
    assert "--allow-origin null" not in told


def test_a_refused_request_has_done_nothing(server):
    ask(server.url, "POST", "/create_session", Origin="https://evil.example")
    ask(server.url, "GET", "/get_cookie", Sec_Fetch_Site="cross-site")
    assert not server.server.runtime.sessions


def test_a_key_does_not_let_a_foreign_page_in():
    with running([MathEnv], api_key="k") as one:
        assert ask(one.url, path="/list_environments", Origin="https://evil.example", X_API_Key="k").status == 403
        assert ask(one.url, path="/list_environments", X_API_Key="k").status == 200


# Pages of an allowed origin.


@pytest.mark.parametrize(
    ("allowed", "sent"),
    [
        ("http://Studio.example:80", "http://studio.example"),
        ("https://studio.example:443", "https://studio.example"),
        ("file://", "file://"),
        ("vscode-webview://0a1b-2c", "vscode-webview://0a1b-2c"),
    ],
)
def test_an_origin_is_let_in_however_the_operator_writes_it(allowed, sent):
    with running([MathEnv], allow_origin=(allowed,)) as one:
        assert ask(one.url, Origin=sent).headers["access-control-allow-origin"] == sent


def test_a_page_of_an_allowed_origin_may_read_every_answer_even_an_error(server):
    for path, status in ("/list_environments", 200), ("/nothing/here", 404):
        answer = ask(server.url, path=path, Origin=INSPECTOR, Sec_Fetch_Site="same-site")
        assert answer.status == status
        assert answer.headers["access-control-allow-origin"] == INSPECTOR
        assert answer.headers["access-control-allow-credentials"] == "true"
        assert answer.headers["vary"] == "Origin"


def test_a_page_of_an_allowed_origin_may_read_a_stream(server):
    with closing(HTTPConnection(server.url.removeprefix("http://"), timeout=10)) as connection:
        page = {"Origin": INSPECTOR, "Content-Type": "application/json"}
        connection.request("POST", "/create_session", "{}", page)
        sid = json.loads(connection.getresponse().read())["sid"]
        page["X-Session-ID"] = sid
        connection.request("POST", "/create", json.dumps({"split": "train", "index": 0, "env_name": "mathenv"}), page)
        assert connection.getresponse().read()
        connection.request("POST", "/mathenv/call", json.dumps({"name": "submit", "input": {"answer": "0"}}), page)
        stream = connection.getresponse()
        assert stream.headers["access-control-allow-origin"] == INSPECTOR
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert b"event: end" in stream.read()
        connection.request("POST", "/delete", "{}", page)
        assert connection.getresponse().status == 200


def test_a_preflight_of_an_allowed_origin_is_answered_before_the_key_is_asked_for():
    asked = {"Access_Control_Request_Method": "POST", "Access_Control_Request_Headers": "content-type,x-api-key"}
    with running([MathEnv], api_key="k", allow_origin=(INSPECTOR,)) as one:
        answer = ask(one.url, "OPTIONS", "/mathenv/call", Origin=INSPECTOR, **asked)
        assert answer.status == 200
        assert answer.headers["access-control-allow-origin"] == INSPECTOR
        assert "POST" in answer.headers["access-control-allow-methods"]
        assert answer.headers["access-control-allow-headers"] == "content-type,x-api-key"
        refused = ask(one.url, "OPTIONS", "/mathenv/call", Origin="https://evil.example", **asked)
        assert refused.status == 403
        assert ask(one.url, path="/list_environments", Origin=INSPECTOR).status == 401


def test_a_client_that_is_no_browser_sees_no_sign_of_it(server):
    answer = ask(server.url, "POST", "/create_session", Content_Type="text/plain")
    assert answer.status == 200
    assert not [name for name in answer.headers if name.startswith("access-control") or name == "vary"]


# Elsewhere.


def test_of_several_gateways_each_looks_and_an_allowed_page_is_told_once():
    with serving("--gateways", "2", "--allow-origin", INSPECTOR) as url:
        for _ in range(8):  # connections spread over the gateways
            assert ask(url, host="rebound.example").status == 421
            assert ask(url, Origin="https://evil.example").status == 403
            created = ask(url, "POST", "/create_session", Origin=INSPECTOR)
            sid = json.loads(created.text)["sid"]  # type: ignore[attr-defined]
            for _ in range(4):
                answer = ask(url, "POST", "/ping", b"{}", Origin=INSPECTOR, X_Session_ID=sid)
                assert answer.headers.get_all("access-control-allow-origin") == [INSPECTOR]


def test_the_retriever_has_the_same_gate(tmp_path):
    (tmp_path / "corpus.txt").write_text("One passage.\n\nAnother one.\n")
    with command("retriever", str(tmp_path / "corpus.txt"), "--allow-host", "tools.example") as url:
        assert ask(url, host="tools.example").status == 200
        assert ask(url, host="rebound.example").status == 421
        assert ask(url, "POST", "/retrieve", b"{}", Origin="https://evil.example").status == 403


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"allow_host": ("http://tools.example",)}, "allow_host is 'http://tools.example'; it must be a name"),
        ({"allow_host": ("tools.example/",)}, "must be a name"),
        ({"allow_host": ("*",)}, "must be a name"),
        ({"allow_origin": ("localhost:6274",)}, "allow_origin is 'localhost:6274'; it must be an origin"),
        ({"allow_origin": ("http://localhost:6274/",)}, "must be an origin"),
        ({"allow_origin": ("*",)}, "must be an origin"),
        ({"allow_origin": ("null",)}, "must be an origin"),
        ({"allow_host": ("b\u00fccher.example",)}, "in ASCII, as clients send it"),
        ({"allow_origin": ("http://b\u00fccher.example",)}, "in ASCII, as browsers send it"),
    ],
)
def test_a_list_that_would_never_match_is_refused_at_the_start(settings, words):
    with pytest.raises(SettingsError, match=words.replace("(", r"\(").replace("*", r"\*")):
        Settings(**settings)


def test_names_may_be_given_as_a_variable_separated_by_commas():
    found = Settings.read({}, {"TOOLYARD_ALLOW_HOST": "a.example, b.example:80", "TOOLYARD_ALLOW_ORIGIN": ""})
    assert found.allow_host == ("a.example", "b.example:80")
    assert found.allow_origin == ()
