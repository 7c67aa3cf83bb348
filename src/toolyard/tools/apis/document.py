"""Reads a document that describes an API. Each error names its place in the document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from toolyard.core.errors import DefinitionError

_CHAIN = 32
"""The most references that may lead to one another."""


def mapping(value: object, where: str) -> Mapping[str, Any]:
    """Return an object of the document. Raise an error that names what stands there instead."""
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise DefinitionError(f"{where}: an object is expected here, not {_shown(value)}")
    return value


def listed(value: object, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise DefinitionError(f"{where}: a list is expected here, not {_shown(value)}")
    return value


def text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise DefinitionError(f"{where}: a text is expected here, not {_shown(value)}")
    return value


def _shown(value: object) -> str:
    return f"{type(value).__name__}" if isinstance(value, dict | list) else repr(value)[:60]


@dataclass(frozen=True, slots=True)
class Document:
    """An OpenAPI document, and the name of its file for error messages."""

    root: Mapping[str, Any]
    name: str

    def at(self, *steps: str | int) -> str:
        return f"{self.name}: {'/'.join(('#', *(str(step).replace('~', '~0').replace('/', '~1') for step in steps)))}"

    def resolved(self, value: object, where: str) -> tuple[Mapping[str, Any], str]:
        """The object, or the one that it refers to; and its place."""
        found = mapping(value, where)
        for _ in range(_CHAIN):
            if "$ref" not in found:
                return found, where
            reference = text(found["$ref"], f"{where}/$ref")
            found, where = (
                mapping(self.target(reference, where), f"{self.name}: {reference}"),
                f"{self.name}: {reference}",
            )
        raise DefinitionError(f"{where}: this refers to itself, or to {_CHAIN} others one after the other")

    def target(self, reference: str, where: str) -> object:
        if not reference.startswith("#/") and reference != "#":
            raise DefinitionError(f"{where}: {reference[:100]!r} is not in this document; put everything into one file")
        found: object = self.root
        for written in unquote(reference).split("/")[1:]:
            step = written.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and step in found:
                found = found[step]
            elif isinstance(found, list) and step.isdecimal() and len(step) < 7 and int(step) < len(found):
                found = found[int(step)]
            else:
                raise DefinitionError(f"{where}: there is no {reference[:100]!r} in this document")
        return found
