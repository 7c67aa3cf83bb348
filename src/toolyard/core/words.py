"""Splits a text or a name into words that can be compared: in lower case and, by `stem`, without endings.

`getUserIDs`, `get_user_ids` and `Get the user's IDs` have the same words. Other scripts than Latin have theirs too.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Container, Sequence

_WORD = re.compile(r"[^\W_]+")
_PART = re.compile(r"[A-Z]{2,}s?(?![A-Za-z])|[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
"""The parts of a word: `XMLParser` has `XML` and `Parser`, `URLs` is one part, `mp3` has `mp` and `3`."""
_IDEOGRAPHS = re.compile(r"[\u2e80-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
"""Scripts that write no spaces between words."""

_GRAMMAR = """
a about after again all along also am an and any are as at be because been before being both but by can could did do
does doing each few for from had has have he her here him his how i if in into is it its just let me more most my no
nor not now of off on once only or other our out over own same she should so some such than that the their them then
there these they this those through to too under until up us very was we were what when where which while who whom why
will with would you your d ll m re s t ve
"""
_POLITENESS = """
able additionally assist assistance finally furthermore give help interested know lastly like looking make moreover need
planning please provide show sure tell use used using want working
"""
_TRADE = "api apis endpoint endpoints function functions tool tools"
FILLERS = frozenset(f"{_GRAMMAR} {_POLITENESS} {_TRADE}".split())
"""Words that say nothing about the wanted tool."""


def words(text: str) -> list[str]:
    """All words of the text, in order, in lower case."""
    found: list[str] = []
    for word in _WORD.findall(text):
        if word.isascii() and word.isalpha() and word.islower():  # most are
            found.append(word)
        else:
            found += _parts(word)
    return found


def _parts(word: str) -> Sequence[str]:
    if word.isascii():
        return [part.lower() for part in _PART.findall(word)]
    bare = "".join(c for c in unicodedata.normalize("NFKD", word.casefold()) if not unicodedata.combining(c))
    if len(bare) > 2 and _IDEOGRAPHS.match(bare):
        return [bare[at : at + 2] for at in range(len(bare) - 1)]
    return (bare,)


def stem(word: str) -> str:
    """The word without the endings that English puts on it: `movies` and `movie`, `sorted` and `sorting` are one."""
    if len(word) < 4 or not (word.isascii() and word.isalpha()) or word == "news":  # no plural of `new`
        return word
    return _without_last_vowel(_without_verb_ending(_without_plural(word)))


def _without_plural(word: str) -> str:
    if word.endswith(("ies", "ied")):
        return word[:-2] if len(word) > 4 else word[:-1]
    if word.endswith("sses"):
        return word[:-2]
    return word[:-1] if word[-1] == "s" and word[-2] not in "sui" else word


def _without_verb_ending(word: str) -> str:
    if word.endswith("ing") and len(word) > 5:
        word = word[:-3]
    elif word.endswith("ed") and len(word) > 4:
        word = word[:-2]
    return word[:-1] if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "sl" else word


def _without_last_vowel(word: str) -> str:
    if len(word) > 3 and word[-1] == "e":
        word = word[:-1]
    return f"{word[:-1]}i" if len(word) > 3 and word[-1] == "y" else word


def unglued(word: str, known: Container[str], most: int = 4) -> list[str]:
    """Split `moviesdatabase` into `movies` and `database`, if it is made of known words. Empty if it is not."""
    for at in range(len(word) - 2, 1, -1):
        if (first := word[:at]) not in known:
            continue
        if (rest := word[at:]) in known:
            return [first, rest]
        if most > 2 and (others := unglued(rest, known, most - 1)):
            return [first, *others]
    return []
