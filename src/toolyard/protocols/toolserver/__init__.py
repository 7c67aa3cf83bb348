"""XAgent's ToolServer: a cookie names a node, and a POST calls one of its tools. The answer may be "ask again"."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from starlette.requests import cookie_parser
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from toolyard.asgi import HEAD, Disconnected, HttpError, HttpOptions, Request, explain, wrong_method
from toolyard.core.errors import DefinitionError, SessionClosed, ToolyardError
from toolyard.origins import origin_of
from toolyard.placement.base import Task
from toolyard.protocols.toolserver import answers, bodies, files
from toolyard.protocols.toolserver.calls import Calls
from toolyard.protocols.toolserver.node import Node, NodeTask, NotRunning
from toolyard.protocols.toolserver.nodes import Nodes
from toolyard.protocols.toolserver.offers import NAMES_MOST, Offers
from toolyard.runtime.runtime import Runtime

log = logging.getLogger("toolyard.toolserver")

Endpoint: TypeAlias = Callable[[Request], Awaitable[None]]
NodeEndpoint: TypeAlias = Callable[[Request, Node], Awaitable[None]]

_VERSION = "0.2"
"""The version of the original that our answers name."""
_COOKIE = "node_id"
_WITHOUT_NODE = ("", "/", "/alive", "/get_cookie", "/get_cookies")
"""Paths whose requests are for no node."""


@dataclass(frozen=True, slots=True)
class Options(HttpOptions):
    """`settings.py` explains each."""

    toolserver_wait_seconds: float
    toolserver_keep_seconds: float
    toolserver_keep_bytes: int


def routes(runtime: Runtime, options: Options) -> list[BaseRoute]:
    return [ToolServer(runtime, options)]


class ToolServer(BaseRoute):
    def __init__(self, runtime: Runtime, options: Options) -> None:
        self._runtime = runtime
        self._options = options
        self._offers = Offers(runtime.environments.values())
        self._nodes = Nodes(
            runtime, keep_seconds=options.toolserver_keep_seconds, keep_bytes=options.toolserver_keep_bytes
        )
        self._calls = Calls(
            self._nodes, self._offers, wait_seconds=options.toolserver_wait_seconds, errors=options.errors
        )
        of_node = {path: ("POST", self._in_node(endpoint)) for path, endpoint in self._of_node().items()}
        endpoints = {**self._of_server(), **of_node}
        self._endpoints: Mapping[str, tuple[str, Endpoint]] = endpoints | {
            f"/toolserver{path}".rstrip("/"): endpoint for path, endpoint in endpoints.items()
        }
        for name in runtime.environments:
            if f"/{name}" in self._endpoints:
                raise DefinitionError(f"an environment cannot be called {name!r}: that is a path of the ToolServer")

    # From a path to an endpoint.

    def _of_server(self) -> Mapping[str, tuple[str, Endpoint]]:
        return {
            "/": ("GET POST", self.hello),
            "/alive": ("GET", self.alive),
            "/get_cookie": ("GET POST", self.get_cookie),
            "/get_cookies": ("GET POST", self.get_cookie),
            "/close_session": ("POST", self.close_session),
            "/reconnect_session": ("POST", self.reconnect_session),
            "/release_session": ("POST", self.release_session),
        }

    def _of_node(self) -> Mapping[str, NodeEndpoint]:
        return {
            "/get_available_tools": self.get_available_tools,
            "/retrieving_tools": self.retrieving_tools,
            "/get_json_schema_for_tools": self.get_json_schema_for_tools,
            "/get_json_schema_for_envs": self.get_json_schema_for_envs,
            "/execute_tool": self._calls.execute_tool,
            "/register_new_tool": self._calls.register_new_tool,
            "/upload_file": self.upload_file,
            "/download_file": self.download_file,
            "/download_workspace": self.download_workspace,
            "/get_workspace_structure": self.get_workspace_structure,
        }

    @property
    def paths(self) -> Collection[str]:
        return self._endpoints

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return (Match.FULL if _plain(scope["path"]) in self._endpoints else Match.NONE), {}

    def session_of(self, scope: Scope) -> str:
        """The node that a request is for. Empty for paths without a node, even if the client sends a cookie."""
        if _plain(scope["path"]).removeprefix("/toolserver") in _WITHOUT_NODE:
            return ""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        return cookie(headers.get(b"cookie", b"").decode("latin-1")) or ""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        methods, endpoint = self._endpoints[_plain(scope["path"])]
        request = Request(scope, receive, send, self._options)
        if scope["method"] not in methods.split():
            raise wrong_method(methods.replace(" ", ", "))
        try:
            await endpoint(request)
        except (HttpError, Disconnected):
            raise
        except ToolyardError as error:
            raise answers.as_http(error) from error
        except Exception as error:
            log.exception("%s %s", scope["method"], scope["path"])
            if request.started:
                raise
            raise answers.refused(500, explain(error, self._options.errors)) from error

    def _in_node(self, endpoint: NodeEndpoint) -> Endpoint:
        async def in_node(request: Request) -> None:
            node_id = cookie(request.header(b"cookie"))
            node = self._nodes.find(node_id or "")
            if node is None:
                raise answers.refused(403, f"invalid node_id: {answers.echoed(node_id)}")
            if not self._nodes.is_running(node):
                raise answers.not_running(node)
            node.touch()
            try:
                await endpoint(request, node)
            except (NotRunning, SessionClosed):
                raise answers.not_running(node) from None

        return in_node

    # Nodes.

    async def hello(self, request: Request) -> None:
        await request.answer_json({"message": "Hello World"})

    async def alive(self, request: Request) -> None:
        await request.answer_json("alive")

    async def get_cookie(self, request: Request) -> None:
        if HEAD in request.scope:  # a HEAD request must change nothing, and this would make a node
            raise wrong_method("GET, POST")
        if request.header(b"sec-fetch-mode") == "navigate":  # another site may have redirected the browser to this
            raise answers.refused(403, "a browser makes no node by opening this address; a program has to ask for it")
        bound = await self._bound(bodies.parse_binding(await request.body()))
        node, prompt = await self._nodes.create(bound, origin_of(request, "toolserver"))
        answer: dict[str, object] = {"message": "add cookie", "version": _VERSION}
        if bound is not None:
            answer["prompt"] = [block.model_dump() for block in prompt]
        headers = [
            (b"set-cookie", f"{_COOKIE}={node.id}; Path=/; HttpOnly; SameSite=Strict".encode()),
            (b"server", f"ToolServerManager/{_VERSION}".encode()),
        ]
        await request.answer_json(answer, headers=headers)

    async def _bound(self, body: bodies.Binding) -> NodeTask | None:
        if body.environment is None:
            return None
        environment = self._runtime.environment(body.environment)
        task = Task(body.task_spec or {})
        if body.split is not None and body.index is not None:
            task = await self._runtime.tasks(environment).at(body.split, body.index)
        return NodeTask(environment, task, body.secrets)

    async def close_session(self, request: Request) -> None:
        await self._change(request, "Close", self._nodes.close)

    async def reconnect_session(self, request: Request) -> None:
        await self._change(request, "Reconnect", self._nodes.reopen)

    async def release_session(self, request: Request) -> None:
        await self._change(request, "Release", self._nodes.release)

    async def _change(self, request: Request, what: str, change: Callable[[Node], Coroutine[Any, Any, None]]) -> None:
        """Change a node in the background, so that a client that hangs up does not leave it half closed."""
        node_id = cookie(request.header(b"cookie"))
        invalid = f"invalid node_id: {answers.echoed(node_id)}"
        if (node := self._nodes.find(node_id or "")) is None:
            await request.answer_json(invalid)
            return
        refusals: list[ToolyardError] = []

        async def changed() -> None:
            try:
                await change(node)
            except ToolyardError as error:  # for the client: `Background` would log it as a task that broke
                refusals.append(error)

        await asyncio.shield(self._runtime.shared.background.start(changed()))
        if refusals:
            raise refusals[0]
        is_known = what == "Release" or self._nodes.find(node.id) is not None  # and not released meanwhile
        await request.answer_json(f"{what} session: {node.id}" if is_known else invalid)

    # What a node offers.

    async def get_available_tools(self, request: Request, node: Node) -> None:
        await request.body()
        offers = [*self._offers.listed, *(await node.own_offers()).by_name.values()]
        await request.answer_json(
            {
                "available_envs": [world.as_json(NAMES_MOST) for world in self._offers.worlds.values()],
                "available_tools": [offer.name for offer in offers],
                "tools_json": [offer.as_json() for offer in offers],
            }
        )

    async def retrieving_tools(self, request: Request, node: Node) -> None:
        body = bodies.parse(bodies.Question, await request.body())
        offers = await self._offers.search(body.question, body.top_k, await node.own_offers())
        await request.answer_json(
            {
                "retrieved_tools": [offer.name for offer in offers],
                "tools_json": [offer.as_json() for offer in offers],
            }
        )

    async def get_json_schema_for_tools(self, request: Request, node: Node) -> None:
        names = bodies.parse_names(await request.body(), "tools", "tool_names", "names")
        own = await node.own_offers()
        found = {name: self._offers.find(name, None, own) for name in names}
        await request.answer_json(
            {
                "tools_json": [offer.as_json() for offer in found.values() if offer is not None],
                "missing_tools": [name for name, offer in found.items() if offer is None],
            }
        )

    async def get_json_schema_for_envs(self, request: Request, node: Node) -> None:
        names = dict.fromkeys(bodies.parse_names(await request.body(), "envs", "env_names", "names"))
        worlds = self._offers.worlds
        await request.answer_json(
            {
                "envs_json": [worlds[name].as_json() for name in names if name in worlds],
                "missing_envs": [name for name in names if name not in worlds],
            }
        )

    # Files.

    async def upload_file(self, request: Request, node: Node) -> None:
        await files.upload_file(request, await node.workspace())

    async def download_file(self, request: Request, node: Node) -> None:
        await files.download_file(request, await node.workspace())

    async def download_workspace(self, request: Request, node: Node) -> None:
        await files.download_workspace(request, await node.workspace(), self._nodes.packing(node))

    async def get_workspace_structure(self, request: Request, node: Node) -> None:
        await files.get_workspace_structure(request, await node.workspace())


def cookie(header: str) -> str | None:
    return cookie_parser(header).get(_COOKIE)


def _plain(path: str) -> str:
    return path.rstrip("/") or "/"
