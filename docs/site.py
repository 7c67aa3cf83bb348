"""What `make docs` adds to mkdocs: the files of the repository that pages link to become pages of the site."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
SOURCES = "sources"
"""The folder of the site in which such files are."""
_LINK = re.compile(r"(\]\()([^)#:\s]+)([^)]*\))")
_OF_THE_SITE = (".md", ".png", ".svg")
_LANGUAGES = {".py": "python", ".json": "json", ".yml": "yaml", ".yaml": "yaml", ".conf": "nginx", ".toml": "toml"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file of the repository that a page links to."""
    linked = {target for page in files.documentation_pages() for target in targets(page)}
    for target in sorted(linked):
        files.append(File.generated(config, page_of(target), content=shown(ROOT / target)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    here = page.file.src_uri

    def turned(found: re.Match[str]) -> str:
        target = resolved(found[2], here)
        if target is None:
            return found[0]
        return f"{found[1]}{posixpath.relpath(page_of(target), posixpath.dirname(here) or '.')}{found[3]}"

    return _LINK.sub(turned, markdown)


def targets(page: File) -> Iterator[str]:
    found = (resolved(link[2], page.src_uri) for link in _LINK.finditer(page.content_string))
    yield from (target for target in found if target is not None and (ROOT / target).exists())


def resolved(link: str, uri: str) -> str | None:
    """Where a link of a page leads, from the top of the repository. None if it stays in the site."""
    target = posixpath.normpath(posixpath.join("docs", posixpath.dirname(uri), link))
    is_page = uri.startswith(SOURCES) or (target.startswith("docs/") and target.endswith(_OF_THE_SITE))
    return None if is_page or target.startswith("..") else target


def page_of(target: str) -> str:
    return f"{SOURCES}/{target.removesuffix('/')}.md"


def shown(path: Path) -> str:
    name = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        listed = "\n".join(f"- `{one.name}`" for one in sorted(path.iterdir()) if one.name[0] not in "._")
        return f"# {name}\n\n{listed}\n"
    fence, language = "`" * 5, _LANGUAGES.get(path.suffix, "text")
    return f"# {name}\n\n{fence}{language}\n{path.read_text(encoding='utf-8')}\n{fence}\n"
