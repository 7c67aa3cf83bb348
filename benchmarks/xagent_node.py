"""XAgent's ToolServerNode from a checkout of it, with one of our tools among its extensions.

Its Manager, which passes each request on to the node of its session, needs Docker and MongoDB and is left out: a real
call costs more there.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Literal, TypeAlias

from benchmarks.cache import cache
from benchmarks.servers import Contender, venvs

REQUIRED = [
    *("fastapi", "uvicorn", "uvloop", "httptools", "python-multipart"),
    *("PyYAML", "docstring_parser", "tqdm", "requests", "httpx[http2]", "beautifulsoup4", "duckduckgo_search"),
    *("numpy", "scikit-learn", "nbformat", "nbclient", "ipykernel"),
]
"""What the node imports with its default configuration, and the faster loop and parser for uvicorn."""

Way: TypeAlias = Literal["shipped", "fast", "quiet"]
WAYS: dict[Way, dict[str, object]] = {
    "shipped": {"loop": "asyncio", "http": "h11"},
    "fast": {"loop": "uvloop", "http": "httptools"},
    "quiet": {"loop": "uvloop", "http": "httptools", "access_log": False},
}
"""How uvicorn runs it: as its image does; with the faster loop and parser; and without a log line per request."""

# It also runs `service docker start`, which is irrelevant here.
SERVE = """
import json, os, sys, uvicorn
os.environ["PATH"] = ""
sys.path.insert(0, os.getcwd())
uvicorn.run("main:app", port=int(sys.argv[2]), **json.loads(sys.argv[1]))
"""

ECHO = '''
from core.register import toolwrapper

@toolwrapper()
def echo(text: str) -> str:
    """Say the text back.

    :param string text: What to say.
    """
    return text
'''


def xagent_node(folder: Path, way: Way) -> Contender:
    python = venvs.interpreter(venvs.Peer("xagent-bench", REQUIRED))
    return Contender("xagent", "main", python, [str(python), "-c", SERVE, json.dumps(WAYS[way])], folder)


def laid_out(checkout: Path) -> Path:
    """Its files as in its image. It loads a tool among its extensions at the first call."""
    folder = cache() / "xagent-node"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(checkout / "ToolServer" / "ToolServerNode", folder, copy_function=os.symlink)
    configuration = (checkout / "assets" / "config" / "node.yml").read_text()
    shipped = "work_directory: /app/workspace/"
    assert configuration.count(shipped) == 1
    (folder / "assets" / "config").mkdir()
    (folder / "assets" / "config" / "node.yml").write_text(
        configuration.replace(shipped, f"work_directory: {folder / 'workspace'}/")
    )
    (folder / "extensions" / "tools" / "echo.py").write_text(ECHO)
    return folder
