"""The environment `apis`: all collections that the settings name, and a tool that searches them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from toolyard.core.environment import Environment
from toolyard.tools.apis.collection import ALL, ApiCollection, collections
from toolyard.tools.apis.files import read_keys
from toolyard.tools.environment import ToolsEnvironment
from toolyard.tools.search_tools import SearchTools

_NAMED = re.compile(r"([A-Za-z]\w*)=(.+)")


class Apis(ToolsEnvironment):
    """It has too many tools to list; the one listed tool finds the others."""

    @classmethod
    def name(cls) -> str:
        return "apis"


def api_environment(files: str, *, base_url: str = "", keys: str = "") -> type[Environment] | None:
    """An environment of `api_toolsets`, with a tool to search them. None if there are no files."""
    found = api_toolsets(files, base_url=base_url, keys=keys, taken=["search_tools"])
    return type("Apis", (Apis,), {"toolsets": (SearchTools, *found)}) if found else None


def api_toolsets(
    files: str, *, base_url: str = "", keys: str = "", taken: Sequence[str] = ()
) -> Sequence[type[ApiCollection]]:
    """The toolsets that `files` describe: paths of files and folders, separated by commas.

    `base_url` is one address for all of them, or `Name=address,Name=address`. `keys` is the path of a file of keys.
    No tool gets a name that is `taken`.
    """
    paths = [Path(one.strip()) for one in files.split(",") if one.strip()]
    known = read_keys(Path(keys)) if keys else {}
    return collections(paths, base_urls=base_urls(base_url), keys=known, taken=taken) if paths else []


def base_urls(text: str) -> Mapping[str, str]:
    """Base URLs by the names of collections; one without a name is for all others."""
    found: dict[str, str] = {}
    for one in filter(None, (one.strip() for one in text.split(","))):
        named = _NAMED.fullmatch(one)
        found[named[1] if named else ALL] = named[2] if named else one
    return found
