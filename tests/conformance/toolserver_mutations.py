"""For each case of the ToolServer's wire, a server that fails it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.conformance.mutant import Mutation, at, body, drop, put, status, told

_EXECUTE, _AVAILABLE = "/execute_tool", "/get_available_tools"


def tools(**values: Any) -> Mutation:
    return at(_AVAILABLE, told(lambda answer: [tool.update(values) for tool in answer["tools_json"]] and None))


TOOLSERVER: Mapping[str, Mutation] = {
    "E105": at("/get_cookies", status(404)),
    "E106": at(_EXECUTE, status(200)),
    "E107": at("/close_session", status(403)),
    "E108": at(_AVAILABLE, status(403, was=503)),
    "E109": at(_AVAILABLE, status(200)),
    "E136": at("/", put(message="Hello")),
    "E110": tools(parameters={"type": "string"}),
    "E111": at(_AVAILABLE, told(lambda answer: answer["available_envs"][0]["tools"].append("..."))),
    "E112": tools(description="x" * 1025),
    "E113": at("/get_json_schema_for_tools", drop("missing_tools")),
    "E114": at("/get_json_schema_for_envs", status(422)),
    "E115": at(_EXECUTE, body('{"display": "x"}')),
    "E123": at(_EXECUTE, body('{"type": "binary", "name": null, "data": ""}')),
    "E119": at(_EXECUTE, status(500, was=422)),
    "E115b": at(_EXECUTE, status(422), when=lambda exchange: "parameters" in exchange.asked),
    "E119b": at(_EXECUTE, status(500), when=lambda exchange: "env_name" in exchange.asked),
    "E128": at("/retrieving_tools", put(retrieved_tools=["a", "b", "c"])),
    "E129": at("/register_new_tool", status(500)),
    "E130": at("/get_workspace_structure", put(children=[])),
    "E131": at("/download_file", status(200)),
    "E132": at("/download_workspace", body("no zip", "application/zip")),
    "E133": at("/download_file", status(200)),
}
