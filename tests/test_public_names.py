"""The public surface: what authors import. A change here is a change for every author."""

from __future__ import annotations

import subprocess
import sys

import toolyard
from toolyard import types


def test_these_are_the_names_that_authors_import():
    assert toolyard.__all__ == [
        "AsyncClient",
        "Client",
        "Environment",
        "ImageBlock",
        "ListToolsOutput",
        "Server",
        "Split",
        "TextBlock",
        "ToolError",
        "ToolOutput",
        "ToolSpec",
        "Toolset",
        "terminal",
        "tool",
    ]
    for name in toolyard.__all__:
        assert getattr(toolyard, name).__name__ == name


def test_the_types_of_ors_are_there_under_their_names():
    assert types.ListToolsOutput is toolyard.ListToolsOutput
    assert types.ToolSpec is toolyard.ToolSpec
    for name in types.__all__:
        assert hasattr(types, name)


def test_importing_the_authors_names_loads_no_server_and_no_client():
    code = "import sys, toolyard; print([m for m in ('uvicorn', 'starlette', 'httpx2') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
