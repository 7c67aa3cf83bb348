"""Plain data as text: write a value where untrusted code runs, read it elsewhere, and get exact built-in types back.

Imports nothing but the standard library: sandboxes load the text of this file too.

Numbers, text, bytes, None, bool, range, list, tuple, dict, set and frozenset cross by value. The writer reads instances
of their subclasses by the base type's own methods, so a method that such a class replaces plays no part. Everything
else crosses as a handle. A text is a sequence of chunks, each a JSON array of tokens in preorder: no side recurses,
and no chunk takes the reader long.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from json.encoder import encode_basestring_ascii as _quoted
from typing import Any, TypeAlias

LONGEST = 2**20
"""Characters of one value. A larger one crosses as a handle."""
DEEPEST = 400
"""Containers inside each other. What lies deeper crosses as a handle."""
_CHUNK = 48_000
"""Characters of a chunk: an interpreter tells 64 KiB of a value."""
_PIECE = 3_000
"""Characters of one text token, of which JSON may make twelve each."""
_BITS = 160_000
"""Of an integer that crosses by value."""
_COLLISIONS_MOST = 2_000
"""Keys of one value that share their hash with another. More of them would keep the reader busy for minutes."""

Refer: TypeAlias = Callable[[Any], str]
"""The token for what cannot cross by value, without its quotes."""


class TooLarge(Exception):
    """The value takes more text than `LONGEST`."""


class NotPlain(ValueError):
    """The text is none that a writer writes."""


def write(value: object, refer: Refer, *, longest: int = LONGEST) -> Sequence[str]:
    """The chunks of a value. Raises TooLarge."""
    chunks: list[str] = []
    fragments: list[str] = []
    size = whole = 0
    for fragment in _fragments(value, refer):
        size += len(fragment) + 1
        if size > _CHUNK:
            chunks.append(f"[{','.join(fragments)}]")
            whole += size
            if whole > longest:
                raise TooLarge
            fragments, size = [], len(fragment) + 1
        fragments.append(fragment)
    chunks.append(f"[{','.join(fragments)}]")
    return chunks


def _fragments(value: object, refer: Refer) -> Iterator[str]:
    """The tokens in JSON."""
    under_way: list[int] = []
    stack: list[Iterator[Any]] = [iter((value,))]
    while stack:
        for item in stack[-1]:
            kind = type(item)
            if kind in _LEAVES:
                exact, base = item, kind
            else:
                exact, base = _based(item, kind)
            if base in _LONG and len(exact) > _PIECE:
                yield from _pieces(exact)
            elif base in _LEAVES and not (base is int and int.bit_length(exact) > _BITS):
                yield _LEAVES[base](exact)
            elif base not in _PARTS or len(stack) > DEEPEST or id(item) in under_way:
                yield _quoted(refer(item))
            else:
                count, inner = _PARTS[base](exact)
                yield f'"{_TAGS[base]}{count}"'
                under_way.append(id(item))
                stack.append(inner)
                break
        else:
            stack.pop()
            if under_way:
                under_way.pop()


def _based(item: Any, kind: type) -> tuple[Any, type]:
    """The item as one of the types that cross, and which; else as it is."""
    if kind in _PARTS:
        return item, kind
    for base in _mro(kind):
        if base in _OWN:
            return _OWN[base](item), base
        if base in _PARTS:
            return item, base
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(item, numpy.generic):
        exact = numpy.generic.item(item)
        return exact, type(exact)
    if numpy is not None and kind is numpy.ndarray and item.dtype.kind in "biufcU":
        return _Array(item), _Array
    return item, kind


def _pieces(whole: str | bytes) -> Iterator[str]:
    """The tokens of a text or of bytes too long for one."""
    yield f'"{_LONG[type(whole)]}{-(-len(whole) // _PIECE)}"'
    for at in range(0, len(whole), _PIECE):
        yield _LEAVES[type(whole)](whole[at : at + _PIECE])


class _Array:
    def __init__(self, array: Any) -> None:
        self.array = array


_mro: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
"""Of the type itself: a metaclass could tell another."""


def _whole(number: int) -> str:
    return int.__repr__(number) if -(2**63) < number < 2**63 else f'"i{number:x}"'


def _real(number: float) -> str:
    return float.__repr__(number) if number - number == 0 else f'"f{float.__repr__(number)}"'


def _imaginary(number: complex) -> str:
    return f'"c{number.real!r},{number.imag!r}"'


_LEAVES: dict[type, Callable[[Any], str]] = {
    type(None): lambda _: "null",
    bool: lambda truth: "true" if truth else "false",
    int: _whole,
    float: _real,
    complex: _imaginary,
    range: lambda span: f'"g{span.start:x},{span.stop:x},{span.step:x}"',
    str: lambda text: _quoted("s" + text),
    bytes: lambda data: _quoted("b" + data.decode("latin-1")),
}
_OWN: dict[type, Callable[[Any], Any]] = {
    int: lambda item: int.__add__(item, 0),
    float: float.__float__,
    complex: complex.__pos__,
    str: str.__str__,
    bytes: lambda item: bytes.__getitem__(item, slice(None)),
}
"""From a subclass, the exact value."""
_PARTS: dict[type, Callable[[Any], tuple[int, Iterator[Any]]]] = {
    list: lambda item: (list.__len__(item), list.__iter__(list.copy(item))),
    tuple: lambda item: (tuple.__len__(item), tuple.__iter__(item)),
    set: lambda item: (set.__len__(item), set.__iter__(set.copy(item))),
    frozenset: lambda item: (frozenset.__len__(item), frozenset.__iter__(item)),
    dict: lambda item: (dict.__len__(item), chain.from_iterable(list(dict.items(item)))),
    _Array: lambda item: (1, iter((item.array.dtype.str, item.array.tolist()))),
}
_LONG: dict[type, str] = {str: "S", bytes: "B"}
_TAGS: dict[type, str] = {list: "l", tuple: "t", set: "e", frozenset: "z", dict: "d", _Array: "n"}


class Reader:
    """Takes chunks one after the other; `value` is there when the last has come.

    `resolve` makes something of a handle's token. `array` is given the type and the nested lists of a numpy array.
    """

    def __init__(
        self,
        resolve: Callable[[str], Any],
        array: Callable[[str, Any], Any] = lambda _, nested: nested,
        *,
        longest: int = LONGEST,
    ) -> None:
        self._resolve = resolve
        self._longest = longest + 2 * _CHUNK
        self._array = array
        self._stack: list[tuple[str, int, list[Any]]] = []
        self._size = self._collisions = 0
        self._value: list[Any] = []

    @property
    def value(self) -> Any:
        if self._stack or not self._value:
            raise NotPlain("it is not whole")
        return self._value[0]

    def feed(self, chunk: str) -> None:
        """Raises NotPlain."""
        self._size += len(chunk)
        if self._size > self._longest:
            raise NotPlain("it is too long")
        try:
            tokens = json.loads(chunk)
            if type(tokens) is not list:
                raise NotPlain("a chunk is a list")
            for token in tokens:
                self._take(token)
        except (ValueError, TypeError, RecursionError, OverflowError) as error:
            raise NotPlain(f"{type(error).__name__}: {error}") from None

    def _take(self, token: Any) -> None:
        if type(token) is str:
            tag, rest = token[:1], token[1:]
            if tag in _OPEN:
                parts = int(rest) * _OPEN[tag]
                if len(self._stack) > DEEPEST + 2 or parts < 0 or len(rest) > 9:
                    raise NotPlain("it is too deep")
                if parts:
                    self._stack.append((tag, parts, []))
                    return
                value = self._built(tag, [])
            else:
                value = _SIMPLE[tag](rest) if tag in _SIMPLE else self._resolve(token)
        elif type(token) in (list, dict):
            raise NotPlain("a token is no container")
        else:
            value = token
        while self._stack:
            tag, parts, items = self._stack[-1]
            items.append(value)
            if len(items) < parts:
                return
            self._stack.pop()
            value = self._built(tag, items)
        if self._value:
            raise NotPlain("it is more than one value")
        self._value.append(value)

    def _built(self, tag: str, items: list[Any]) -> Any:
        match tag:
            case "l":
                return items
            case "t":
                return tuple(items)
            case "e":
                return set(self._keys(items))
            case "z":
                return frozenset(self._keys(items))
            case "d":
                return dict(zip(self._keys(items[::2]), items[1::2], strict=True))
            case "n":
                return self._array(*items)
        return ("" if tag == "S" else b"").join(items)

    def _keys(self, items: list[Any]) -> list[Any]:
        """Whoever writes the text chooses the hashes of numbers: equal ones cost the square of their number."""
        self._collisions += len(items) - len(set(map(hash, items)))
        if self._collisions > _COLLISIONS_MOST:
            raise NotPlain("too many keys have the same hash")
        return items


def _complex(text: str) -> complex:
    real, imaginary = text.split(",")
    return complex(float(real), float(imaginary))


_OPEN = {"l": 1, "t": 1, "e": 1, "z": 1, "d": 2, "n": 2, "S": 1, "B": 1}
"""How many tokens follow each that was counted."""
_SIMPLE: dict[str, Callable[[str], Any]] = {
    "s": str,
    "b": lambda text: text.encode("latin-1"),
    "i": lambda text: int(text, 16),
    "f": float,
    "c": _complex,
    "g": lambda text: range(*(int(part, 16) for part in text.split(","))),
}
