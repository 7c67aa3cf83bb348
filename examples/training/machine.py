"""What a recipe ran on: machine, versions, commit."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from toolyard.version import __version__

GIB = 2**30


def machine(device: str) -> dict[str, str | int]:
    return {
        "in words": f"{gpu() if device == 'cuda' else 'no GPU'}, {cores()} cores of {processor()}, {memory()} GiB",
        "device": device,
        "cores": cores(),
        "system": f"Linux {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "toolyard": __version__,
        "trl": installed("trl"),
        "commit": commit(),
    }


def gpu() -> str:
    about = torch.cuda.get_device_properties(0)
    return f"{about.name} with {about.total_memory / GIB:.0f} GiB"


def cores() -> int:
    return len(os.sched_getaffinity(0))


def memory() -> int:
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / GIB)


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def commit() -> str:
    """Of this repository, if it is one and git is there."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return ""
    return done.stdout.strip()
