"""A real browser loads hostile pages while a developer's server runs. The server lets none of them in."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from starlette.types import Receive, Scope, Send

from tests.browser.site import chromium
from tests.worlds import MathEnv
from toolyard.testing import Running, running

pytestmark = pytest.mark.thorough

SWITCHES = [
    # Names of .example are this machine. The browser's own defences are off: not every browser has them.
    "--host-resolver-rules=MAP *.example 127.0.0.1",
    "--disable-features=HttpsUpgrades,LocalNetworkAccessChecks,BlockInsecurePrivateNetworkRequests",
]

ATTACK = """
<!doctype html><title>Hostile</title><body><script>
const server = "SERVER";
const action = JSON.stringify({
  trajectory_ids: ["t"], actions: ["<python>print(6 * 7)</python>"], extra_fields: [{}],
});
const query = JSON.stringify({
  trajectory_ids: ["q"], actions: ["<sql>SELECT 1</sql>"], extra_fields: [{db_path: "/etc/passwd"}],
});
const program = JSON.stringify({code: "print(6 * 7)", language: "python"});
const done = {};
const fetched = (path, options) => fetch(server + path, options).then(answer => answer.text());
const until = (element, ...events) => new Promise(resolve =>
  [...events, "error"].forEach(event => element.addEventListener(event, () => resolve(event))));
const embed = (tag, attributes) => {
  const element = Object.assign(document.createElement(tag), attributes);
  const ended = until(element, "load");
  document.body.append(element);
  return ended;
};
const post = (path, fields) => {
  const frame = document.createElement("iframe");
  frame.name = "f" + path;
  document.body.append(frame);
  const form = Object.assign(document.createElement("form"),
    {method: "post", action: server + path, enctype: "text/plain", target: frame.name});
  for (const [name, value] of Object.entries(fields))
    form.append(Object.assign(document.createElement("input"), {name, value}));
  document.body.append(form);
  const ended = until(frame, "load");
  form.submit();
  return ended;
};
const plain = {method: "POST", headers: {"Content-Type": "text/plain"}};
const json = {method: "POST", headers: {"Content-Type": "application/json"}};
const attempts = {
  preflight: () => fetched("/get_observation", {...json, body: action}),
  simple: () => fetched("/get_observation", {...plain, body: action}),
  blind: () => fetched("/get_observation", {...plain, body: action, mode: "no-cors"}),
  sql: () => fetched("/get_observation", {...plain, body: query, mode: "no-cors"}),
  run_code: () => fetched("/run_code", {...plain, body: program, mode: "no-cors"}),
  cookie: () => fetched("/get_cookie", {mode: "no-cors", credentials: "include"}),
  ors: () => fetched("/create_session", {...plain, body: "{}", mode: "no-cors"}),
  read: () => fetched("/list_environments"),
  image: () => embed("img", {src: server + "/get_cookie?image"}),
  script: () => embed("script", {src: server + "/get_cookie?script"}),
  style: () => embed("link", {rel: "stylesheet", href: server + "/get_cookie?style"}),
  frame: () => embed("iframe", {src: server + "/get_cookie?frame"}),
  form: () => post("/get_observation", {[action.slice(0, -1) + ', "more": "']: '"}'}),
  form_code: () => post("/run_code", {[program.slice(0, -1) + ', "more": "']: '"}'}),
  beacon: async () => navigator.sendBeacon(server + "/get_observation", action),
  socket: () => until(new WebSocket(server.replace("http", "ws") + "/get_observation"), "open"),
  events: () => until(new EventSource(server + "/get_cookie?events"), "open"),
};
(async () => {
  for (const [name, attempt] of Object.entries(attempts)) {
    try { done[name] = String(await attempt()); } catch (problem) { done[name] = "refused: " + problem; }
  }
  window.outcome = done;
})();
</script>
"""


class Seen:
    """What has happened on a server."""

    def __init__(self, server: Running) -> None:
        self._server = server
        self.opened: list[str] = []
        self.called: list[str] = []
        self.let_in: list[str] = []
        """Paths of requests that passed the gate. For nodes, made by `/get_cookie`, there is no other sign."""
        gate = server.server._gate
        self._inside, gate._app = gate._app, self._witness
        journal = server.server.runtime.journal
        journal.opened.append(lambda spec: self.opened.append(spec.environment))
        journal.answered.append(lambda spec, tool, *_: self.called.append(tool))

    async def _witness(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.let_in.append(scope["path"])
        await self._inside(scope, receive, send)

    @property
    def sandboxes(self) -> int:
        count = self._server.server.sandboxes.count
        assert count is not None
        return count[0]


@contextmanager
def attacked(**settings: Any) -> Iterator[tuple[Running, Seen]]:
    with running([MathEnv], tools="python_code,sql", sandboxes_ready=0, **settings) as server:
        yield server, Seen(server)


@contextmanager
def site(page: Callable[[], str]) -> Iterator[int]:
    """A web server with one page, under every name that leads to it. Yields its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = page().encode()
            if self.path.startswith("/leads-to/"):
                self.send_response(302)
                self.send_header("Location", self.path.removeprefix("/leads-to/"))
            else:
                self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Not to the terminal."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server.server_port
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium(), chromium_sandbox=False, args=SWITCHES)
        yield found
        found.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context()
    yield context.new_page()
    context.close()


