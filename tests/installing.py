"""Programs that tests need from the system: installed where that can be done without asking."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

_SECONDS = 150


def install(package: str) -> None:
    """With apt, as root on Debian, by one process at a time. Elsewhere it is left to whoever misses it to say so."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    command = ["apt-get", "install", "--yes", "--no-install-recommends", package]
    with (Path(tempfile.gettempdir()) / "toolyard-tests-install.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if subprocess.run(command, check=False, capture_output=True, timeout=_SECONDS).returncode != 0:
            subprocess.run(["apt-get", "update"], check=True, capture_output=True, timeout=_SECONDS)  # a bare machine
            subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS)
