"""XAgent's ToolServerNode from a checkout of it, with a tool of ours among its extensions.

Its Manager, which passes each request on to the node of its session, wants Docker and MongoDB and is left out: what a
call really costs there is more.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from benchmarks.cache import cache
from benchmarks.servers import Contender, venvs

REQUIRED = [
    *("fastapi", "uvicorn", "uvloop", "httptools", "python-multipart"),
    *("PyYAML", "docstring_parser", "tqdm", "requests", "httpx[http2]", "beautifulsoup4", "duckduckgo_search"),
    *("numpy", "scikit-learn", "nbformat", "nbclient", "ipykernel"),
]
"""What the node imports with its own configuration, and the faster loop and parser for uvicorn."""

ECHO = '''
from core.register import toolwrapper

@toolwrapper()
def echo(text: str) -> str:
    """Say the text back.

    :param string text: What to say.
    """
    return text
'''

# As its image starts it, but for the address, with uvicorn's faster loop and parser asked for by name, and without a
# line of log for each request. It runs `service docker start` by itself, which is none of its business here.
SERVE = """
import os, sys, uvicorn
os.environ["PATH"] = ""
sys.path.insert(0, os.getcwd())
uvicorn.run("main:app", port=int(sys.argv[1]), loop="uvloop", http="httptools", access_log=False)
"""


def xagent_node(checkout: Path) -> Contender:
    """Its files are laid out as in its image; a tool that is among the extensions is loaded when it is first called."""
    python = venvs.interpreter(venvs.Peer("xagent-bench", REQUIRED))
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
    return Contender("xagent", "main", python, [str(python), "-c", SERVE], folder)
