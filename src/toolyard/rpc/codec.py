"""Messages as bytes and back. A frame is its length and a list of messages, in MessagePack with three extensions.

Decoding only makes plain values, so the other side need not be trusted.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.msgpack import Decoder, Encoder, Ext

from toolyard.core.encoding import plain

LONGEST = 512 * 2**20
"""Bytes of one frame."""
_HEAD = struct.Struct("!IBI")
"""The head of a frame: four bytes with the length of the rest, then MessagePack's mark of a list and its length."""
_LENGTH_SIZE, _LIST = 4, 0xDD
_REST_OF_HEAD = _HEAD.size - _LENGTH_SIZE

_TEXT, _INTEGER, _PAIRS = range(3)
"""The extensions: text with lone surrogates, integers beyond 64 bits, and dictionaries with such keys."""


class TooLong(Exception):
    """A frame is longer than any that we send."""


def written(message: Sequence[Any]) -> bytes:
    """Encode one message of a frame. Raises `TypeError` or `ValueError` if it cannot be written."""
    try:
        try:
            data = _encoder.encode(message)
        except (UnicodeEncodeError, OverflowError):
            data = _encoder.encode(_in_full(message))
    except (TypeError, ValueError, RecursionError) as error:  # the author's values
        raise TypeError(f"it cannot be written as JSON: {error}") from error
    if len(data) > LONGEST - _REST_OF_HEAD:  # the other side would hang up
        raise ValueError(f"it takes more than {LONGEST} bytes")
    return data


def frame(messages: Sequence[bytes]) -> bytes:
    """One frame with all these messages, or one frame for each if they are too long together."""
    size = _REST_OF_HEAD + sum(map(len, messages))
    if size > LONGEST:
        return b"".join(frame([message]) for message in messages)
    return b"".join((_HEAD.pack(size, _LIST, len(messages)), *messages))


def taken(arrived: bytearray) -> Iterator[Sequence[Any]]:
    """Decode the frames that have arrived whole, and remove them from the buffer."""
    start = 0
    with memoryview(arrived) as view:
        while (begin := start + _LENGTH_SIZE) <= len(view):
            end = begin + int.from_bytes(view[start:begin], "big")
            if end > begin + LONGEST:
                raise TooLong
            if end > len(view):
                break
            yield _decoder.decode(view[begin:end])
            start = end
    del arrived[:start]


def _in_full(value: Any) -> Any:
    """The same value, with extensions where MessagePack cannot write it."""
    match value:
        case None | bool() | float() | bytes():
            return value
        case str():
            return Ext(_TEXT, value.encode("utf-8", "surrogatepass"))
        case int():
            return Ext(_INTEGER, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))
        case Mapping():
            return Ext(_PAIRS, _encoder.encode([(_in_full(key), _in_full(item)) for key, item in value.items()]))
        case list() | tuple():
            return [_in_full(item) for item in value]
        case _:
            return _in_full(plain(value))


def _of_ext(kind: int, data: memoryview[int]) -> Any:
    if kind == _TEXT:
        return bytes(data).decode("utf-8", "surrogatepass")
    return int.from_bytes(data, "big", signed=True) if kind == _INTEGER else dict(_decoder.decode(data))


_encoder = Encoder(enc_hook=plain)
_decoder = Decoder(ext_hook=_of_ext)
