"""The public surface: what authors import. A change here is a change for every author."""

from __future__ import annotations

import subprocess
import sys

import toolyard
from toolyard import types

AUTHORS = [
    "AskAgain",
    "AsyncClient",
    "Client",
    "Environment",
    "Given",
    "ImageBlock",
    "ListToolsOutput",
    "Server",
    "ServiceUnavailable",
    "Split",
    "Tagged",
    "TextBlock",
    "ToolError",
    "ToolOutput",
    "ToolSpec",
    "Toolset",
    "terminal",
    "tool",
]
FOR_THEIR_IMPORT_LINES = [
    "Blocks",
    "GroupCandidate",
    "GroupScore",
    "JSONObject",
    "JSONValue",
    "Message",
    "ReasoningBlock",
    "TerminalToolSpec",
    "ToolCallBlock",
    "ToolResultBlock",
]


def test_these_are_the_names_that_authors_import():
    assert toolyard.__all__ == [*AUTHORS, *FOR_THEIR_IMPORT_LINES]
    for name in AUTHORS:
        assert getattr(toolyard, name).__name__ == name


def test_what_environments_written_for_ors_import_is_the_same_here_and_in_types():
    for name in FOR_THEIR_IMPORT_LINES:
        assert getattr(toolyard, name) is getattr(types, name)


def test_the_types_of_ors_are_there_under_their_names():
    assert types.ListToolsOutput is toolyard.ListToolsOutput
    assert types.ToolSpec is toolyard.ToolSpec
    for name in types.__all__:
        assert hasattr(types, name)


def test_importing_the_authors_names_loads_no_server_and_no_client():
    code = "import sys, toolyard; print([m for m in ('uvicorn', 'starlette', 'httpx2', 'aiohttp') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
