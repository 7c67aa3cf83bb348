"""Messages as bytes and back. A frame is its length and a list of messages: MessagePack, with what it does not have.

Whatever arrives is only ever turned into plain values, so the other side may be anybody.
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
"""Its length after these four bytes; then that it is a list, of so many messages."""
_LENGTH_SIZE, _LIST = 4, 0xDD
_REST_OF_HEAD = _HEAD.size - _LENGTH_SIZE

_TEXT, _INTEGER, _PAIRS = range(3)
"""What MessagePack does not have: text with lone surrogates, long integers, and dictionaries that have such keys."""


class TooLong(Exception):
    """What arrives is longer than we ever send."""


def written(message: Sequence[Any]) -> bytes:
    """One message of a frame. Raises `TypeError` or `ValueError` if it cannot be written."""
    try:
        try:
            data = _encoder.encode(message)
        except (UnicodeEncodeError, OverflowError):
            data = _encoder.encode(_in_full(message))
    except (TypeError, ValueError, RecursionError) as error:  # what an author put into it
        raise TypeError(f"it cannot be written as JSON: {error}") from error
    if len(data) > LONGEST - _REST_OF_HEAD:  # the other side would hang up
        raise ValueError(f"it takes more than {LONGEST} bytes")
    return data


def frame(messages: Sequence[bytes]) -> bytes:
    """All these messages; those that are too much for one frame have one each."""
    size = _REST_OF_HEAD + sum(map(len, messages))
    if size > LONGEST:
        return b"".join(frame([message]) for message in messages)
    return b"".join((_HEAD.pack(size, _LIST, len(messages)), *messages))


def taken(arrived: bytearray) -> Iterator[Sequence[Any]]:
    """The frames that have arrived as a whole. They are taken out."""
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
    """The same without what MessagePack does not have."""
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