def outcome(page: Page) -> dict[str, str]:
    """The page's report of its attempts, when it has made all of them."""
    page.wait_for_function("window.outcome", timeout=60_000)
    found: dict[str, str] = page.evaluate("window.outcome")
    return found


BLIND = {"blind", "sql", "run_code", "cookie", "ors"}
"""Attempts whose answers no page may read, whatever they are."""


@pytest.mark.parametrize("name", ["evil.example", "127.0.0.1", "localhost"])
def test_a_page_of_another_origin_runs_nothing_reads_nothing_and_makes_nothing(page: Page, name: str):
    with attacked() as (server, seen), site(lambda: ATTACK.replace("SERVER", server.url)) as port:
        page.goto(f"http://{name}:{port}/")
        made = outcome(page)
        assert all(made[name].startswith("refused") for name in ("preflight", "simple", "read"))
        assert all(made[name] in ("", "refused: TypeError: Failed to fetch") for name in BLIND)
        assert all(made[name] == "error" for name in ("image", "script", "style", "socket", "events"))
        assert not seen.opened
        assert not seen.called
        assert not seen.let_in
        assert seen.sandboxes == 0


def test_an_address_to_which_browsers_do_not_say_where_a_page_is_from_makes_nothing(page: Page):
    image = '<!doctype html><img src="SERVER/get_cookie" onerror="window.outcome = {}">'
    address = [""]
    with attacked() as (server, seen), site(lambda: image.replace("SERVER", address[0])) as port:
        address[0] = server.url.replace("127.0.0.1", "[::ffff:127.0.0.1]")
        page.goto(f"http://evil.example:{port}/")
        outcome(page)
        assert not seen.let_in


def test_somebody_who_types_an_address_that_redirects_here_makes_nothing(page: Page):
    with attacked() as (server, seen), site(str) as port:
        answer = page.goto(f"http://evil.example:{port}/leads-to/{server.url}/get_cookie")
        assert answer is not None
        assert answer.url == f"{server.url}/get_cookie"
        assert answer.status == 403
        assert not seen.opened
        assert seen.sandboxes == 0


def test_a_page_whose_name_was_bound_anew_runs_nothing_and_reads_only_that_it_may_not(page: Page):
    with attacked() as (server, seen):
        port = server.url.rpartition(":")[2]
        here = f"http://rebound.example:{port}"
        page.route(
            f"{here}/attack", lambda route: route.fulfill(content_type="text/html", body=ATTACK.replace("SERVER", ""))
        )
        page.goto(f"{here}/attack")  # that name leads to our server by now
        made = outcome(page)
        assert all("--allow-host rebound.example" in made[name] for name in ("preflight", "simple", "read", "cookie"))
        assert not seen.opened
        assert not seen.called
        assert not seen.let_in
        assert seen.sandboxes == 0


def test_the_same_page_would_have_its_way_if_the_operator_let_it(page: Page):
    """So the tests above show the gate's effect, and not that the page is harmless."""
    settings: dict[str, Any] = {"allow_host": ("rebound.example",)}
    with attacked(**settings) as (server, seen):
        port = server.url.rpartition(":")[2]
        here = f"http://rebound.example:{port}"
        page.route(
            f"{here}/attack", lambda route: route.fulfill(content_type="text/html", body=ATTACK.replace("SERVER", ""))
        )
        page.goto(f"{here}/attack")
        made = outcome(page)
        assert "42" in made["preflight"]
        assert "toolbox" in made["read"]
        assert seen.opened
        assert seen.called


FRIENDLY = """
<!doctype html><title>Friendly</title><p><a href="SERVER/">Toolyard</a><script>
const json = {"Content-Type": "application/json", "X-API-Key": "secret"};
(async () => {
  const made = await (await fetch("SERVER/create_session", {method: "POST", headers: json, body: "{}"})).json();
  const told = await fetch("SERVER/nothing", {headers: json});
  window.outcome = {sid: made.sid, status: String(told.status)};
})().catch(problem => { window.outcome = {problem: String(problem)}; });
</script>
"""


def test_a_page_of_an_allowed_origin_works_preflight_and_key_included(page: Page):
    address = [""]
    with site(lambda: FRIENDLY.replace("SERVER", address[0])) as port:
        origin = f"http://studio.example:{port}"
        with running([MathEnv], api_key="secret", allow_origin=(origin,)) as server:
            address[0] = server.url
            page.goto(origin)
            made = outcome(page)
            assert made["sid"]
            assert made["status"] == "404"


def test_a_link_on_another_site_opens_the_front_page(page: Page):
    address = [""]
    with site(lambda: FRIENDLY.replace("SERVER", address[0])) as port, running([MathEnv]) as server:
        address[0] = server.url
        page.goto(f"http://evil.example:{port}")
        with page.expect_navigation() as navigation:
            page.click("a")
        assert navigation.value.url == f"{server.url}/studio/"
        assert navigation.value.status == 200
