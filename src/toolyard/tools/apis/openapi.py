"""Reads OpenAPI 3 documents: each operation becomes a tool, with its parameters, and `body` if any, as arguments."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import jsonschema_rs

from toolyard.core.errors import DefinitionError
from toolyard.core.output import JsonObject
from toolyard.core.tool import ToolSpec
from toolyard.tools.apis.document import Document, listed, mapping, text
from toolyard.tools.apis.names import UniqueNames, as_word, described
from toolyard.tools.apis.operation import FORM_BODY, IN_PATH, JSON_BODY, Credential, HttpOperation, Parameter
from toolyard.tools.apis.schemas import Schemas, closed
from toolyard.tools.apis.security import Keys, Security, header_name
from toolyard.tools.apis.servers import named_server, path_template
from toolyard.tools.apis.writing import JSON, STYLES

log = logging.getLogger("toolyard.apis")

_METHODS = ("get", "put", "post", "delete", "patch")
"""Other methods are for programs, which use them to ask about these."""
_OURS = frozenset(
    {"accept", "content-type", "authorization", "host", "cookie", "connection", "content-length", "transfer-encoding"}
    | {"te", "trailer", "upgrade", "expect", "keep-alive", "accept-encoding", "proxy-authorization", "proxy-connection"}
)
"""Headers that are never parameters, even if a document says so."""


_PLAIN = re.compile(r"[A-Za-z0-9_.-]{1,64}")
"""Names that model APIs accept for arguments."""
_OTHER_JSON = re.compile(r"application/[a-z0-9.-]+\+json")


class _LeftOut(Exception):
    """An operation that cannot become a tool; the others still can."""


def title_of(document: Document) -> str:
    info = mapping(document.root.get("info", {}), document.at("info"))
    return text(info.get("title", ""), document.at("info", "title"))


def read_openapi(
    document: Document, names: UniqueNames, *, base_url: str, keys: Keys
) -> Iterator[tuple[ToolSpec, HttpOperation]]:
    version = document.root.get("openapi")
    if not isinstance(version, str) or not version.startswith("3."):
        raise DefinitionError(f"{document.name}: this is OpenAPI {str(version or '2')[:20]!r}; 3.0 and 3.1 can be read")
    server = base_url or _server(document.root.get("servers"), document.at("servers"))
    reader = _Reader(document, names, title_of(document), server, bool(base_url), Security(document, keys))
    for path, item in mapping(document.root.get("paths", {}), document.at("paths")).items():
        if not path.startswith("x-"):
            yield from reader.path(path, item)


def _server(servers: object, where: str) -> str:
    """The first server, with the default values of its variables."""
    found = listed(servers, where) if servers is not None else []
    if not found:
        raise DefinitionError(f"{where}: the document names no server; give a base URL")
    first = mapping(found[0], f"{where}/0")
    url = text(first.get("url"), f"{where}/0/url")
    for name, said in mapping(first.get("variables", {}), f"{where}/0/variables").items():
        usual = mapping(said, f"{where}/0/variables/{name}").get("default", "")
        url = url.replace(f"{{{name}}}", str(usual))
    if "://" not in url:
        raise DefinitionError(f"{where}/0/url: {url[:100]!r} does not say on which host; give a base URL")
    return named_server(url, f"{where}/0/url")


@dataclass(frozen=True, slots=True)
class _Reader:
    document: Document
    names: UniqueNames
    title: str
    server: str
    is_trusted: bool
    security: Security

    def path(self, path: str, said: object) -> Iterator[tuple[ToolSpec, HttpOperation]]:
        item, where = self.document.resolved(said, self.document.at("paths", path))
        for method in _METHODS:
            if method in item:
                operation = mapping(item[method], f"{where}/{method}")
                try:
                    yield self._operation(path, method, item, operation, f"{where}/{method}")
                except _LeftOut as why:
                    log.warning("%s: %s %s is left out: %s", self.document.name, method.upper(), path, why)

    def _operation(
        self, path: str, method: str, item: Mapping[str, Any], said: Mapping[str, Any], where: str
    ) -> tuple[ToolSpec, HttpOperation]:
        self._check_server(said.get("servers", item.get("servers")), where)
        credentials, lacks = self.security.of(said, where)
        inputs = _Inputs(Schemas(self.document), credentials)
        for one, place in self._parameters(item, said, where):
            inputs.add(one, place)
        template = path_template(path, self.document.at("paths", path))
        for name in IN_PATH.findall(template):
            inputs.add_missing(name)
        media = inputs.add_body(said.get("requestBody"), f"{where}/requestBody")
        spec = self._spec(path, method, said, inputs.schema(where), where)
        operation = HttpOperation(
            method=method.upper(),
            server=self.server,
            path=template,
            parameters=inputs.parameters,
            media=media,
            body=inputs.body,
            credentials=credentials,
            lacks=lacks,
        )
        return spec, operation

    def _check_server(self, servers: object, where: str) -> None:
        """Leave out an operation with a server of its own: the keys are for the document's server."""
        if servers is None or self.is_trusted:
            return
        try:
            there = _server(servers, f"{where}/servers")
        except DefinitionError as error:
            raise _LeftOut(str(error)) from None
        if there != self.server:
            raise _LeftOut(f"it has a server of its own, {urlsplit(there).hostname}; give a base URL to ask there")

    def _parameters(
        self, item: Mapping[str, Any], said: Mapping[str, Any], where: str
    ) -> Sequence[tuple[Mapping[str, Any], str]]:
        """The parameters of the path and of the operation, which take precedence."""
        found: dict[tuple[object, object], tuple[Mapping[str, Any], str]] = {}
        for owner, place in ((item, where.rpartition("/")[0]), (said, where)):
            for number, one in enumerate(listed(owner.get("parameters", []), f"{place}/parameters")):
                parameter, there = self.document.resolved(one, f"{place}/parameters/{number}")
                key = text(parameter.get("in"), f"{there}/in"), text(parameter.get("name"), f"{there}/name")
                found[key] = parameter, there
        return [*found.values()]

    def _spec(self, path: str, method: str, said: Mapping[str, Any], schema: JsonObject, where: str) -> ToolSpec:
        wanted = as_word(text(said.get("operationId", ""), f"{where}/operationId")) or as_word(f"{method} {path}")
        texts = [text(said.get(word) or "", f"{where}/{word}") for word in ("summary", "description")]
        about = described(*texts) or f"{method.upper()} {path}"
        return ToolSpec.model_construct(
            name=self.names.give(wanted),
            description=described(about, f"({self.title})" if self.title else ""),
            input_schema=schema,
        )


