"""One operation of an API: turns a call into a request. No value of an agent can change the path."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias
from urllib.parse import unquote

from toolyard.core.encoding import encode
from toolyard.core.errors import ServiceUnavailable, ToolError
from toolyard.core.output import JsonObject
from toolyard.tools.apis.writing import Pair, as_text, escaped, form, joined, pairs, unescaped

Place: TypeAlias = Literal["path", "query", "header", "cookie", "body"]
JSON_BODY = "application/json"
FORM_BODY = "application/x-www-form-urlencoded"

IN_PATH = re.compile(r"\{([^{}]*)\}")
_STEPS = re.compile(r"[/\\]")


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """The request. It contains keys, so it is never shown."""

    method: str
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(repr=False)
    content: bytes = field(default=b"", repr=False)
    secrets: Sequence[str] = field(default=(), repr=False)
    """The keys in it."""


class Operation(Protocol):
    """Turns the arguments of a tool into a request."""

    def request(self, arguments: JsonObject) -> ApiRequest:
        """Raises `ToolError` for arguments that cannot be sent."""


@dataclass(frozen=True, slots=True)
class Parameter:
    argument: str
    """Its name for the model: the API's own, unless that is ambiguous."""
    name: str
    place: Place
    style: str = "form"
    explode: bool = True


@dataclass(frozen=True, slots=True)
class Credential:
    """A key, and its place in the request."""

    place: Literal["header", "query", "cookie"]
    name: str
    value: str = field(repr=False)
    secrets: Sequence[str] = field(repr=False)
    """Its secret parts."""


@dataclass(frozen=True, slots=True)
class HttpOperation:
    method: str
    server: str
    path: str
    """With `{name}` for each parameter in it."""
    parameters: Sequence[Parameter] = ()
    media: str | None = None
    """The form of the body: a form, text, or else JSON."""
    body: str = ""
    """The argument that is the body. If empty, the body is an object of the parameters that belong there."""
    headers: Mapping[str, str] = field(default_factory=dict)
    credentials: Sequence[Credential] = ()
    lacks: str = ""
    """The name of a required key that is not set."""

    def request(self, arguments: JsonObject) -> ApiRequest:
        if self.lacks:
            raise ServiceUnavailable(f"the API wants a key, and none is set for {self.lacks!r}")
        content = self._content(arguments)
        path, query = self._path(arguments), _and(self._query(arguments))
        return ApiRequest(
            self.method,
            url=self.server + path + f"{'&' if '?' in path else '?'}{query}" * bool(query),
            headers=self._headers(arguments, has_content=content is not None),
            content=content or b"",
            secrets=[secret for one in self.credentials for secret in one.secrets],
        )

    def _given(self, arguments: JsonObject, place: Place) -> Iterator[tuple[Parameter, Any]]:
        for parameter in self.parameters:
            if parameter.place == place and (value := arguments.get(parameter.argument)) is not None:
                yield parameter, value

    def _keys(self, place: str) -> Iterator[Pair]:
        return ((one.name, one.value) for one in self.credentials if one.place == place)

    def _path(self, arguments: JsonObject) -> str:
        values = {
            one.name: joined(value, one.style, explode=one.explode) for one, value in self._given(arguments, "path")
        }

        def put(found: re.Match[str]) -> str:
            if not (value := values.get(found[1])):
                raise ToolError(f"{found[1]!r} is part of the address, and cannot be empty")
            return value

        path = IN_PATH.sub(put, self.path)
        if not {".", ".."}.isdisjoint(_STEPS.split(unquote(path.partition("?")[0]))):
            raise ToolError("a value that is part of the address cannot have '.' or '..' as one of its steps")
        return path

    def _query(self, arguments: JsonObject) -> Iterator[Pair]:
        for one, value in self._given(arguments, "query"):
            yield from pairs(one.name, value, one.style, explode=one.explode)
        for name, value in self._keys("query"):
            yield escaped(name), escaped(value)

    def _headers(self, arguments: JsonObject, *, has_content: bool) -> Mapping[str, str]:
        headers = {"content-type": self.media} if has_content and self.media else {}
        for one, value in self._given(arguments, "header"):
            headers[one.name] = header(one.argument, unescaped(value, explode=one.explode))
        cookies = [
            (escaped(one.name), joined(value, one.style, explode=False))
            for one, value in self._given(arguments, "cookie")
        ]
        if cookies := [*cookies, *self._keys("cookie")]:
            headers["cookie"] = "; ".join(f"{name}={value}" for name, value in cookies)
        return {**headers, **self.headers, **dict(self._keys("header"))}

    def _content(self, arguments: JsonObject) -> bytes | None:
        if self.media is None or (self.body and self.body not in arguments):
            return None
        value = arguments[self.body] if self.body else {one.name: v for one, v in self._given(arguments, "body")}
        if self.media == FORM_BODY:
            return form(value).encode()
        return as_text(value).encode(errors="replace") if self.media.startswith("text/") else encode(value)


def header(argument: str, value: str) -> str:
    """A header's value, checked to be one line."""
    if not (value.isascii() and value.isprintable()):
        raise ToolError(f"{argument!r} is sent as a header, which takes plain characters in one line only")
    return value.strip()


def _and(found: Iterator[Pair]) -> str:
    return "&".join(f"{name}={value}" for name, value in found)
