"""Makes toolsets of the APIs that files describe. Their tools are not listed, but agents find and call them."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from toolyard.core.environment import Toolset
from toolyard.core.errors import DefinitionError
from toolyard.core.output import JsonObject
from toolyard.core.tool import ToolSpec
from toolyard.tools.apis import rapidapi, servers, toolbench
from toolyard.tools.apis.asking import PUBLIC, SECONDS, ApiConnections, value_of
from toolyard.tools.apis.document import Document, mapping
from toolyard.tools.apis.files import LISTS, checked_keys, content_of, document_in, files_in
from toolyard.tools.apis.names import UniqueNames, as_title
from toolyard.tools.apis.openapi import read_openapi, title_of
from toolyard.tools.apis.operation import HttpOperation, Operation
from toolyard.tools.apis.security import Keys

log = logging.getLogger("toolyard.apis")

ALL = ""
"""In a table of base URLs or keys by collection, the entry for all collections."""


class ApiCollection(Toolset):
    """Each tool is a request to an API. The tools are not listed; `search_tools` finds them."""

    prefixed = True
    operations: ClassVar[Mapping[str, Operation]] = {}
    is_trusted: ClassVar[bool] = False
    """Whether the operator named the server."""
    seconds: ClassVar[float] = SECONDS
    _connections_of_loops: ClassVar[WeakKeyDictionary[asyncio.AbstractEventLoop, ApiConnections]]

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._connections: ApiConnections | None = None

    async def call_task_tool(self, name: str, arguments: JsonObject) -> object:
        request = self.operations[name].request(arguments)
        if self._connections is None:
            self._connections = self._connections_of_loops.setdefault(
                asyncio.get_running_loop(), ApiConnections(None if self.is_trusted else PUBLIC)
            )
            self._connections.sessions += 1
        answer = await self._connections.ask(request, self.seconds)
        return await value_of(answer, request.secrets)

    async def teardown(self) -> None:
        if self._connections is not None:
            await self._connections.leave()


@dataclass(slots=True)
class _Found:
    """What the files read so far say about one collection."""

    title: str
    is_trusted: bool
    about: str
    operations: dict[str, Operation] = field(default_factory=dict)
    catalogue: dict[str, ToolSpec] = field(default_factory=dict)

    def add(self, operations: Iterator[tuple[ToolSpec, Operation]]) -> None:
        for spec, operation in operations:
            self.catalogue[spec.name] = spec
            self.operations[spec.name] = operation

    def toolset(self, seconds: float) -> type[ApiCollection]:
        lacking = Counter(one.lacks for one in self.operations.values() if isinstance(one, HttpOperation))
        for name in filter(None, lacking):
            log.warning("%s: no key is set for %r, which %d of its tools need", self.title, name, lacking[name])
        body = {
            "__doc__": self.about,
            "catalogue": self.catalogue,
            "operations": self.operations,
            "is_trusted": self.is_trusted,
            "seconds": seconds,
            "_connections_of_loops": WeakKeyDictionary(),
        }
        return type(self.title, (ApiCollection,), body)


class _Reading:
    """Reads several files: each OpenAPI document is a collection, and all RapidAPI files of one kind are one."""

    def __init__(self, base_urls: Mapping[str, str], keys: Mapping[str, Keys], taken: Sequence[str]) -> None:
        self.found: dict[str, _Found] = {}
        self._base_urls = base_urls
        self._keys = keys
        self._tools = UniqueNames(taken)
        self._titles = UniqueNames([rapidapi.TITLE, toolbench.TITLE], before_number="")

    def read(self, path: Path) -> None:
        if path.suffix.lower() in LISTS:
            self._list(path)
            return
        said = document_in(path)
        if isinstance(said, dict) and ("openapi" in said or "swagger" in said):
            self._openapi(Document(mapping(said, str(path)), str(path)), path)
        elif isinstance(said, dict) and "api_list" in said:
            self._toolbench(said, str(path))
        elif isinstance(said, list) and said:
            for number, one in enumerate(said):
                self._toolbench(one, f"{path}: [{number}]")
        else:
            raise DefinitionError(f"{path}: this is neither an OpenAPI 3 document nor a tool file of ToolBench")

    def _list(self, path: Path) -> None:
        title = rapidapi.TITLE
        url = self._url(title)
        endpoint = servers.endpoint(url, f"the base URL of {title}") if url else ""
        found = self._collection(title, "APIs of RapidAPI, asked through a ToolBench endpoint.", is_trusted=True)
        key = self._one_key(title)
        found.add(rapidapi.read_list(content_of(path), str(path), self._tools, endpoint=endpoint, key=key))

    def _toolbench(self, said: object, where: str) -> None:
        title = toolbench.TITLE
        base_url = self._base_url(title)
        found = self._collection(title, "APIs of RapidAPI, asked at their hosts.", is_trusted=bool(base_url))
        found.add(toolbench.ToolFiles(base_url, self._one_key(title)).read(said, where, self._tools))

    def _openapi(self, document: Document, path: Path) -> None:
        title = self._titles.give(as_title(title_of(document), path.stem))
        base_url, keys = self._base_url(title), self._given_keys(title)
        found = self._collection(title, title_of(document) or path.stem, is_trusted=bool(base_url))
        found.add(read_openapi(document, self._tools, base_url=base_url, keys=keys))

    def _collection(self, title: str, about: str, *, is_trusted: bool) -> _Found:
        return self.found.setdefault(title, _Found(title, is_trusted, about))

    def _url(self, title: str) -> str:
        return self._base_urls.get(title, self._base_urls.get(ALL, ""))

    def _base_url(self, title: str) -> str:
        url = self._url(title)
        return servers.base_url(url, f"the base URL of {title}") if url else ""

    def _given_keys(self, title: str) -> Keys:
        return self._keys.get(title, self._keys.get(ALL, ""))

    def _one_key(self, title: str) -> str:
        key = self._given_keys(title)
        if not isinstance(key, str):
            raise DefinitionError(f"{title} has one key, and several are given for it")
        return key


def collections(
    paths: Sequence[Path],
    *,
    base_urls: Mapping[str, str] = {},
    keys: Mapping[str, Keys] = {},
    seconds: float = SECONDS,
    taken: Sequence[str] = (),
) -> Sequence[type[ApiCollection]]:
    """The collections that these files and folders describe. Base URLs and keys are by the names of collections.

    No two tools of all collections have the same name, and none has a `taken` one.
    """
    reading = _Reading(base_urls, keys, taken)
    for path in files_in(paths):
        reading.read(path)
    for given, what in ((base_urls, "a base URL"), (keys, "a key")):
        if unknown := [name for name in given if name not in (ALL, *reading.found)]:
            there = ", ".join(reading.found) or "none"
            raise DefinitionError(f"there is {what} for {unknown[0]!r}, but no such collection; there are {there}")
    return [found.toolset(seconds) for found in reading.found.values()]


def collection(path: Path, *, base_url: str = "", key: Keys = "", seconds: float = SECONDS) -> type[ApiCollection]:
    """The one collection that a file or folder describes."""
    found = collections([path], base_urls={ALL: base_url}, keys={ALL: checked_keys(key, "key")}, seconds=seconds)
    if len(found) != 1:
        names = ", ".join(one.__name__ for one in found) or "none"
        raise DefinitionError(f"{path}: one collection is expected here, and there are {names}")
    return found[0]
