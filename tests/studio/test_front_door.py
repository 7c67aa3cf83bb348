"""Who gets Studio's pages, and with which headers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx2
import pytest

from tests.studio.conftest import serving
from tests.worlds import MathEnv
from toolyard import Server
from toolyard.core.errors import DefinitionError
from toolyard.testing import Running, running

KEY = "open sesame"
BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
PAGES = ["/studio/", "/studio/environments", "/studio/environments/mathenv", "/studio/play/mathenv", "/studio/sessions"]
ADDRESSES = [*PAGES, "/studio/episodes", "/studio/nothing", "/studio/static/studio.css", "/studio/api/v1/sessions"]


@pytest.fixture(scope="module")
def plain() -> Iterator[Running]:
    with running([MathEnv]) as one:
        yield one


@pytest.fixture(scope="module")
def locked() -> Iterator[Running]:
    with running([MathEnv], api_key=KEY) as one:
        yield one


@pytest.fixture
def http(plain: Running) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=plain.url, timeout=30) as client:
        yield client


@pytest.fixture
def stranger(locked: Running) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=locked.url, timeout=30) as client:
        yield client


def token_in(page: str) -> str:
    return page.partition('name="toolyard-token" content="')[2].partition('"')[0]


def test_a_browser_at_the_root_is_led_to_studio_and_nothing_else_is(http: httpx2.Client):
    led = http.get("/", headers=BROWSER)
    assert (led.status_code, led.headers["location"]) == (303, "/studio/")
    with running([MathEnv], studio=False) as without, httpx2.Client(base_url=without.url) as old:
        for headers in ({}, {"Accept": "application/json"}, {"Accept": "*/*"}):
            assert http.get("/", headers=headers).content == old.get("/", headers=headers).content
        assert http.post("/", headers=BROWSER).status_code == old.post("/", headers=BROWSER).status_code
        assert old.get("/", headers=BROWSER).status_code == 200
        assert old.get("/studio", headers=BROWSER).status_code == 404


@pytest.mark.parametrize("address", ADDRESSES)
def test_every_page_forbids_what_it_does_not_need(http: httpx2.Client, address: str):
    headers = http.get(address).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    if "static" not in address:
        assert headers["cache-control"] == "no-store"


def test_pages_hold_no_script_and_no_style_of_their_own(http: httpx2.Client):
    for address in PAGES:
        page = http.get(address).text
        assert "<style" not in page
        assert " style=" not in page
        assert "<script>" not in page
        assert "http://" not in page
        assert "https://" not in page


@pytest.mark.parametrize(
    "name", ["../route.py", "..%2froute.py", "%2fetc%2fpasswd", "studio.css/..", "", "layout.html"]
)
def test_only_files_of_studio_are_handed_out(plain: Running, name: str):
    with httpx2.Client(base_url=plain.url) as http:
        assert http.get(f"/studio/static/{name}").status_code in (404, 307)


def test_a_static_file_is_not_sent_twice(http: httpx2.Client):
    first = http.get("/studio/static/studio.css")
    again = http.get("/studio/static/studio.css", headers={"If-None-Match": first.headers["etag"]})
    assert (first.status_code, again.status_code, again.content) == (200, 304, b"")


@pytest.mark.parametrize("address", ADDRESSES)
def test_without_the_key_every_address_answers_with_the_form(stranger: httpx2.Client, address: str):
    answer = stranger.get(address, headers=BROWSER)
    assert answer.status_code == 401
    assert '<form method="post" action="/studio/login">' in answer.text
    assert answer.headers["cache-control"] == "no-store"
    assert KEY not in answer.text


def test_the_key_given_once_opens_all_pages_with_a_cookie_that_is_not_the_key(stranger: httpx2.Client):
    given = stranger.post("/studio/login", data={"key": KEY, "then": "/studio/sessions"})
    assert (given.status_code, given.headers["location"]) == (303, "/studio/sessions")
    cookie = given.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert "sesame" not in cookie
    assert [stranger.get(address).status_code for address in PAGES] == [200] * len(PAGES)


@pytest.mark.parametrize(
    "then", ["//evil.example/", "https://evil.example", "/studio/\r\nx: y", "/studio/\\evil", "", "/other"]
)
def test_the_login_leads_nowhere_else(locked: Running, then: str):
    with httpx2.Client(base_url=locked.url) as http:
        given = http.post("/studio/login", data={"key": KEY, "then": then})
        assert given.headers["location"] == "/studio/"


def test_a_wrong_key_is_said_and_too_many_have_to_wait():
    with running([MathEnv], api_key=KEY) as server, httpx2.Client(base_url=server.url, timeout=30) as http:
        first = http.post("/studio/login", data={"key": "sesame"})
        assert first.status_code == 401
        assert "That is not the key" in first.text
        key = server.server.studio.parts.key
        for _ in range(7):
            key.was_wrong("127.0.0.1")
        refused = http.post("/studio/login", data={"key": KEY})
        assert refused.status_code == 401
        assert "Too many wrong keys" in refused.text
        assert int(refused.headers["retry-after"]) > 0
        assert http.get("/studio/", headers={"X-API-Key": KEY}).status_code == 200


def test_a_form_that_holds_too_much_is_refused_with_the_form_alone(stranger: httpx2.Client):
    refused = stranger.post("/studio/login", content=b"&".join([b"key=x"] * 100_000))
    assert refused.status_code == 401
    assert "it is too long" in refused.text
    assert "toolyard-token" not in refused.text
    assert "<nav" not in refused.text


def test_studio_without_its_slash_asks_for_the_key_too(locked: Running, stranger: httpx2.Client):
    assert stranger.get("/studio").status_code == 401
    with httpx2.Client(base_url=locked.url, headers={"X-API-Key": KEY}) as known:
        assert known.get("/studio").headers["location"] == "/studio/"


def test_the_address_of_the_login_leads_to_a_page_that_is_there(stranger: httpx2.Client):
    form = stranger.get("/studio/login")
    assert form.status_code == 401
    assert 'name="then" value="/studio/"' in form.text
    assert stranger.post("/studio/login", data={"key": KEY}).status_code == 303
    assert stranger.get("/studio/login").headers["location"] == "/studio/"


def test_a_login_that_has_become_needless_leads_in(http: httpx2.Client):
    led = http.post("/studio/login", data={"key": "of the server before", "then": "/studio/sessions"})
    assert (led.status_code, led.headers["location"]) == (303, "/studio/sessions")


@pytest.mark.parametrize("stream", ["pulse", "sessions/{id}/events"])
def test_a_question_for_the_headers_of_a_stream_is_answered_at_once(http: httpx2.Client, stream: str):
    token = token_in(http.get("/studio/").text)
    opened = http.post(
        "/studio/api/v1/sessions", json={"environment": "mathenv"}, headers={"X-Toolyard-Token": token}
    ).json()
    address = urlsplit(str(http.base_url))
    with socket.create_connection((address.hostname, address.port), timeout=10) as connection:
        path = f"/studio/api/v1/{stream.format(id=opened['id'])}"
        head = f"HEAD {path} HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n"
        after = f"GET /health HTTP/1.1\r\nHost: {address.netloc}\r\nConnection: close\r\n\r\n"
        connection.sendall((head + after).encode())
        said = b"".join(iter(lambda: connection.recv(65536), b""))
    assert said.count(b"HTTP/1.1 200") == 2
    assert b"text/event-stream" in said


@pytest.mark.parametrize("cookie", ["", ".", "9999999999.x.y", "🍪", '"', "x" * 10_000, "0.a.b"])
def test_a_forged_cookie_opens_nothing(locked: Running, cookie: str):
    name = locked.server.studio.parts.key.cookie_name
    with httpx2.Client(base_url=locked.url) as http:
        sent = f"{name}={cookie}".encode()
        assert http.get("/studio/", headers={b"cookie": sent}).status_code == 401


def test_an_old_cookie_opens_nothing(locked: Running, monkeypatch: pytest.MonkeyPatch):
    key = locked.server.studio.parts.key
    cookie = key.new_cookie()
    assert key.is_cookie(cookie)
    monkeypatch.setattr("toolyard.studio.key.time.time", lambda: 4e9)
    assert not key.is_cookie(cookie)


def test_a_write_needs_the_token_of_a_page(http: httpx2.Client):
    asked = {"environment": "mathenv"}
    assert http.post("/studio/api/v1/sessions", json=asked).status_code == 403
    assert http.post("/studio/api/v1/sessions", json=asked, headers={b"x-toolyard-token": b"\xff"}).status_code == 403
    token = token_in(http.get("/studio/").text)
    opened = http.post("/studio/api/v1/sessions", json=asked, headers={"X-Toolyard-Token": token})
    assert opened.status_code == 201
    closed = f"{opened.json()['api']}/close"
    assert http.post(closed).status_code == 403
    assert http.post(closed, headers={"X-Toolyard-Token": token}).status_code == 200


@pytest.mark.parametrize("name", [".", "..", "~.", "~..", "~~..", "~x", "a/../b", "%2e%2e", "%2E", "...", "a?b#c"])
def test_a_session_of_any_name_is_found_and_ended(http: httpx2.Client, name: str):
    opened = {"env_name": "mathenv", "split": "train", "index": 0}
    assert http.post("/create", json=opened, headers={"X-Session-ID": name}).status_code == 200
    row = next(row for row in http.get("/studio/api/v1/sessions").json()["sessions"] if row["id"] == name)
    assert http.get(row["api"]).json()["id"] == name
    assert f"<bdi>{name}</bdi>" in http.get(row["href"]).text
    token = token_in(http.get("/studio/").text)
    assert http.post(f"{row['api']}/close", headers={"X-Toolyard-Token": token}).status_code == 200
    assert name not in [row["id"] for row in http.get("/studio/api/v1/sessions").json()["sessions"]]


def test_a_token_is_good_for_one_cookie_only(locked: Running):
    with httpx2.Client(base_url=locked.url) as one, httpx2.Client(base_url=locked.url) as other:
        for client in (one, other):
            client.post("/studio/login", data={"key": KEY})
        token = token_in(one.get("/studio/").text)
        asked = {"json": {"environment": "mathenv"}, "headers": {"X-Toolyard-Token": token}}
        assert other.post("/studio/api/v1/sessions", **asked).status_code == 403
        assert one.post("/studio/api/v1/sessions", **asked).status_code == 201


def test_foreign_pages_are_kept_out_and_links_lead_in(http: httpx2.Client):
    foreign = {"Origin": "https://evil.example"}
    site = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    for address in ("/studio/", "/studio/api/v1/sessions"):
        assert http.get(address, headers=foreign).status_code == 403
        assert http.get(address, headers={"Host": "evil.example"}).status_code == 421
    assert http.post("/studio/login", headers=foreign, data={"key": ""}).status_code == 403
    assert http.get("/studio/sessions", headers=site).status_code == 200
    assert http.get("/studio/api/v1/sessions", headers=site).status_code == 403
    assert http.get("/studio/", headers={**site, "Sec-Fetch-Dest": "iframe"}).status_code == 403


def test_an_error_of_a_page_is_a_page_and_one_of_the_api_is_json(http: httpx2.Client):
    page = http.get("/studio/environments/<script>")
    assert page.status_code == 404
    assert "<script>'" not in page.text
    assert "unknown environment" in page.text
    assert http.get("/studio/api/v1/sessions/nobody").json()["error"].startswith("there is no open session 'nobody'")
    assert http.post("/studio/environments", headers={"X-Toolyard-Token": token_in(page.text)}).status_code == 405


def test_an_environment_called_studio_is_refused_with_the_way_out():
    class Studio(MathEnv):
        pass

    with pytest.raises(DefinitionError, match="--no-studio"):
        Server([Studio])
    assert Server([Studio], studio=False).environments


def test_the_banner_names_studio_unless_it_is_off():
    with serving() as url:
        assert httpx2.get(f"{url}/studio/").status_code == 200
    with serving("--no-studio") as url:
        assert httpx2.get(f"{url}/studio").status_code == 404
