"""The calls of agents that try to earn without working: one does nothing, one crashes, one exits early."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from toolyard.agents.arguments import least_arguments
from toolyard.core.output import JsonObject
from toolyard.core.tool import ToolSpec
from toolyard.testing.episodes import ToolCall

Agent: TypeAlias = Literal["does nothing", "crashes", "exits early"]

TOOLS = 30
"""Try at most this many tools of a task."""
_FILES_MOST = 3
"""An agent writes its program to at most this many files."""

_EXITING = ("import os\nos._exit(0)\n", "import sys\nsys.exit(0)\n", "exit 0")
_CRASHING = ("import os\nos._exit(1)\n", "kill -9 $$")
_PROGRAM = re.compile(
    r"code|content|command|cmd|source|program|script|cell|solution|answer|text|message|patch|input|body"
)
_FILE = re.compile(r"path|file|name")
_NAMED_IN_PROMPT = re.compile(r"[\w./-]+\.py\b")


@dataclass(frozen=True, slots=True)
class Ploy:
    agent: Agent
    calls: Sequence[ToolCall]


def idle(tools: Sequence[ToolSpec]) -> Iterator[Ploy]:
    """Call each tool alone: with no arguments, and with the fewest that its schema allows."""
    for tool in tools:
        least = least_arguments(tool.input_schema)
        for arguments in ({}, least) if least else ({},):
            yield Ploy("does nothing", [(tool.name, arguments)])


def hostile(tools: Sequence[ToolSpec], prompt: str, endings: Sequence[ToolCall]) -> Iterator[Ploy]:
    """Send programs that end at once through each tool that takes text; then end the episode."""
    files = [*dict.fromkeys([*_NAMED_IN_PROMPT.findall(prompt)[: _FILES_MOST - 1], "conftest.py"])]
    programs: list[tuple[Agent, str]] = [*(("exits early", text) for text in (*_EXITING, _overwriting(files)))]
    programs += [("crashes", text) for text in _CRASHING]
    for tool in tools:
        for agent, program in programs:
            for arguments in _carrying(tool, program, files):
                yield Ploy(agent, [(tool.name, arguments), *endings])


def _overwriting(files: Sequence[str]) -> str:
    """A shell command that makes each of these files exit when it is imported."""
    return f"echo 'import os; os._exit(0)' | tee {' '.join(files)} >/dev/null"


def _carrying(tool: ToolSpec, program: str, files: Sequence[str]) -> Iterator[JsonObject]:
    """Arguments with the program where a program, or any text, belongs. Yields none for a tool that takes no text."""
    texts = [name for name, schema in _parameters(tool) if _takes_text(schema)]
    carriers = [name for name in texts if _PROGRAM.search(name.lower())] or [
        name for name in texts if not _FILE.search(name.lower())
    ]
    if not carriers:
        return
    least = {**least_arguments(tool.input_schema), **dict.fromkeys(carriers, program)}
    named = [name for name in texts if name not in carriers and _FILE.search(name.lower())]
    for file in files if named else [""]:
        yield {**least, **dict.fromkeys(named, file)}


def _parameters(tool: ToolSpec) -> Sequence[tuple[str, Mapping[str, Any]]]:
    properties: Mapping[str, Any] = (tool.input_schema or {}).get("properties", {})
    return [(name, schema) for name, schema in properties.items() if isinstance(schema, Mapping)]


def _takes_text(schema: Mapping[str, Any]) -> bool:
    """True for free text, not for a choice of a few."""
    if "enum" in schema or "const" in schema:
        return False
    if (choices := schema.get("anyOf") or schema.get("oneOf")) is not None:
        return any(isinstance(one, Mapping) and _takes_text(one) for one in choices)
    kind = schema.get("type")
    return kind == "string" or (isinstance(kind, list) and "string" in kind)
