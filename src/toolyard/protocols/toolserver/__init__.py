"""XAgent's ToolServer: a cookie names a node, and a POST calls one of its tools, which may answer "ask again"."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from starlette.requests import cookie_parser
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from toolyard.asgi import Disconnected, HttpError, HttpOptions, Request, explain
from toolyard.core.environment import Environment
from toolyard.core.errors import CallNotFound, DefinitionError, SessionClosed, ToolyardError, describe
from toolyard.core.output import AskAgain, CallResult, Reply, ToolFailure, ToolOutput
from toolyard.placement.base import Task
from toolyard.protocols.toolserver import answers, bodies, files, results
from toolyard.protocols.toolserver.node import Bound, Node, NotRunning
from toolyard.protocols.toolserver.nodes import Nodes
from toolyard.protocols.toolserver.offers import NAMES_MOST, Offer, Offers
from toolyard.runtime.call import Call
from toolyard.runtime.life import State
from toolyard.runtime.runtime import Runtime
from toolyard.runtime.session import Begun, Session

log = logging.getLogger("toolyard.toolserver")

Endpoint: TypeAlias = Callable[[Request], Awaitable[None]]
NodeEndpoint: TypeAlias = Callable[[Request, Node], Awaitable[None]]

_VERSION = "0.2"
"""Of the original that this answers as."""
_COOKIE = "node_id"
_OF_NOBODY = ("", "/", "/alive", "/get_cookie", "/get_cookies")
"""Paths that are for no node."""
_REGISTER = "register_new_tool"
_FAILED = State.FAILED
"""Looked up once: every call asks for it."""


@dataclass(frozen=True, slots=True)
class Options(HttpOptions):
    """Settings say what each is for."""

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
        of_server: dict[str, tuple[str, Endpoint]] = {
            "/": ("GET POST", self.hello),
            "/alive": ("GET", self.alive),
            "/get_cookie": ("GET POST", self.get_cookie),
            "/get_cookies": ("GET POST", self.get_cookie),
            "/close_session": ("POST", self.close_session),
            "/reconnect_session": ("POST", self.reconnect_session),
            "/release_session": ("POST", self.release_session),
        }
        of_node: dict[str, NodeEndpoint] = {
            "/get_available_tools": self.get_available_tools,
            "/retrieving_tools": self.retrieving_tools,
            "/get_json_schema_for_tools": self.get_json_schema_for_tools,
            "/get_json_schema_for_envs": self.get_json_schema_for_envs,
            "/execute_tool": self.execute_tool,
            "/register_new_tool": self.register_new_tool,
            "/upload_file": self.upload_file,
            "/download_file": self.download_file,
            "/download_workspace": self.download_workspace,
            "/get_workspace_structure": self.get_workspace_structure,
        }
        endpoints = of_server | {path: ("POST", self._in_node(endpoint)) for path, endpoint in of_node.items()}
        self._endpoints: Mapping[str, tuple[str, Endpoint]] = endpoints | {
            f"/toolserver{path}".rstrip("/"): endpoint for path, endpoint in endpoints.items()
        }
        for name in runtime.environments:
            if f"/{name}" in self._endpoints:
                raise DefinitionError(f"an environment cannot be called {name!r}: that is a path of the ToolServer")

    # From a path to an endpoint.

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return (Match.FULL if _plain(scope["path"]) in self._endpoints else Match.NONE), {}

    def session_of(self, scope: Scope) -> str:
        """The node that a request is for; empty if it is for none, whatever node its client may have."""
        if _plain(scope["path"]).removeprefix("/toolserver") in _OF_NOBODY:
            return ""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        return cookie(headers.get(b"cookie", b"").decode("latin-1")) or ""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        methods, endpoint = self._endpoints[_plain(scope["path"])]
        request = Request(scope, receive, send, self._options)
        if scope["method"] not in methods.split():
            raise HttpError(405, "Method Not Allowed", [(b"allow", methods.replace(" ", ", ").encode())])
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
        bound = await self._bound(bodies.parse_binding(await request.body()))
        node, prompt = await self._nodes.create(bound)
        answer: dict[str, object] = {"message": "add cookie", "version": _VERSION}
        if bound is not None:
            answer["prompt"] = [block.model_dump() for block in prompt]
        headers = [
            (b"set-cookie", f"{_COOKIE}={node.id}; Path=/; SameSite=lax".encode()),
            (b"server", f"ToolServerManager/{_VERSION}".encode()),
        ]
        await request.answer_json(answer, headers=headers)

    async def _bound(self, body: bodies.Binding) -> Bound | None:
        if body.environment is None:
            return None
        environment = self._runtime.environment(body.environment)
        task = Task(body.task_spec or {})
        if body.split is not None and body.index is not None:
            task = await self._runtime.tasks(environment).at(body.split, body.index)
        return Bound(environment, task, body.secrets)

    async def close_session(self, request: Request) -> None:
        await self._change(request, "Close", self._nodes.close)

    async def reconnect_session(self, request: Request) -> None:
        await self._change(request, "Reconnect", self._nodes.reopen)

    async def release_session(self, request: Request) -> None:
        await self._change(request, "Release", self._nodes.release)

    async def _change(self, request: Request, what: str, change: Callable[[Node], Coroutine[Any, Any, None]]) -> None:
        """Beside the request: who hangs up does not leave a node half closed."""
        node_id = cookie(request.header(b"cookie"))
        invalid = f"invalid node_id: {answers.echoed(node_id)}"
        if (node := self._nodes.find(node_id or "")) is None:
            await request.answer_json(invalid)
            return
        refusals: list[ToolyardError] = []

        async def changed() -> None:
            try:
                await change(node)
            except ToolyardError as error:  # for the client, and not for the log of what broke
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

    # Calls.

    async def execute_tool(self, request: Request, node: Node) -> None:
        body = bodies.parse(bodies.Execution, await request.body())
        if body.tool_name == answers.GO_ON:
            environment, call = self._known_call(node, body.arguments)
            await self._tell(request, node, environment, call.name, await self._in_time(call))
            return
        name, world = body.tool_name, body.env_name
        offer = self._offers.named(name, world) or await self._found(node, name, world)
        session = node.sessions.get(offer.environment)
        if session is None or session.state is _FAILED:
            session = await self._session(node, offer.environment)
        asked = session.ask(offer.tool, body.arguments)
        if isinstance(asked, Begun):
            await self._see_through(request, node, offer, asked)
        else:
            reply = await self._in_time(asked) if isinstance(asked, Call) else asked
            await self._tell(request, node, offer.environment, offer.tool, reply)

    async def _session(self, node: Node, environment: type[Environment]) -> Session:
        try:
            return await self._nodes.session(node, environment)
        except (ToolyardError, NotRunning):
            raise
        except Exception as error:  # the author's constructor
            log.warning("environment %s could not be started: %s", environment.name(), describe(error), exc_info=error)
            why = f"the environment could not be started: {explain(error, self._options.errors)}"
            raise answers.refused(500, why + node.hint(environment)) from error

    async def _found(self, node: Node, name: str, world: str | None) -> Offer:
        if (offer := self._offers.find(name, world, await node.own_offers())) is None:
            raise answers.no_such_tool(f"{world}_{name}" if world else name)
        return offer

    async def _see_through(self, request: Request, node: Node, offer: Offer, begun: Begun) -> None:
        """The call goes on here, where it began. If that takes long, the client is told meanwhile to come back."""
        late = asyncio.get_running_loop().call_later(
            self._options.toolserver_wait_seconds, self._put_off, request, begun.call
        )
        try:
            await begun.rest
        finally:
            late.cancel()
        if not request.started:
            await self._tell(request, node, offer.environment, offer.tool, begun.call.result)

    def _put_off(self, request: Request, call: Call[CallResult | AskAgain]) -> None:
        if call.done:  # just now: its result is about to be told
            return
        request.started = True
        answer = answers.come_back(call)
        self._runtime.shared.background.start(request.answer_json(answer.body, answer.status))

    async def _in_time(self, call: Call[CallResult | AskAgain]) -> CallResult | AskAgain:
        if not await call.wait(self._options.toolserver_wait_seconds):
            raise answers.come_back(call)
        return call.result

    async def _tell(
        self, request: Request, node: Node, environment: type[Environment], tool: str, result: Reply
    ) -> None:
        match result:
            case str():
                await request.answer_json(result)
            case ToolOutput():
                await request.answer_json(results.told(result))
            case ToolFailure():
                raise answers.as_answer(tool, result, node.hint(environment))
            case AskAgain():
                raise answers.ask_again(await self._name(node, environment, result.tool), result.arguments)

    async def _name(self, node: Node, environment: type[Environment], tool: str) -> str:
        """What a client calls it by."""
        offer = self._offers.of(environment, tool) or (await node.own_offers()).of(environment, tool)
        if offer is None:
            raise answers.no_such_tool(tool)
        return offer.name

    def _known_call(
        self, node: Node, arguments: Mapping[str, Any]
    ) -> tuple[type[Environment], Call[CallResult | AskAgain]]:
        try:
            return node.call(str(arguments.get("call_id", "")))
        except CallNotFound as error:
            raise answers.refused(500, str(error)) from None

    async def register_new_tool(self, request: Request, node: Node) -> None:
        body = bodies.parse(bodies.NewTool, await request.body())
        if (offer := self._offers.named(_REGISTER)) is None:
            raise answers.unregistered("no environment that is served here takes any")
        if body.tool_name == answers.GO_ON or self._offers.named(body.tool_name) is not None:
            raise answers.unregistered(
                f"Tool: {body.tool_name} has no labels or replicated! Another tool has this name."
            )
        session = await self._nodes.session(node, offer.environment)
        result = await session.call(_REGISTER, body.model_dump()).finished()
        if isinstance(result, ToolFailure):
            if result.retryable:
                raise answers.as_answer(_REGISTER, result)
            raise answers.unregistered(str(result.said or result.message))
        made = (await node.own_offers()).of(offer.environment, body.tool_name)
        if made is None:  # the node has been ended meanwhile
            raise answers.not_running(node)
        await request.answer_json(made.as_json())

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
