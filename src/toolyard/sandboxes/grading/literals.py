"""Replaces an expected literal by another of the same kind: it looks as likely, and no value equals both."""

from __future__ import annotations

import ast
import random
import string
from typing import Any

_TRIES = 20


def is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def other(node: ast.expr, dice: random.Random) -> ast.expr | None:
    """A different literal in place of this one; None if the node is no literal."""
    if not is_literal(node):
        return None
    value = ast.literal_eval(node)
    for _ in range(_TRIES):
        changed = _changed(value, dice)
        if changed != value and not (isinstance(changed, str) and changed.casefold() == value.casefold()):
            return ast.parse(repr(changed), mode="eval").body
    return None


def _changed(value: Any, dice: random.Random) -> Any:  # what a literal can be
    match value:
        case bool():
            return not value
        case int():
            return _number(value, dice)
        case float():
            return value + dice.choice([-1, 1]) * dice.choice([0.5, 1.0, 1.5, 2.0]) * max(1.0, abs(value) / 4)
        case complex():
            return value + dice.randint(1, 9)
        case str():
            return _text(value, dice)
        case bytes():
            return _text(value.decode("latin-1"), dice).encode("latin-1")
        case list() | tuple():
            return type(value)(_items(list(value), dice))
        case set() | frozenset():
            return set(_items(sorted(value, key=repr), dice))
        case dict():
            keys = list(value) or ["a"]
            key = dice.choice(keys)
            return {**value, key: _changed(value[key], dice) if value else 1}
        case _:  # None and Ellipsis
            return dice.randint(0, 9)


def _number(value: int, dice: random.Random) -> int:
    """A number with about as many digits."""
    far = max(9, abs(value) // 4)
    return value + dice.choice([-1, 1] if value > far else [1]) * dice.randint(1, far)


def _text(value: str, dice: random.Random) -> str:
    places = [at for at, character in enumerate(value) if character.isascii() and character.isalnum()]
    if not places:
        return value + dice.choice(string.ascii_lowercase)
    at = dice.choice(places)
    kinds = (string.digits, string.ascii_lowercase, string.ascii_uppercase)
    kind = next(kind for kind in kinds if value[at] in kind)
    return value[:at] + dice.choice(kind) + value[at + 1 :]


def _items(items: list[Any], dice: random.Random) -> list[Any]:
    if not items:
        return [dice.randint(0, 9)]
    at = dice.randrange(len(items))
    items[at] = _changed(items[at], dice)
    return items
