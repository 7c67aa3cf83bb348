"""Run `make test` with each Python that Toolyard supports and this machine has: `python -m tests.pythons [3.12 …]`.

Each has a virtual environment of its own, outside the checkout. It is made anew when the requirements change.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
SUPPORTED = ("3.11", "3.12", "3.13", "3.14")
HOME = Path.home() / ".cache/toolyard/pythons"
_IS_IT = "import sys, venv; sys.exit(sys.version_info[:2] != ({}, {}))"


def found(version: str) -> Sequence[str]:
    """The command of this version. One that is there and does not run, as shims do, is none."""
    major, minor = version.split(".")
    tried = [sys.executable, shutil.which(f"python{version}"), *map(str, installed_by_pyenv(version))]
    for command in filter(None, tried):
        test = [command, "-c", _IS_IT.format(major, minor)]
        if subprocess.run(test, capture_output=True, check=False).returncode == 0:
            return [command]
    return []


def installed_by_pyenv(version: str) -> Iterator[Path]:
    yield from sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"), reverse=True)


def prepared(version: str, command: str) -> Path:
    """The interpreter of a virtual environment with everything that the tests need."""
    wanted = (ROOT / "pyproject.toml").read_bytes() + (ROOT / "constraints.txt").read_bytes()
    home = HOME / f"{version}-{hashlib.sha256(wanted + bytes(ROOT)).hexdigest()[:12]}"
    python = home / "bin/python"
    if not (home / "ready").exists():
        for old in HOME.glob(f"{version}-*"):
            shutil.rmtree(old)
        print(f"\nInstalling everything for Python {version}", flush=True)
        subprocess.run([command, "-m", "venv", home], check=True)
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*install, "--constraint", "constraints.txt", "--editable", ".[dev]"], cwd=ROOT, check=True)
        (home / "ready").touch()
    return python


def passes(version: str, command: str) -> bool:
    try:
        python = prepared(version, command)
    except subprocess.CalledProcessError as error:
        print(f"Python {version}: what Toolyard needs cannot be installed: {error}", flush=True)
        return False
    print(f"\nPython {version}", flush=True)
    return subprocess.run([python, "-m", "tests"], cwd=ROOT, check=False).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.pythons", description=__doc__.partition("\n")[0])
    parser.add_argument("versions", nargs="*", default=SUPPORTED, help=f"of {' '.join(SUPPORTED)}")
    wanted = parser.parse_args().versions
    here = {version: command for version in wanted for command in found(version)}
    results = {version: passes(version, command) for version, command in here.items()}
    for version in wanted:
        print(f"Python {version}:", {None: "not installed here", True: "passed", False: "FAILED"}[results.get(version)])
    return 0 if results and all(results.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
