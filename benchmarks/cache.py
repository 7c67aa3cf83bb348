"""Files that the benchmarks make once and keep outside the checkout."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("loadgen.c")


def cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "toolyard" / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def load_generator() -> Path:
    """The compiled load generator, rebuilt when its source has changed."""
    built = cache() / f"loadgen-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]}"
    if not built.exists():
        compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
        if compiler is None:
            raise SystemExit("The load generator is written in C and there is no C compiler. Install gcc or clang.")
        unfinished = built.with_suffix(".new")
        subprocess.run([compiler, "-O2", "-o", str(unfinished), str(SOURCE)], check=True)
        unfinished.rename(built)
    return built
