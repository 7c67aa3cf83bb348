"""Plain data as text: write a value where untrusted code runs, read it elsewhere, and get exact built-in types back.

Imports only the standard library: sandboxes load the text of this file too.

These cross by value: numbers (Decimal and Fraction too), text, bytes, None, bool, range, list, tuple, dict and its
keys, set, frozenset and deque. So do `int`, `str` and the other types of these; the reader gets its own. The writer
reads instances of their subclasses by the base type's own methods, so methods that a subclass overrides do not matter.
If asked for, an instance of a program's own subclass, such as a namedtuple or a `Stack(list)` with methods, crosses as
a handle beside its value. Everything else crosses as a handle. A text is a sequence of chunks, each a JSON array of
tokens in preorder: neither side recurses, and no chunk takes the reader long.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from json.encoder import encode_basestring_ascii as _quoted
from typing import Any, TypeAlias

LONGEST = 2**20
"""Characters of one value. A larger one crosses as a handle."""
DEEPEST = 400
"""Levels of nesting. Deeper containers cross as handles."""
CHUNK = 48_000
"""Characters of a chunk: an interpreter sends at most 64 KiB of a value."""
_PIECE = 3_000
"""Characters of one text token; JSON may write twelve for each."""
_BITS = 160_000
"""Bits of an integer that crosses by value."""

Refer: TypeAlias = Callable[[Any], str]
"""Makes the token for what cannot cross by value, without its quotes."""


class TooLarge(Exception):
    """The value takes more text than `LONGEST`."""


def write(value: object, refer: Refer, *, longest: int = LONGEST, owned: bool = False) -> Sequence[str]:
    """The chunks of a value. Raises TooLarge. With `owned`, instances of a program's own subclasses get handles."""
    chunks: list[str] = []
    fragments: list[str] = []
    size = whole = 0
    for fragment in _fragments(value, refer, owned):
        size += len(fragment) + 1
        if size > CHUNK:
            chunks.append(f"[{','.join(fragments)}]")
            whole += size
            if whole > longest:
                raise TooLarge
            fragments, size = [], len(fragment) + 1
        fragments.append(fragment)
    chunks.append(f"[{','.join(fragments)}]")
    return chunks


def _fragments(value: object, refer: Refer, owned: bool) -> Iterator[str]:
    """The tokens, as JSON."""
    under_way: list[int] = []
    stack: list[Iterator[Any]] = [iter((value,))]
    while stack:
        for part in stack[-1]:
            item, kind = part, type(part)
            if kind in _LEAVES:
                exact, base = item, kind
            elif kind is _Beside:
                item = item.item
                exact, base = _based(item, type(item))
            elif "_toolyard_attached" in _names(kind):  # the reader knows the object that this is the value of
                exact, base = _Handle(item), _Handle
            elif owned and kind not in _PARTS and _is_own(kind) and id(item) not in under_way:
                exact, base = _Owned(item), _Owned
            else:
                exact, base = _based(item, kind)
            if base in _LONG and len(exact) > _PIECE:
                yield from _pieces(exact)
            elif base in _LEAVES and not (base is int and int.bit_length(exact) > _BITS):
                yield _LEAVES[base](exact)
            elif base is _Handle:
                yield _quoted(refer(exact.item))
            elif base not in _PARTS or len(stack) > DEEPEST or id(item) in under_way:
                yield _quoted(refer(item))
            else:
                count, inner = _PARTS[base](exact)
                yield f'"{_TAGS[base]}{count}"'
                under_way.append(id(item) if base is not _Owned else 0)
                stack.append(inner)
                break
        else:
            stack.pop()
            if under_way:
                under_way.pop()


def _based(item: Any, kind: type) -> tuple[Any, type]:
    """The item as an exact type that crosses by value, and that type; otherwise the item and its own type."""
    if kind in _PARTS:
        return item, kind
    if kind is type and item in TYPES:
        return _Named(f"y{TYPES[item]}"), _Named
    for base in _mro(kind):
        if base in _OWN:
            return _OWN[base](item), base
        if base in _PARTS:
            return item, base
    for module, name in _NUMBERS.items():
        if module in sys.modules and kind is getattr(sys.modules[module], name):
            return _number(item)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(item, numpy.generic):
        exact = numpy.generic.item(item)
        return exact, type(exact)
    if numpy is not None and kind is numpy.ndarray and item.dtype.kind in "biufcU":
        return _Array(item), _Array
    return item, kind


def exactly(item: Any) -> Any:
    """A list, dict, set or deque with the items of this instance of a subclass."""
    for base, copied in _COPIES.items():
        if base in _mro(type(item)):
            return copied(item)
    raise TypeError


