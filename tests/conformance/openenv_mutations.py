"""For each case of OpenEnv, a server that fails it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from tests.conformance.mutant import Exchange, Mutation, at, drop, put, status, text
from tests.conformance.mutant import told as told_whole


def after(kind: str, *changes: Mutation, step: str = "") -> Mutation:
    """Make the changes in answers to messages of this type; with `step`, to steps of that type only."""

    def change(exchange: Exchange) -> None:
        asked = exchange.asked
        if exchange.method != "WS" or not isinstance(asked, dict) or asked.get("type") != kind:
            return
        if not step or asked.get("data", {}).get("type") == step:
            for one in changes:
                one(exchange)

    return change


def data(edit: Callable[[dict[str, Any]], object]) -> Mutation:
    """Change the data of a message in place."""

    def change(exchange: Exchange) -> None:
        message = exchange.told
        edit(message["data"])
        exchange.body = json.dumps(message).encode()

    return change


def observed(**values: Any) -> Mutation:
    return data(lambda told: told["observation"].update(values))


def told(**values: Any) -> Mutation:
    return data(lambda found: found.update(values))


def closing(code: int) -> Mutation:
    """Close the connection with this code, where the server closes it."""

    def change(exchange: Exchange) -> None:
        if exchange.method == "CLOSE":
            exchange.status = code

    return change


def hanging_up(said: bytes) -> Mutation:
    """Close the connection after this message."""

    def change(exchange: Exchange) -> None:
        if exchange.method == "WS" and exchange.request == said:
            exchange.status = 1011

    return change


def without_type(exchange: Exchange) -> None:
    """A server that ignores a step without a type."""
    if exchange.method == "WS" and "type" not in exchange.asked.get("data", {"type": ""}):
        told(observation={"tools": []})(exchange)


def with_unknown_keys(exchange: Exchange) -> None:
    """A server that refuses unknown keys."""
    if exchange.method == "WS" and b"conform_nobody" in exchange.request:
        exchange.body = b'{"type": "error", "data": {"message": "x", "code": "EXECUTION_ERROR"}}'


def again(exchange: Exchange) -> None:
    """A server without ends: it grades each call."""
    fine = {"metadata": {}, "tool_name": "x", "result": None, "error": None}
    told(observation=fine, reward=1.0)(exchange)


still_there = told_whole(lambda answer: {"jsonrpc": "2.0", "id": 1, "result": {"closed": True}})
call = "call_tool"
only_one = after("state", told(episode_id="the same"))

OPENENV: Mapping[str, Mutation] = {
    "G2": at("/health", put(status="ok")),
    "G3": at("/schema", text("CallToolAction", "Submit")),
    "G4": at("/metadata", drop("description")),
    "G5": at("/openapi.json", text('"/step"', '"/steps"')),
    "G6": closing(1011),
    "G7": after("reset", told(reward=0.0)),
    "G8": after("reset", told(observation=None)),
    "G9": after("state", told(step_count=1)),
    "G10": only_one,
    "G11": with_unknown_keys,
    "G12": after("step", text("input_schema", "inputSchema"), step="list_tools"),
    "G13": after("step", data(lambda found: found["observation"].pop("tool_name")), step=call),
    "G14": without_type,
    "G15": after("step", text("tool_not_found", "execution_error"), step=call),
    "G16": after("step", told(reward=0.0), step=call),
    "G17": after("step", text("EXECUTION_ERROR", "VALIDATION_ERROR"), step=call),
    "G18": after("step", again, step=call),
    "G19": hanging_up(b"{bad"),
    "G19b": hanging_up(b"[1]"),
    "G20": after("step", data(lambda found: found.pop("errors", None))),
    "G33": only_one,
    "G23": at("/mcp", text("-32601", "-32602")),
    "G24": at("/mcp", still_there, when=lambda exchange: b"session/close" in exchange.request),
    "G25": text("SESSION_ERROR", "EXECUTION_ERROR"),
    "G26": after("mcp", told(result={})),
    "G28": at("/task", status(404, was=400)),
    "G29": at("/reset", drop("done")),
    "G29b": at("/step", status(500)),
}
