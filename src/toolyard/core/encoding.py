"""Writes values as JSON, even if an author put unusual objects into them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

import orjson
from pydantic_core import to_jsonable_python


def encode(value: object) -> bytes:
    """Compact JSON that every parser reads: never NaN, never a broken character."""
    try:
        return orjson.dumps(value, default=plain, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY)
    except orjson.JSONEncodeError:  # lone surrogates, or integers beyond 64 bits
        return encode_ascii(value)


def encode_sorted(value: object) -> bytes:
    """JSON with sorted keys: equal for values that differ only in the order of their keys."""
    try:
        return orjson.dumps(value, default=plain, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:  # lone surrogates, or integers beyond 64 bits
        return json.dumps(_finite(value), sort_keys=True, default=lambda v: _finite(plain(v))).encode()


def encode_ascii(value: object) -> bytes:
    """As `encode`, but in ASCII only, so that any slice of it is text."""
    return json.dumps(_finite(value), separators=(",", ":"), default=lambda v: _finite(plain(v))).encode()


def plain(value: object) -> object:
    """One step closer to JSON, for values that an encoder does not know."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return list(value)
    if hasattr(value, "tolist"):  # numpy's scalars and arrays
        return value.tolist()
    return to_jsonable_python(value)


def _finite(value: object) -> object:
    """NaN and the infinities are not JSON; they become null, as in `encode`."""
    match value:
        case float() if not math.isfinite(value):
            return None
        case Mapping():
            return {key: _finite(item) for key, item in value.items()}
        case list() | tuple():
            return [_finite(item) for item in value]
        case _:
            return value
