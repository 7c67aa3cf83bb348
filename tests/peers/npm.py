"""npm packages for tests of the server, installed once and kept beside the virtual environments."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.peers.venvs import PeerError, cache, making, run


@dataclass(frozen=True, slots=True)
class NpmPeer:
    name: str
    packages: Mapping[str, str]
    """Versions by name."""


MCP = NpmPeer(
    "mcp-npm",
    {
        "@modelcontextprotocol/sdk": "1.32.2",
        "@modelcontextprotocol/conformance": "0.1.16",
        "conformance-alpha": "npm:@modelcontextprotocol/conformance@0.2.0-alpha.12",
        "node": "22.23.3",  # the conformance suites need this one or a later one
    },
)


def installed(peer: NpmPeer) -> Path:
    """The folder with `node_modules`, which this makes if necessary."""
    if shutil.which("npm") is None:
        raise PeerError("npm is not installed, and clients of MCP that are written in TypeScript need it")
    package = json.dumps({"name": "peers", "private": True, "dependencies": peer.packages})
    folder = cache() / f"{peer.name}-{hashlib.sha256(package.encode()).hexdigest()[:12]}"
    with making(folder):
        if not (folder / "ready").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            (folder / "package.json").write_text(package)
            run(["npm", "install", "--prefix", folder, "--no-audit", "--no-fund", "--no-progress"])
            (folder / "ready").touch()
    return folder


def node(peer: NpmPeer) -> Path:
    return installed(peer) / "node_modules" / "node" / "bin" / "node"