class _Inputs:
    """The arguments of one tool, and their places in the request."""

    def __init__(self, schemas: Schemas, credentials: Sequence[Credential]) -> None:
        self.parameters: list[Parameter] = []
        self.body = ""
        self._schemas = schemas
        self._known = {(one.place, one.name) for one in credentials}
        self._names = UniqueNames()
        self._properties: dict[str, JsonObject] = {}
        self._required: list[str] = []

    def add(self, said: Mapping[str, Any], where: str) -> None:
        name, place = said["name"], said["in"]
        if place not in STYLES:
            raise DefinitionError(f"{where}/in: {str(place)[:20]!r} is none of {', '.join(STYLES)}")
        if place == "header":
            name = header_name(name, f"{where}/name").lower()
        if (place, name) in self._known or (place == "header" and name in _OURS):
            return
        schema, style = self._described(said, where)
        explode = said.get("explode", style in ("form", "deepObject"))
        argument = self._argument(said["name"], schema, required=place == "path" or said.get("required") is True)
        self.parameters.append(Parameter(argument, name, place, style, explode is True))

    def add_missing(self, name: str) -> None:
        """Add a part of the path that the document does not describe."""
        if not any(one.place == "path" and one.name == name for one in self.parameters):
            argument = self._argument(name, {"type": "string"}, required=True)
            self.parameters.append(Parameter(argument, name, "path", "simple", explode=False))

    def _described(self, said: Mapping[str, Any], where: str) -> tuple[JsonObject, str]:
        if isinstance(content := said.get("content"), dict) and content:
            media, inner = next(iter(content.items()))
            schema = self._schemas.plain(
                mapping(inner, f"{where}/content").get("schema", {}), f"{where}/content/schema"
            )
            style = JSON if "json" in str(media) else STYLES[said["in"]][0]
        else:
            schema = self._schemas.plain(said.get("schema", {}), f"{where}/schema")
            style = said.get("style", STYLES[said["in"]][0])
            if style not in STYLES[said["in"]]:
                raise _LeftOut(f"the parameter {said['name']!r} is written in the style {str(style)[:20]!r}")
        description = said.get("description")
        has_text = isinstance(description, str) and description
        return ({**schema, "description": description} if has_text else schema), str(style)

    def add_body(self, said: object, where: str) -> str | None:
        if said is None:
            return None
        body, where = self._schemas.document.resolved(said, where)
        content = mapping(body.get("content", {}), f"{where}/content")
        required = body.get("required") is True
        for written, inner in content.items():
            if (media := _media(written)) is not None:
                described = mapping(inner, f"{where}/content/{written}").get("schema", {})
                schema = self._schemas.plain(described, f"{where}/content/{written}/schema")
                description = body.get("description")
                has_text = isinstance(description, str) and description
                schema = {**schema, "description": description} if has_text else schema
                self.body = self._argument("body", schema, required=required)
                return media
        if required:
            raise _LeftOut(f"its body is {', '.join(map(repr, content)) or 'of no kind'}")
        return None

    def _argument(self, name: str, schema: JsonObject, *, required: bool) -> str:
        argument = self._names.give(name if _PLAIN.fullmatch(name) else as_word(name) or "value")
        self._properties[argument] = schema
        self._required += [argument] * required
        return argument

    def schema(self, where: str) -> JsonObject:
        schema = closed(self._properties, self._required)
        try:
            jsonschema_rs.validator_for(schema)
        except (jsonschema_rs.ValidationError, ValueError, RecursionError) as error:
            raise DefinitionError(f"{where}: its parameters cannot be checked: {str(error)[:200]}") from None
        return schema


def _media(written: str) -> str | None:
    """The form in which to send a body of this media type; None if there is none."""
    plain = written.partition(";")[0].strip().lower()
    if plain in (JSON_BODY, FORM_BODY, "text/plain") or _OTHER_JSON.fullmatch(plain):
        return plain
    return JSON_BODY if plain in ("*/*", "application/*") else None