def _pieces(whole: str | bytes) -> Iterator[str]:
    """The tokens of a text or of bytes too long for one."""
    yield f'"{_LONG[type(whole)]}{-(-len(whole) // _PIECE)}"'
    for at in range(0, len(whole), _PIECE):
        yield _LEAVES[type(whole)](whole[at : at + _PIECE])


class _Named:
    """A type, or a number of the standard library, which crosses as text."""

    def __init__(self, token: str) -> None:
        self.token = token


def _number(number: Any) -> tuple[Any, type]:
    if type(number).__name__ == "Decimal":
        token = f"D{number}"
    elif number.numerator.bit_length() + number.denominator.bit_length() < _PIECE:
        token = f"F{number.numerator}/{number.denominator}"
    else:
        return number, type(number)
    return (_Named(token), _Named) if len(token) < _PIECE else (number, type(number))


class _Array:
    def __init__(self, array: Any) -> None:
        self.array = array


class _Item:
    def __init__(self, item: Any) -> None:
        self.item = item


class _Owned(_Item):
    """An instance of a program's own subclass: it crosses as a handle and a value."""


class _Handle(_Item):
    """The handle of one."""


class _Beside(_Item):
    """The value of one."""


def _is_own(kind: type) -> bool:
    """Whether this subclass of a plain type adds anything to it, and is the program's or a named tuple of a library."""
    for one in _mro(kind):
        names = _names(one)
        if one in _PARTS or one in _OWN:
            return False
        if (names.get("__module__") == "__main__" or "_fields" in names) and any(
            name not in _TRIVIAL for name in names
        ):
            return any(base in _PARTS or base in _OWN for base in _mro(one))
    return False


_mro: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__
"""The type's own: a metaclass could override it."""
_names: Callable[[type], Mapping[str, Any]] = type.__dict__["__dict__"].__get__
_TRIVIAL = {"__module__", "__doc__", "__dict__", "__weakref__", "__qualname__", "__slots__", "__annotations__"}


def _whole(number: int) -> str:
    return int.__repr__(number) if -(2**63) < number < 2**63 else f'"i{number:x}"'


def _real(number: float) -> str:
    return float.__repr__(number) if number - number == 0 else f'"f{float.__repr__(number)}"'


def _imaginary(number: complex) -> str:
    return f'"c{number.real!r},{number.imag!r}"'


_KEYS: type = type({}.keys())
_most: Callable[[Any], int | None] = deque.__dict__["maxlen"].__get__
_PLAIN: tuple[type, ...] = (int, float, complex, bool, str, bytes, list, tuple, dict, set, frozenset)
TYPES: dict[type, str] = {kind: kind.__name__ for kind in _PLAIN}
_LEAVES: dict[type, Callable[[Any], str]] = {
    type(None): lambda _: "null",
    bool: lambda truth: "true" if truth else "false",
    int: _whole,
    float: _real,
    complex: _imaginary,
    _Named: lambda named: _quoted(named.token),
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
"""Makes the exact value of an instance of a subclass."""
_PARTS: dict[type, Callable[[Any], tuple[int, Iterator[Any]]]] = {
    list: lambda item: (list.__len__(item), list.__iter__(list.copy(item))),
    tuple: lambda item: (tuple.__len__(item), tuple.__iter__(item)),
    set: lambda item: (set.__len__(item), set.__iter__(set.copy(item))),
    frozenset: lambda item: (frozenset.__len__(item), frozenset.__iter__(item)),
    dict: lambda item: (dict.__len__(item), chain.from_iterable(list(dict.items(item)))),
    _KEYS: lambda item: (len(item), iter(list(item))),
    slice: lambda item: (3, iter((item.start, item.stop, item.step))),
    deque: lambda item: (deque.__len__(item) + 1, chain((_most(item),), list(deque.__iter__(item)))),
    _Array: lambda item: (1, iter((item.array.dtype.str, item.array.tolist()))),
    _Owned: lambda item: (2, iter((_Handle(item.item), _Beside(item.item)))),
}
_COPIES: dict[type, Callable[[Any], Any]] = {
    list: lambda item: list(list.__iter__(item)),
    dict: lambda item: dict(list(dict.items(item))),
    set: lambda item: set(set.__iter__(item)),
    deque: lambda item: deque(deque.__iter__(item), _most(item)),
}
_NUMBERS = {"decimal": "Decimal", "fractions": "Fraction"}
_LONG: dict[type, str] = {str: "S", bytes: "B"}
_TAGS: dict[type, str] = {
    list: "l",
    tuple: "t",
    set: "e",
    frozenset: "z",
    dict: "d",
    _KEYS: "k",
    slice: "p",
    deque: "q",
    _Array: "n",
    _Owned: "u",
}
