"""What the repository holds: what we wrote, and nothing that was built or fetched."""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
PICTURES = {".png"}


def test_what_is_not_a_picture_is_text():
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [ROOT / name for name in tracked.split("\0") if name]
    there = [path for path in paths if path.is_file() and path.suffix not in PICTURES]
    assert there
    assert [path for path in there if b"\0" in path.read_bytes()] == []
