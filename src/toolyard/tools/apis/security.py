"""Finds the keys for an OpenAPI document's security schemes among the operator's keys."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from toolyard.core.errors import DefinitionError
from toolyard.tools.apis.document import Document, listed, mapping, text
from toolyard.tools.apis.operation import Credential

Keys: TypeAlias = str | Mapping[str, str]
"""One key for all schemes of a document, or keys by the names of the schemes."""
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


@dataclass(frozen=True, slots=True)
class Security:
    document: Document
    keys: Keys

    def of(self, operation: Mapping[str, object], where: str) -> tuple[Sequence[Credential], str]:
        """The keys for the first alternative with all keys set, which may need none; else the name of a missing key."""
        root = self.document.root
        found = operation.get("security", root.get("security"))
        where = f"{where}/security" if "security" in operation else self.document.at("security")
        ways = [mapping(way, f"{where}/{n}") for n, way in enumerate(listed(found, where))] if found is not None else []
        lacking = ""
        for way in sorted(ways, key=lambda way: not way):  # use a key if there is one, even where none is needed
            credentials = [self._credential(name, where) for name in way]
            if None not in credentials:
                return [one for one in credentials if one is not None], ""
            lacking = lacking or next(name for name, one in zip(way, credentials, strict=True) if one is None)
        return [], lacking

    def _credential(self, name: str, where: str) -> Credential | None:
        schemes = mapping(self.document.root.get("components", {}), self.document.at("components"))
        place = self.document.at("components", "securitySchemes", name)
        named = mapping(schemes.get("securitySchemes", {}), self.document.at("components", "securitySchemes"))
        if name not in named:
            raise DefinitionError(f"{where}: there is no security scheme {name[:100]!r}")
        scheme, place = self.document.resolved(named[name], place)
        key = self.keys if isinstance(self.keys, str) else self.keys.get(name, "")
        return _credential(scheme, place, key) if key else None


def _credential(scheme: Mapping[str, object], where: str, key: str) -> Credential | None:
    match text(scheme.get("type"), f"{where}/type"), scheme.get("in"), str(scheme.get("scheme", "")).lower():
        case "apiKey", "query", _:
            return Credential("query", text(scheme.get("name"), f"{where}/name"), key, [key])
        case "apiKey", "header" | "cookie" as place, _:
            name = header_name(text(scheme.get("name"), f"{where}/name"), f"{where}/name")
            return Credential(place, name.lower() if place == "header" else name, key, [key])
        case "http", _, "basic":
            encoded, password = base64.b64encode(key.encode()).decode(), key.partition(":")[2]
            return Credential("header", "authorization", f"Basic {encoded}", [key, encoded, password])
        case ("http", _, "bearer") | ("oauth2" | "openIdConnect", _, _):
            return Credential("header", "authorization", f"Bearer {key}", [key])
        case _:
            return None


def header_name(name: str, where: str) -> str:
    if not _HEADER.fullmatch(name):
        raise DefinitionError(f"{where}: {name[:100]!r} cannot be sent as a name")
    return name
