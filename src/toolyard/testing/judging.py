"""Judges a task, a tool, a prompt or a result: one function for each, which returns its problems."""

from __future__ import annotations

import base64
import binascii
import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import docstring_parser
import jsonschema_rs

from toolyard.core.encoding import encode
from toolyard.core.nearness import did_you_mean
from toolyard.core.output import Blocks, ImageBlock, JsonObject, TextBlock, ToolFailure, ToolOutput
from toolyard.core.tool import Tool, ToolSpec
from toolyard.testing.blame import explained
from toolyard.testing.episodes import MadeCall
from toolyard.testing.report import Level

Problems: TypeAlias = Sequence[tuple[Level, str]]

_GOOD_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
"""What the APIs of model providers accept as the name of a function."""


def of_task(spec: object) -> Problems:
    if not isinstance(spec, Mapping):
        return [("error", f"it is of type {type(spec).__name__}; a task is a JSON object, in Python a dict")]
    try:
        encode(spec)
    except Exception as error:  # the author's values may raise anything when they are encoded
        return [("error", f"it cannot be sent as JSON: {error}")]
    try:
        json.dumps(spec, allow_nan=False)
    except (TypeError, ValueError) as error:
        return [("warning", f"it is not plain JSON ({error}): clients see something else than the environment does")]
    return []


def of_prompt(blocks: Blocks) -> Problems:
    if not any(block.text.strip() if isinstance(block, TextBlock) else block.data for block in blocks):
        return [("error", "the prompt is empty")]
    if len(blocks) == 1 and isinstance(blocks[0], TextBlock) and _is_conversation(blocks[0].text):
        return [
            (
                "warning",
                "the agent reads JSON of messages: return text from get_prompt(), and messages from get_messages()",
            )
        ]
    return of_blocks(blocks)


def of_tool(spec: ToolSpec, *, runs: bool) -> Problems:
    """A tool, as a model sees it."""
    found: list[tuple[Level, str]] = []
    if not runs:
        found.append(("error", "list_task_tools() describes it, but nothing runs it: write call_task_tool()"))
    if not _GOOD_NAME.fullmatch(spec.name):
        found.append(("warning", "model providers refuse such a name; use up to 64 letters, digits, _ and -"))
    if not spec.description.strip():
        found.append(("warning", "no description; the docstring becomes it"))
    schema = dict(spec.input_schema or {})
    try:
        jsonschema_rs.meta.validate(schema)
    except (jsonschema_rs.ValidationError, ValueError) as error:
        return [*found, ("error", f"its input_schema is not valid JSON Schema: {str(error).splitlines()[0]}")]
    if schema.get("type", "object") != "object":
        return [*found, ("error", f"its input_schema describes a {schema['type']}; arguments are an object")]
    for name in _undescribed(schema):
        text = f"parameter {name!r} has no description; write it under Args: in the docstring, or with pydantic's Field"
        found.append(("warning", text))
    for name, default in _unfit_defaults(schema):
        found.append(("warning", f"parameter {name!r} has the default {default!r}, which its type hint does not allow"))
    return found


def of_docstring(tool: Tool) -> Problems:
    """Arguments that the docstring describes and the tool does not have: the model never reads about them."""
    if tool.whole:
        return []
    known = tool.arguments.model_fields if tool.arguments else {}
    described = docstring_parser.parse(inspect.getdoc(getattr(tool.owner, tool.method)) or "").params
    return [
        (
            "warning",
            f"the docstring describes {one.arg_name!r}, which is no parameter{did_you_mean(one.arg_name, known)}",
        )
        for one in described
        if one.arg_name not in known
    ]


def of_call(call: MadeCall, *, scripted: bool) -> Problems:
    """How a call went; reports success only of a scripted one."""
    match call.result:
        case ToolOutput() as output:
            found = of_output(output)
            if scripted and not found:
                end = ", finished" if output.finished else ""
                return [("ok", f"reward {output.reward}{end}, {shortened(output.text)!r}")]
            return found
        case ToolFailure(reason="tool_raised") if call.error:
            return [
                ("error", f"raised {explained(call.error)}. For a mistake that the agent should read, raise ToolError")
            ]
        case ToolFailure(reason="bad_arguments" | "tool_failed" | "episode_finished") as failure:
            return [("warning", shortened(failure.message, 200))] if scripted else []
        case ToolFailure() as failure:
            return [("error", shortened(failure.message, 200))]


def of_output(output: ToolOutput) -> Problems:
    found = list(of_blocks(output.blocks))
    if output.metadata and "cut_from" in output.metadata:
        found.append(("warning", "its output is larger than the server sends (output_bytes), so it was cut"))
    return found


def of_blocks(blocks: Blocks) -> Problems:
    return [("error", problem) for block in blocks if isinstance(block, ImageBlock) for problem in _of_image(block)]


def _of_image(image: ImageBlock) -> Sequence[str]:
    try:
        base64.b64decode(image.data, validate=True)
    except (binascii.Error, ValueError):
        return ["an image's data is not base64 (without a data: prefix)"]
    return [] if image.mimeType.startswith("image/") else [f"an image's mimeType is {image.mimeType!r}"]


def _undescribed(schema: JsonObject) -> Sequence[str]:
    definitions: Any = schema.get("$defs", {})
    found = []
    for name, parameter in schema.get("properties", {}).items():
        target = definitions.get(str(parameter.get("$ref", "")).rpartition("/")[2], {})
        if not (parameter.get("description") or target.get("description")):
            found.append(name)
    return found


def _unfit_defaults(schema: JsonObject) -> Iterator[tuple[str, object]]:
    """None is left alone: many authors write it for a parameter that may be left out."""
    for name, parameter in schema.get("properties", {}).items():
        default = parameter.get("default")
        if default is not None and not jsonschema_rs.is_valid({**parameter, "$defs": schema.get("$defs", {})}, default):
            yield name, default


def _is_conversation(text: str) -> bool:
    """Whether it is the JSON of one message, or of several."""
    try:
        value = json.loads(text)
    except ValueError:
        return False
    messages = value if isinstance(value, list) else [value]
    return bool(messages) and all(isinstance(one, dict) and {"role", "content"} <= one.keys() for one in messages)


def shortened(text: str, most: int = 80) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[:most]}…"
