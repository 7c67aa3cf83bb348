"""Makes the tool calls of this wire, in a session of a node. It answers with the result, or with "ask again" if that
takes long."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from toolyard.asgi import Request, Verbosity, explain
from toolyard.core.environment import Environment
from toolyard.core.errors import CallNotFound, ToolyardError, describe
from toolyard.core.mistakes import advice, which_tools
from toolyard.core.output import AskAgain, Reply, ToolFailure, ToolOutput
from toolyard.protocols.toolserver import answers, bodies, results
from toolyard.protocols.toolserver.node import Node, NotRunning
from toolyard.protocols.toolserver.nodes import Nodes
from toolyard.protocols.toolserver.offers import Offer, Offers
from toolyard.runtime.call import Call
from toolyard.runtime.lifecycle import State
from toolyard.runtime.session import Session

log = logging.getLogger("toolyard.toolserver")

_REGISTER = "register_new_tool"
_FAILED = State.FAILED
"""Looked up once: every call compares with it."""


class Calls:
    """`wait_seconds`: the client has to come back for a call that takes longer. `errors`: how much of an author's
    exception a client may see."""

    def __init__(self, nodes: Nodes, offers: Offers, *, wait_seconds: float, errors: Verbosity) -> None:
        self._nodes = nodes
        self._offers = offers
        self._wait_seconds = wait_seconds
        self._errors = errors

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
        call = session.start(offer.tool, body.arguments, kept=False, follow=False)
        await self._tell(request, node, offer.environment, offer.tool, await self._in_time(call))

    async def _session(self, node: Node, environment: type[Environment]) -> Session:
        try:
            return await self._nodes.session(node, environment)
        except (ToolyardError, NotRunning):
            raise
        except Exception as error:  # the author's constructor
            log.warning("environment %s could not be started: %s", environment.name(), describe(error), exc_info=error)
            why = f"the environment could not be started: {explain(error, self._errors)}"
            raise answers.refused(500, why + node.hint(environment)) from error

    async def _found(self, node: Node, name: str, world: str | None) -> Offer:
        own = await node.own_offers()
        if (offer := self._offers.find(name, world, own)) is None:
            full = f"{world}_{name}" if world else name
            names = [one.name for one in (*own.by_name.values(), *self._offers.listed)]
            raise answers.no_such_tool(full, advice(which_tools(full, names)))
        return offer

    async def _in_time(self, call: Call[Reply]) -> Reply:
        """The result. If it takes too long, raises the answer that tells the client to come back for it."""
        if not await call.wait(self._wait_seconds):
            raise answers.come_back(call)
        return call.result

    async def _tell(
        self, request: Request, node: Node, environment: type[Environment], tool: str, result: Reply
    ) -> None:
        match result:
            case str():
                await request.answer_json(result)
            case ToolOutput():
                await request.answer_json(results.as_json(result))
            case ToolFailure():
                raise answers.as_answer(tool, result, node.hint(environment))
            case AskAgain():
                raise answers.ask_again(await self._name(node, environment, result.tool), result.arguments)

    async def _name(self, node: Node, environment: type[Environment], tool: str) -> str:
        """The name by which a client calls this tool."""
        offer = self._offers.of(environment, tool) or (await node.own_offers()).of(environment, tool)
        if offer is None:
            raise answers.no_such_tool(tool)
        return offer.name

    def _known_call(self, node: Node, arguments: Mapping[str, Any]) -> tuple[type[Environment], Call[Reply]]:
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
        result = await session.start(_REGISTER, body.model_dump()).finished()
        if isinstance(result, ToolFailure):
            if result.retryable:
                raise answers.as_answer(_REGISTER, result)
            raise answers.unregistered(str(result.said or result.message))
        made = (await node.own_offers()).of(offer.environment, body.tool_name)
        if made is None:  # the node was closed meanwhile
            raise answers.not_running(node)
        await request.answer_json(made.as_json())
