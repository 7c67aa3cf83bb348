"""Environments as authors write and install them: files in a folder of packages, with metadata, caches and data."""

from __future__ import annotations

import py_compile
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ENVIRONMENT = """
from pathlib import Path

from toolyard import Environment, tool
from toolyard.sandboxes import open_sandbox, tool_output

ANSWER = "{secret}"


class {name}(Environment):
    uses_sandbox = True
    {hidden}

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{{}}]

    def get_prompt(self):
        return "Guess the answer."

    async def setup(self):
        self.sandbox = await open_sandbox()

    async def teardown(self):
        await self.sandbox.close()

    @tool
    async def bash(self, command: str) -> object:
        return tool_output(await self.sandbox.shell(command))

    @tool
    async def python(self, code: str) -> object:
        return tool_output(await self.sandbox.exec(code))
"""
SECRET = "forty-two is what the tests expect"


@dataclass(frozen=True, slots=True)
class Venv:
    python: Path
    site: Path

    @classmethod
    def make(cls, folder: Path) -> Venv:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
        return cls(folder / "bin" / "python", next(folder.glob("lib/python3*/site-packages")))


def package(site: Path, name: str, *, hidden: str = "", installed: bool = True) -> Path:
    """An environment in a package, with its data and bytecode, as pip installs it."""
    folder = site / name
    files = {
        "__init__.py": "",
        "env.py": ENVIRONMENT.format(name="Served", secret=SECRET, hidden=hidden),
        "tests/answers.json": f'"{SECRET}"',
    }
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    py_compile.compile(str(folder / "env.py"))
    if installed:
        record(site, name, [f"{name}/{path}" for path in files])
    return folder


def module(site: Path, name: str) -> Path:
    """An environment in a single file."""
    path = site / f"{name}.py"
    path.write_text(ENVIRONMENT.format(name="Served", secret=SECRET, hidden=""))
    py_compile.compile(str(path))
    record(site, name, [path.name])
    return path


def record(site: Path, name: str, files: list[str]) -> None:
    folder = site / f"{name}-1.0.dist-info"
    folder.mkdir()
    (folder / "RECORD").write_text("".join(f"{file},,\n" for file in files))
