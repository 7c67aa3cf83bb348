"""The pages a reader sees, and what stands in their fenced blocks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
SNIPPETS = sorted((ROOT / "docs" / "snippets").glob("*.py"))
EXAMPLES = sorted(
    path
    for pattern in ("*.py", "agent/*.py", "openenv/*.py", "training/*.py")
    for path in (ROOT / "examples").glob(pattern)
)

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    page: Path
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}: {self.text.strip().splitlines()[0]}"


def blocks(language: str) -> list[Block]:
    found = [Block(page, *match.groups()) for page in PAGES for match in _FENCE.finditer(page.read_text())]
    return [block for block in found if block.language == language]


def commands() -> list[Block]:
    """Each line of each shell block, without its comment."""
    lines = [(block, line) for block in blocks("sh") for line in block.text.splitlines() if line.strip()]
    return [Block(block.page, "sh", line.partition("  #")[0].strip()) for block, line in lines]


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return _FENCE.sub("", page.read_text())
