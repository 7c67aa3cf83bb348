"""What the benchmarks build once and keep outside the checkout: the load generator, and the reference's environment."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

SOURCE = Path(__file__).with_name("loadgen.c")


def cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "toolyard"


def load_generator() -> Path:
    """The compiled load generator, made anew whenever its source has changed."""
    built = cache() / f"loadgen-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]}"
    if not built.exists():
        compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None:
            raise SystemExit("The load generator is written in C and there is no C compiler. Install gcc or clang.")
        built.parent.mkdir(parents=True, exist_ok=True)
        unfinished = built.with_suffix(".new")
        subprocess.run([compiler, "-O2", "-o", str(unfinished), str(SOURCE)], check=True)
        unfinished.rename(built)
    return built


def python_with(name: str, requirements: Sequence[str]) -> Path:
    """The Python of a virtual environment, of our own version, that has these packages and what they need."""
    folder = cache() / "peers" / f"{name}-py{sys.version_info.major}.{sys.version_info.minor}"
    python, installed = folder / "bin" / "python", folder / "installed.txt"
    wanted = "\n".join(requirements)
    if not installed.exists() or installed.read_text() != wanted:
        print(f"Installing {' '.join(requirements)} in {folder}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *requirements], check=True)
        installed.write_text(wanted)
    return python
