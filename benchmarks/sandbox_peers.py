"""Other ways to run a snippet of Python: a new interpreter each time, bare or in another sandbox."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cache import cache
from benchmarks.servers import clean_environment

# A read-only view of the host's files, and namespaces of all kinds: where any user of bubblewrap would begin.
BUBBLEWRAP = (
    *("bwrap", "--unshare-all", "--die-with-parent", "--new-session"),
    *("--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"),
)
# As verl-tool starts them: its python_code tool, with firejail enabled.
FIREJAIL = (
    *("firejail", "--quiet", "--seccomp=socket", "--noprofile"),
    *("--rlimit-nproc=32", "--rlimit-nofile=32", "--rlimit-fsize=2m", "--rlimit-as=1096m"),
)


@dataclass(frozen=True)
class Peer:
    name: str
    command: Sequence[str]
    """The snippet comes last."""
    version: str = ""


def peers() -> Sequence[Peer]:
    """The installed ones."""
    python = str(bare_python())
    bare = [Peer("python3 -c", [python, "-c"]), Peer("python3 -I -S -c", [python, "-I", "-S", "-c"])]
    boxed = [("bubblewrap", BUBBLEWRAP), ("firejail", FIREJAIL)]
    return [
        *bare,
        *(
            Peer(name, [*command, python, "-c"], _version(command[0]))
            for name, command in boxed
            if shutil.which(command[0])
        ),
    ]


def bare_python() -> Path:
    """This interpreter without any packages: a host's packages may do work whenever Python starts."""
    folder = cache() / f"python-{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}"
    python = folder / "bin" / "python3"
    if not python.exists():
        venv.create(folder, symlinks=True)
    return python


def with_packages(code: str) -> str:
    """The same for a bare Python that must find the packages installed here."""
    return f"import sys; sys.path.append({sysconfig.get_path('purelib')!r}); {code}"


def _version(program: str) -> str:
    told = subprocess.run([program, "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout
    return told.split("\n", 1)[0].split()[-1]


class Launcher:
    """Starts programs from threads, and reads their output, as any server would have to."""

    def __init__(self, most_at_once: int) -> None:
        self._threads = ThreadPoolExecutor(most_at_once)
        self._environment = clean_environment()

    async def run(self, peer: Peer, code: str) -> str:
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, [*peer.command, code])

    def close(self) -> None:
        self._threads.shutdown()

    def _run(self, command: Sequence[str]) -> str:
        done = subprocess.run(
            command,
            cwd="/tmp",
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
        return (done.stdout + done.stderr).decode(errors="replace")
