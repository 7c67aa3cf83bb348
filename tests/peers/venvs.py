"""Virtual environments of the peers, made once and kept in the user's cache folder.

Each holds a package as its users have it, at a pinned version. The name of its folder depends on its content: other
requirements, or another Python, make another folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
PROJECT = HERE.parents[1]
CONSTRAINTS = HERE / "constraints.txt"

_PIP_SECONDS = 900


class PeerError(Exception):
    """A peer is not available: no package index, no room, or no such version."""


@dataclass(frozen=True, slots=True)
class Peer:
    name: str
    requirements: Sequence[str]
    bare: Sequence[str] = ()
    """Installed without their requirements."""
    constraints: Path = CONSTRAINTS


def requirements(*extras: str) -> Sequence[str]:
    """Toolyard's own requirements, and these extras of it."""
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    optional = [requirement for extra in extras for requirement in project["optional-dependencies"][extra]]
    return [*project["dependencies"], *optional]


ORS = Peer("ors", ["ors-sdk==0.1.0"])
# TRL's client imports neither torch nor transformers, which TRL requires; it needs datasets and packaging.
OPENREWARD = Peer(
    "openreward",
    ["openreward==0.1.167", "inspect-openreward==0.3.0", "datasets", "packaging"],
    bare=["trl==1.16.0"],
)
MCP_2 = Peer("mcp-2", ["mcp==2.3.0", "fastmcp==4.1.2"], constraints=HERE / "constraints-mcp-2.txt")
MCP_FAST = Peer("mcp-fast", [*MCP_2.requirements, "uvloop", "httptools"], constraints=MCP_2.constraints)
MCP_1 = Peer("mcp-1", ["mcp==1.30.0", "fastmcp==3.4.10"], constraints=HERE / "constraints-mcp-1.txt")
# Its own server runs in it too, for the benchmark: on the same loop and parser as ours.
OPENENV = Peer("openenv", ["openenv==0.10.0", "uvloop", "httptools"], constraints=HERE / "constraints-openenv.txt")
VERIFIERS = Peer("verifiers", ["verifiers[openenv]==0.4.0"], constraints=HERE / "constraints-verifiers.txt")
# Its models of trajectories need only pydantic; the rest needs a newer Python than ours.
HARBOR = Peer("harbor", ["openai", "pydantic"], bare=["harbor==0.25.0"])
# What the recipes of examples/training need. Where pip finds no build of PyTorch for the CPU, this is several GB.
TRAINING = Peer(
    "training",
    [*requirements(), "matplotlib", "openreward==0.1.167", "torch==2.13.0", "trl==1.16.0"],
    constraints=HERE / "constraints-training.txt",
)
FUSION = Peer("fusion", ["sandbox-fusion==0.3.7"])
# Toolyard itself comes from the sources, beside the packages whose environments it serves and what tests them.
SERVED = Peer("served", [*requirements(), "ors-sdk==0.1.0", "openreward==0.1.167", "httpx", "pytest", "pytest-asyncio"])


def cache() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(root) / "toolyard" / "peers"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


_failed: dict[Path, PeerError] = {}
"""Failures in this process: not retried for each test."""


def prepare(peers: Iterable[Peer], packages: Iterable[str] = ()) -> None:
    """Make what is missing. The tests that need it report what cannot be made."""
    with suppress(PeerError):
        for peer in peers:
            interpreter(peer)
        for package in packages:
            sources(package)


def interpreter(peer: Peer) -> Path:
    """The Python of a peer's environment, which this makes if necessary."""
    contents = [*peer.requirements, *peer.bare, peer.constraints.read_text(), sys.version, sys.platform]
    folder = cache() / f"{peer.name}-{hashlib.sha256(repr(contents).encode()).hexdigest()[:12]}"
    python, ready = folder / "bin" / "python", folder / "ready"
    with making(folder):
        if not ready.exists():
            shutil.rmtree(folder, ignore_errors=True)
            run([sys.executable, "-m", "venv", folder])
            install = [python, "-m", "pip", "install", "--quiet", "--constraint", peer.constraints]
            run([*install, *peer.requirements])
            if peer.bare:
                run([*install, "--no-deps", "--ignore-requires-python", *peer.bare])
            ready.touch()
    return python


def sources(requirement: str) -> Path:
    """The folder of a package's source distribution, with its tests."""
    folder = cache() / f"{requirement}-sources"
    with making(folder):
        if not folder.exists():
            part = folder.with_name(f"{folder.name}.part")
            shutil.rmtree(part, ignore_errors=True)
            download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
            run([*download, "--dest", part, requirement])
            (archive,) = part.iterdir()
            with tarfile.open(archive) as opened:
                opened.extractall(part, filter="data")
            archive.unlink()
            part.rename(folder)
    (inner,) = folder.iterdir()
    return inner


@contextmanager
def making(folder: Path) -> Iterator[None]:
    """One process at a time makes a folder; the others wait. A process that dies releases the lock."""
    if folder in _failed:
        raise _failed[folder]
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield
        except PeerError as error:
            _failed[folder] = error
            raise


def run(command: Sequence[str | Path]) -> None:
    words = list(map(str, command))
    try:
        subprocess.run(
            words,
            env=environ(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_PIP_SECONDS,
            check=True,
        )
    except subprocess.SubprocessError as error:
        said = "\n".join(str(getattr(error, "output", "") or "").splitlines()[-20:])
        raise PeerError(f"a peer of these tests cannot be installed: {error}\n{said}") from None


def environ(**more: str) -> dict[str, str]:
    """The environment of a peer: none of our variables, and no network beyond this machine."""
    hidden = ("PYTHON", "VIRTUAL_ENV", "OPENREWARD_", "ORS_", "TOOLYARD_", "COVERAGE_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    silent = {"OPENREWARD_DISABLE_UPDATE_CHECK": "1", "TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1"}
    return {**kept, **silent, "NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost", **more}
