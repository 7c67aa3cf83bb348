"""Reads ToolBench's tool files, one for each host on RapidAPI. Requests go directly to the host, with a RapidAPI
key."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from toolyard.core.errors import DefinitionError
from toolyard.core.output import JsonObject
from toolyard.core.tool import ToolSpec
from toolyard.tools.apis.document import listed, mapping, text
from toolyard.tools.apis.names import UniqueNames, as_word, described
from toolyard.tools.apis.operation import IN_PATH, JSON_BODY, Credential, HttpOperation, Parameter, Place
from toolyard.tools.apis.rapidapi import property_of
from toolyard.tools.apis.schemas import closed
from toolyard.tools.apis.servers import named_server, path_template

TITLE = "RapidAPI"

_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
_WITH_BODY = ("POST", "PUT", "PATCH")


@dataclass(frozen=True, slots=True)
class ToolFiles:
    """`{"tool_name", "tool_description", "host", "api_list": [{"name", "url", "method", "description", …}]}`."""

    base_url: str = ""
    key: str = field(default="", repr=False)

    def read(self, tool: object, where: str, names: UniqueNames) -> Iterator[tuple[ToolSpec, HttpOperation]]:
        said = mapping(tool, where)
        title = text(said.get("tool_name") or said.get("title"), f"{where}: tool_name")
        about = text(said.get("tool_description") or "", f"{where}: tool_description")
        host = text(said.get("host") or "", f"{where}: host")
        if not (host.isascii() and host.isprintable()):
            raise DefinitionError(f"{where}: host: {host[:100]!r} is none")
        for number, one in enumerate(listed(said.get("api_list"), f"{where}: api_list")):
            place = f"{where}: api_list[{number}]"
            api = mapping(one, place)
            name = text(api.get("name"), f"{place}.name")
            server, path = self._address(text(api.get("url") or "", f"{place}.url"), f"{place}.url")
            schema = _schema(api, IN_PATH.findall(path), place)
            spec = ToolSpec.model_construct(
                name=names.give(f"rapi_{_standard(title)}_{_standard(name)}"),
                description=described(about, text(api.get("description") or "", f"{place}.description")) or name,
                input_schema=schema,
            )
            method = _method(api, f"{place}.method")
            yield (
                spec,
                HttpOperation(
                    method=method,
                    server=server,
                    path=path,
                    parameters=_parameters(schema["properties"], path, method),
                    media=JSON_BODY if method in _WITH_BODY else None,
                    headers={"x-rapidapi-host": host or urlsplit(server).netloc},
                    credentials=self._credentials(server),
                ),
            )

    def _address(self, url: str, where: str) -> tuple[str, str]:
        """The server and the path from the file; a server that the operator names takes precedence."""
        scheme, separator, rest = url.partition("://")
        host, _, path = rest.partition("/") if separator else ("", "", url.lstrip("/"))
        if not self.base_url and not host:
            raise DefinitionError(f"{where}: there is no host in it, and no base URL is set for {TITLE}")
        server = self.base_url or named_server(f"{scheme}://{host}", where)
        return server, path_template(f"/{path}", where)

    def _credentials(self, server: str) -> Sequence[Credential]:
        """Send the key only to RapidAPI, or to the server that the operator names, not to any host in a file."""
        host = urlsplit(server).hostname or ""
        may_have_it = self.base_url or host == "rapidapi.com" or host.endswith(".rapidapi.com")
        return [Credential("header", "x-rapidapi-key", self.key, [self.key])] if self.key and may_have_it else []


def _standard(name: str) -> str:
    """The name as ToolBench writes it: in small letters, with single underscores."""
    return re.sub("_+", "_", as_word(name)).lower()


def _method(api: Mapping[str, Any], where: str) -> str:
    method = text(api.get("method") or "GET", where).upper()
    if method not in _METHODS:
        raise DefinitionError(f"{where}: {method[:20]!r} is none of {', '.join(_METHODS)}")
    return method


def _schema(api: Mapping[str, Any], in_path: Sequence[str], where: str) -> JsonObject:
    """Mark parameters of the path as required, even if the file does not."""
    properties: dict[str, JsonObject] = {}
    required = list(dict.fromkeys(in_path))
    for word in ("required_parameters", "optional_parameters"):
        for number, one in enumerate(listed(api.get(word) or [], f"{where}.{word}")):
            place = f"{where}.{word}[{number}]"
            said = mapping(one, place)
            name = text(said.get("name"), f"{place}.name")
            if name not in properties:
                properties[name] = property_of(said, place)
                required += [name] * (word == "required_parameters" and name not in required)
    return closed({**{name: {"type": "string"} for name in in_path}, **properties}, required)


def _parameters(names: Mapping[str, Any], path: str, method: str) -> Sequence[Parameter]:
    in_path = IN_PATH.findall(path)
    elsewhere: Place = "body" if method in _WITH_BODY else "query"
    return [
        Parameter(name, name, "path", "simple", explode=False) if name in in_path else Parameter(name, name, elsewhere)
        for name in names
    ]
