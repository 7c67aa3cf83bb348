"""The route of Studio: checks who asks, finds the page, and shows errors as pages or as JSON."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from urllib.parse import parse_qs, quote, unquote

from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from toolyard.asgi import Disconnected, HttpError, Request, explain
from toolyard.core.errors import DefinitionError, NotSupported, Overloaded, RequestError, SessionClosed, ToolyardError
from toolyard.episodes.store import NoEpisode
from toolyard.protocols.metrics import Metrics
from toolyard.runtime.runtime import Runtime
from toolyard.session_ids import owned_as
from toolyard.studio import environments, episode, episodes, overview, play, play_from, sessions
from toolyard.studio.parts import Options, Parts, is_dots
from toolyard.studio.visit import Page, Visit

log = logging.getLogger("toolyard.studio")

ROOT = "/studio/"
_API = "/studio/api/"
_SESSIONS = ("api", "v1", "sessions")
_LOGIN = ("login",)
_FORM_MOST = 8192
"""Bytes of the form with the key."""
_WRONG_SECONDS = 1.0
"""How long a wrong key waits for its answer."""


class Studio(BaseRoute):
    """Takes `/studio/`, and `/` from browsers. `behind` are the routes after it, which `/` leads to for all others."""

    paths = ("/",)

    def __init__(self, runtime: Runtime, options: Options, behind: Sequence[BaseRoute]) -> None:
        if "studio" in runtime.environments:
            raise DefinitionError("an environment cannot be called 'studio' beside Studio: start with --no-studio")
        metrics = next(route for route in behind if isinstance(route, Metrics))
        self.parts = Parts(runtime, options, metrics)
        self._behind = behind
        self._pages = [
            page
            for module in (overview, environments, play, sessions, episodes, episode, play_from)
            for page in module.pages(self.parts)
        ]

    # What it takes.

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        path: str = scope["path"]
        if path == "/":
            return (Match.FULL if wants_page(scope) else Match.NONE), {}
        return (Match.FULL if path.startswith(ROOT) or path == ROOT[:-1] else Match.NONE), {}

    def asks_for_key(self, scope: Scope) -> bool:
        """Whether Studio itself asks for the key."""
        return self.matches(scope)[0] is Match.FULL

    def session_of(self, scope: Scope) -> str:
        """The session that a request is about, by which it gets to the gateway that has it."""
        named = parts_of(scope)
        return owned_as(named[3]) if named[:3] == _SESSIONS and len(named) > 3 else ""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/" and not wants_page(scope):
            await self._leave_to_others(scope, receive, send)
            return
        request = Request(scope, receive, send, self.parts.options)
        visit = Visit(request, self.parts)
        try:
            if scope["path"] == "/":
                await visit.redirect(ROOT)
            elif parts_of(scope) == _LOGIN and scope["method"] == "POST":
                await self._log_in(visit)
            elif not self._is_known(visit):
                await self._ask_for_key(visit)
            elif scope["path"] == ROOT[:-1] or (parts_of(scope) == _LOGIN and scope["method"] == "GET"):
                await visit.redirect(ROOT)
            else:
                await self._answer(visit)
        except (HttpError, ToolyardError) as error:
            await self._refuse(visit, error)
        except Disconnected:
            raise
        except Exception as error:
            log.exception("%s %s", scope["method"], scope["path"])
            if request.started:
                raise
            await self._refuse(visit, HttpError(500, explain(error, self.parts.options.errors)))

    async def _leave_to_others(self, scope: Scope, receive: Receive, send: Send) -> None:
        for route in self._behind:
            match, child = route.matches(scope)
            if match is not Match.NONE:
                scope.update(child)
                await route.handle(scope, receive, send)
                return
        raise HttpError(404, "Not Found")

    # Who asks.

    def _is_known(self, visit: Visit) -> bool:
        key = self.parts.key
        if not key.is_needed:
            return True
        given = visit.request.header(b"x-api-key") or visit.request.header(b"authorization").removeprefix("Bearer ")
        return key.is_key(given.strip()) if given else key.is_cookie(visit.cookie)

    async def _ask_for_key(self, visit: Visit, problem: str = "", wait: int = 0, then: str = "") -> None:
        scope = visit.request.scope
        is_page = scope["method"] == "GET" and not scope["path"].startswith(_API)
        here = raw_path(scope) if is_page and parts_of(scope) != _LOGIN else ROOT
        headers = [(b"retry-after", b"%d" % wait)] if wait else []
        await visit.page("login.html", status=401, headers=headers, problem=problem, then=then or here)

    async def _log_in(self, visit: Visit) -> None:
        body = await visit.request.body()
        if len(body) > _FORM_MOST:
            raise HttpError(413, "that is no key: it is too long")
        form = parse_qs(body.decode(errors="replace"))
        given, then = ((form.get(name) or [""])[0] for name in ("key", "then"))
        then = then if then.startswith(ROOT) and then.isprintable() and "\\" not in then else ROOT
        key, client = self.parts.key, visit.request.scope.get("client")
        if not key.is_needed:  # the server that showed the form has ended, and this one asks for none
            await visit.redirect(quote_path(then))
            return
        address = client[0] if client else ""
        if wait := key.must_wait(address):
            await self._ask_for_key(visit, f"Too many wrong keys. Try again in {wait} seconds.", wait, then)
            return
        if not key.is_key(given.strip()):
            key.was_wrong(address)
            await asyncio.sleep(_WRONG_SECONDS)
            await self._ask_for_key(visit, "That is not the key of this server.", 0, then)
            return
        secure = "; Secure" * visit.request.header(b"origin").startswith("https://")
        cookie = (
            f"{key.cookie_name}={key.new_cookie()}; Path=/studio; Max-Age={key.cookie_seconds}; HttpOnly; "
            f"SameSite=Strict{secure}"
        )
        await visit.redirect(quote_path(then), [(b"set-cookie", cookie.encode())])

    # What is answered.

    async def _answer(self, visit: Visit) -> None:
        scope = visit.request.scope
        method, named = scope["method"], parts_of(scope)
        if method == "POST":
            token = visit.request.header(b"x-toolyard-token")
            if not self.parts.key.is_token(token, visit.cookie):
                raise HttpError(403, "this page is older than the server that runs now: load it again")
        if named[:1] == ("static",) and len(named) == 2 and method == "GET":
            await visit.file(named[1])
            return
        other = []
        for page in self._pages:
            if (found := fit(page, named)) is None:
                continue
            if page.method != method:
                other.append(page.method)
                continue
            visit.named = found
            await page.answer(visit)
            return
        if other:
            raise HttpError(405, f"this address answers to {', '.join(other)}", [(b"allow", ", ".join(other).encode())])
        raise HttpError(404, f"Studio has no page {scope['path'][:200]!r}")

    async def _refuse(self, visit: Visit, error: HttpError | ToolyardError) -> None:
        if visit.request.started:
            raise error
        status = status_of(error)
        words = error.body["detail"] if isinstance(error, HttpError) and error.body else str(error)
        if not isinstance(words, str):  # the body is no JSON, and protocols say so in their own form
            words = f"the body cannot be read: {words}"
        if not self._is_known(visit):  # who has no key sees the form, and no page with a token
            await self._ask_for_key(visit, f"That is not possible: {words}.")
        elif visit.request.scope["path"].startswith(_API):
            await visit.json({"error": words}, status)
        else:
            await visit.page("error.html", status=status, words=words)


def status_of(error: HttpError | ToolyardError) -> int:
    match error:
        case HttpError():
            return error.status
        case NotSupported():
            return 409
        case RequestError() | NoEpisode():
            return 404
        case Overloaded():
            return 503
        case SessionClosed():
            return 410
    return 409


def wants_page(scope: Scope) -> bool:
    """Whether a browser asks for a page to show."""
    if scope["method"] != "GET":
        return False
    accepted: bytes = next((value for name, value in scope["headers"] if name == b"accept"), b"")
    return b"text/html" in accepted


def parts_of(scope: Scope) -> tuple[str, ...]:
    """The parts of the path below `/studio/`. A name may hold a slash: `%2F` does not part it."""
    return tuple(map(unquoted, raw_path(scope).removeprefix(ROOT).removesuffix("/").split("/")))


def raw_path(scope: Scope) -> str:
    """The path as the browser wrote it. Not every ASGI server tells."""
    raw: bytes = scope.get("raw_path") or quote_path(scope["path"]).encode()
    return raw.partition(b"?")[0].decode("latin-1")


def unquoted(part: str) -> str:
    try:
        name = unquote(part, errors="surrogatepass")
    except UnicodeDecodeError:
        name = unquote(part, errors="replace")
    return name.removeprefix("~") if is_dots(name) else name


def fit(page: Page, named: Sequence[str]) -> Sequence[str] | None:
    """What the path has where the page's address has stars. None if it is another address."""
    wanted = page.address.split("/")
    if len(wanted) != len(named) or any(one not in ("*", given) for one, given in zip(wanted, named, strict=True)):
        return None
    return [given for one, given in zip(wanted, named, strict=True) if one == "*"]


def quote_path(path: str) -> str:
    return quote(path.encode(errors="surrogatepass"), safe="/%")
