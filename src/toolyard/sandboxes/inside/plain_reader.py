"""Reads plain data from text that untrusted code may have written. Bounds size and depth; evaluates nothing.

Imports only the standard library and `plain`: sandboxes load the text of this file too.
"""

from __future__ import annotations

import importlib
import json
from collections import deque
from collections.abc import Callable
from typing import Any

from toolyard.sandboxes.inside.plain import CHUNK, DEEPEST, LONGEST, TYPES

_COLLISIONS_MOST = 2_000
"""Keys of one value that share their hash with another key. More would keep the reader busy for minutes."""


class NotPlain(ValueError):
    """The text is not one that the writer makes."""


class Reader:
    """Takes chunks one after the other; `value` is there after the last.

    `resolve` turns a handle's token into an object. `array` takes the type and the nested lists of a numpy array.
    `owned` takes the handle and the value of an instance of a program's own subclass.
    """

    def __init__(
        self,
        resolve: Callable[[str], Any],
        array: Callable[[str, Any], Any] = lambda _, nested: nested,
        owned: Callable[[Any, Any], Any] = lambda _, value: value,
        *,
        longest: int = LONGEST,
    ) -> None:
        self._resolve = resolve
        self._longest = longest + 2 * CHUNK
        self._array = array
        self._owned = owned
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
        except (ValueError, TypeError, RecursionError, ArithmeticError) as error:
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
            case "k":
                return dict.fromkeys(self._keys(items)).keys()
            case "p":
                return slice(*items)
            case "q":
                return deque(items[1:], *items[:1])
            case "n":
                return self._array(*items)
            case "u":
                return self._owned(*items)
        return ("" if tag == "S" else b"").join(items)

    def _keys(self, items: list[Any]) -> list[Any]:
        """The text's author chooses the hashes of numbers, and equal hashes cost quadratic time."""
        self._collisions += len(items) - len(set(map(hash, items)))
        if self._collisions > _COLLISIONS_MOST:
            raise NotPlain("too many keys have the same hash")
        return items


def _complex(text: str) -> complex:
    real, imaginary = text.split(",")
    return complex(float(real), float(imaginary))


def _type(name: str) -> type:
    if name not in _TYPES:
        raise NotPlain(name[:20])
    return _TYPES[name]


def _decimal(text: str) -> Any:
    """A Decimal that does not raise when it is compared."""
    number = importlib.import_module("decimal").Decimal(text)
    if number.is_snan():
        raise ValueError(text)
    return number


_OPEN = {"l": 1, "t": 1, "e": 1, "z": 1, "d": 2, "k": 1, "p": 1, "q": 1, "n": 2, "u": 1, "S": 1, "B": 1}
"""For each opening tag, how many tokens follow for one counted part."""
_TYPES = {name: kind for kind, name in TYPES.items()}
_SIMPLE: dict[str, Callable[[str], Any]] = {
    "s": str,
    "y": _type,
    "b": lambda text: text.encode("latin-1"),
    "i": lambda text: int(text, 16),
    "f": float,
    "c": _complex,
    "D": _decimal,
    "F": lambda text: importlib.import_module("fractions").Fraction(*map(int, text.split("/"))),
    "g": lambda text: range(*(int(part, 16) for part in text.split(","))),
}
