"""An environment for several gateways. Files in a folder show outside what happens in it."""

from __future__ import annotations

import importlib
import io
import os
import tarfile
import time
from pathlib import Path
from types import SimpleNamespace

import anyio

from toolyard import Environment, TextBlock, ToolOutput, tool

if refused := os.environ.get("YARD_FORKS_REFUSED"):
    os.fork = importlib.import_module("tests.forks").refusing({int(refused)})


def arrived(key: str) -> int:
    """How many have come by now."""
    folder = Path(os.environ["YARD"])
    number = len(list(folder.glob(f"{key}-came-*"))) + 1
    (folder / f"{key}-came-{number}-{os.getpid()}-{time.monotonic_ns()}").touch()  # others may come at the same time
    return number


def may_go(key: str) -> bool:
    return (Path(os.environ["YARD"]) / f"{key}-go").exists()


class Files:
    """A workspace in memory."""

    def __init__(self):
        self.files = {}

    async def read(self, path):
        return self.files[path.removeprefix("./")]

    async def write(self, path, data):
        self.files[path.removeprefix("./")] = data

    async def list(self, path="."):
        return [SimpleNamespace(name=name, kind="file", size=len(data)) for name, data in self.files.items()]

    async def stop_programs(self):
        """There are none."""

    async def save(self):
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w") as tar:
            for name, data in self.files.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))
        return archive.getvalue()

    async def restore(self, saved):
        with tarfile.open(fileobj=io.BytesIO(saved)) as tar:
            for entry in tar.getmembers():
                self.files[entry.name] = tar.extractfile(entry).read()


class Yard(Environment):
    """Remembers texts."""

    uses_sandbox = bool(os.environ.get("YARD_NEEDS_SANDBOX"))

    def __init__(self, task_spec={}, secrets={}):
        super().__init__(task_spec, secrets)
        self.told = []
        self.files = Files()

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{"n": n} for n in range(3)]

    def get_prompt(self):
        return f"Task {self.task_spec.get('n')}"

    def workspace(self):
        return self.files

    def teardown(self):
        if folder := os.environ.get("YARD"):
            (Path(folder) / f"ended-{id(self)}-{os.getpid()}-{time.monotonic_ns()}").touch()

    @tool
    async def tell(self, text: str) -> ToolOutput:
        """Remember a text; all of them so far, and in which process."""
        self.told.append(text)
        return ToolOutput(blocks=[TextBlock(text=" ".join(self.told))], metadata={"pid": os.getpid()})

    @tool
    async def wait(self, key: str) -> str:
        """Until there is a file of this name that ends in -go."""
        number = arrived(key)
        with anyio.fail_after(60):
            while not may_go(key):
                await anyio.sleep(0.01)
        return f"{key} came {number} times"

    @tool
    async def large(self, size: int) -> str:
        """So much text."""
        return "x" * size

    @tool
    def plain(self, text: str) -> str:
        """In a thread."""
        return text
