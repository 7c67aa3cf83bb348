"""Reads `multipart/form-data`, in which clients post files. In memory, where the body is anyway."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from email.message import Message

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser

_PARTS_MOST = 8
_HEADER_MOST = 4096


class BadForm(Exception):
    """The form cannot be read. The message says why."""


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    filename: str | None
    """None for a plain field. The name of a file may be empty."""
    content: bytes


def is_form(content_type: str) -> bool:
    return content_type.lower().startswith("multipart/form-data")


def parts_of(content_type: str, body: bytes) -> Sequence[Part]:
    """The complete parts, in order."""
    reader = _Reader()
    try:
        reader.read(_parameters("content-type", content_type).get_boundary() or "", body)
    except (FormParserError, ValueError, TypeError) as error:  # TypeError: `email` does not expect every header
        raise BadForm(f"the form cannot be read: {error}") from error
    return reader.parts


class _Reader:
    """Collects what the parser finds."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self._header = bytearray()
        self._value = bytearray()
        self._disposition = ""
        self._content = bytearray()

    def read(self, boundary: str, body: bytes) -> None:
        if not boundary:
            raise BadForm("the form does not say what its parts are divided by")
        parser = MultipartParser(
            boundary.encode("latin-1", "replace"),
            {
                "on_part_begin": self._begin,
                "on_header_field": lambda data, start, end: self._grow(self._header, data[start:end]),
                "on_header_value": lambda data, start, end: self._grow(self._value, data[start:end]),
                "on_header_end": self._end_header,
                "on_part_data": lambda data, start, end: self._content.extend(data[start:end]),
                "on_part_end": self._end,
            },
        )
        parser.write(body)

    def _begin(self) -> None:
        if len(self.parts) == _PARTS_MOST:
            raise BadForm(f"the form has more than {_PARTS_MOST} parts")
        self._disposition = ""
        self._content.clear()

    def _grow(self, buffer: bytearray, data: bytes) -> None:
        buffer += data
        if len(buffer) > _HEADER_MOST:
            raise BadForm(f"a header of the form is longer than {_HEADER_MOST} bytes")

    def _end_header(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = _text(self._value)
        self._header.clear()
        self._value.clear()

    def _end(self) -> None:
        disposition = _parameters("content-disposition", self._disposition)
        name = disposition.get_param("name", "", header="content-disposition")
        filename = disposition.get_filename()  # also if it is written as filename*=utf-8''…
        self.parts.append(Part(name if isinstance(name, str) else "", filename, bytes(self._content)))


def _parameters(header: str, value: str) -> Message:
    message = Message()
    message[header] = value
    return message


def _text(value: bytearray) -> str:
    """Decode UTF-8, as browsers and libraries write it today, or else Latin-1."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")
