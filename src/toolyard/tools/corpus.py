"""A text corpus in memory and an index of its words: `read_corpus("wiki.jsonl").search("who wrote …", 3)`.

Passages are ranked by BM25. One query takes less than a millisecond among 100,000 passages, so it needs no thread.
"""

from __future__ import annotations

import asyncio
import functools
import gzip
import json
import os
import re
import threading
import unicodedata
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO, TypeAlias

from toolyard.core.errors import ServiceUnavailable, ToolyardError

try:
    import numpy as np
except ImportError:  # an extra
    np = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.integer]
    Floats: TypeAlias = NDArray[np.floating]

K1, B = 0.9, 0.4
"""As in Pyserini, whose BM25 is Search-R1's baseline."""

_QUERY_CHARACTERS = 10_000
_QUERY_WORDS = 32
"""A longer query is reduced to its rarest words."""

_NONE = 2**32 - 1
"""No word and no passage has this number."""

_ANY = 1e-9
"""Every word that occurs weighs more than this."""

_CJK = "\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
_ASCII_WORD = re.compile(r"[a-z0-9]+")
_WORD = re.compile(rf"[{_CJK}]|[^\W_{_CJK}]+")
_UNSAID = """
a an and are as at be but by for if in into is it no not of on or
such that the their then there these they this to was will with
"""
"""Words without meaning for a search."""


class CorpusError(ToolyardError):
    """A corpus cannot be read; the message says where and why."""


@dataclass(frozen=True, slots=True)
class Passage:
    id: str
    contents: str
    """The title, and the text from the second line on."""
    url: str = ""

    @property
    def title(self) -> str:
        return self.contents.partition("\n")[0].strip().strip('"')

    @property
    def text(self) -> str:
        return self.contents.partition("\n")[2]


@dataclass(frozen=True, slots=True)
class Hit:
    passage: Passage
    score: float


class Corpus:
    """The index lists for each word the passages that contain it, with its weight in each."""

    def __init__(self, passages: Iterable[Passage]) -> None:
        if np is None:
            raise CorpusError("an index needs the package numpy: pip install 'toolyard[search]'")
        counted = _Counted()
        self.passages = [counted.add(passage) for passage in passages]
        self._words = counted.words
        self._starts, self._places, self._weights = _weighted(counted)

    def __len__(self) -> int:
        return len(self.passages)

    def search(self, query: str, most: int) -> list[Hit]:
        """The best passages for a query, best first; fewer if fewer contain any of its words."""
        most = min(most, len(self.passages))
        if most < 1:
            return []
        spans = self._found(query[:_QUERY_CHARACTERS])
        scores = np.zeros(len(self.passages), np.float32)
        for start, end in spans:
            scores[self._places[start:end]] += self._weights[start:end]
        found = np.flatnonzero(scores >= self._least(scores, spans, most))
        best = found[np.lexsort((found, -scores[found]))][:most]
        return [Hit(self.passages[number], round(float(scores[number]), 6)) for number in best]

    def _least(self, scores: Floats, spans: Sequence[tuple[int, int]], most: int) -> float:
        """A score that the best passages all reach, and few others. It ranks only passages with the rarest word, which
        is cheap."""
        for start, end in spans:
            if end - start >= most:
                ranked = np.partition(scores[self._places[start:end]], end - start - most)
                return float(ranked[end - start - most])
        return _ANY

    def _found(self, query: str) -> Sequence[tuple[int, int]]:
        """The spans of the postings of a query's words; for a long query, of the rarest words."""
        known = {number for word in split(query) if (number := self._words.get(singular(word), -1)) >= 0}
        spans = [(int(self._starts[number]), int(self._starts[number + 1])) for number in sorted(known)]
        return sorted(spans, key=lambda span: span[1] - span[0])[:_QUERY_WORDS]


class _Counted:
    """How often each word occurs in each passage, in the order of the passages."""

    def __init__(self) -> None:
        self.words: dict[str, int] = {}
        self.lengths = array("I")
        self.numbers, self.places, self.counts = array("I"), array("I"), array("I")
        self._numbers: dict[str, int] = dict.fromkeys(_UNSAID.split(), -1)
        """The number of each written word; -1 for words that do not count."""

    def add(self, passage: Passage) -> Passage:
        place, length = len(self.lengths), 0
        known = self._numbers
        for word, count in Counter(split(passage.contents)).items():
            if (number := known.get(word)) is None:
                number = known[word] = self.words.setdefault(singular(word), len(self.words))
            if number >= 0:
                self.numbers.append(number)
                self.places.append(place)
                self.counts.append(count)
                length += count
        self.lengths.append(length)
        return passage


def _weighted(counted: _Counted) -> tuple[Ints, Ints, Floats]:
    """Where the postings of each word begin, and the passage and weight of each posting."""
    numbers, places, counts, lengths = (
        np.frombuffer(values, np.uint32) if values else np.zeros(0, np.uint32)
        for values in (counted.numbers, counted.places, counted.counts, counted.lengths)
    )
    order = np.argsort(numbers, kind="stable")
    numbers, places, counts = numbers[order], places[order], counts[order]
    # Singular and plural of a word share a posting.
    firsts = np.flatnonzero(np.diff(numbers, prepend=_NONE) | np.diff(places, prepend=_NONE))
    numbers, places = numbers[firsts], places[firsts]
    counts = np.add.reduceat(counts, firsts).astype(np.float32) if len(firsts) else counts.astype(np.float32)
    starts = np.searchsorted(numbers, np.arange(len(counted.words) + 1))
    spread = np.diff(starts).astype(np.float32)
    rarity = np.log(1 + (len(lengths) - spread + 0.5) / (spread + 0.5))
    norms = K1 * (1 - B + B * lengths / (lengths.mean() or 1.0)) if len(lengths) else lengths.astype(np.float32)
    weights = rarity[numbers] * counts / (counts + norms.astype(np.float32)[places])
    return starts, places.astype(np.intp), weights


def split(text: str) -> list[str]:
    """Split a text into words, in lower case and without accents; into characters for Chinese, Japanese and Korean."""
    text = text.lower()
    if text.isascii():
        return _ASCII_WORD.findall(text)
    bare = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
    return _WORD.findall(unicodedata.normalize("NFC", bare))  # recompose Korean characters


def singular(word: str) -> str:
    """Remove the ending of a plural, roughly."""
    if len(word) < 4 or word[-1] != "s" or word[-2] in "su":
        return word
    return word[:-3] + "y" if word.endswith("ies") else word[:-1]


# Reading passages.


def read_corpus(path: str) -> Corpus:
    """The corpus at this path, read once: a .jsonl, .txt or .md file, or a folder of such files. They may be .gz."""
    if (corpus := _corpora.get(path)) is None:
        corpus = Corpus(passages_at(Path(path)))
        if not corpus:
            raise CorpusError(f"there is no passage in {path}")
        _corpora[path] = corpus
    return corpus


_corpora: dict[str, Corpus] = {}


async def corpus_named(variable: str) -> Corpus:
    """The corpus that an environment variable names. Only searches wait until it is read."""
    path = os.environ[variable]
    if path not in _corpora and (problem := await asyncio.to_thread(missing_corpus, variable)):
        raise ServiceUnavailable(problem)
    return read_corpus(path)


def passages_at(path: Path) -> Iterator[Passage]:
    if path.is_dir():
        for found in sorted(path.rglob("*")):
            if _kind(found) and found.is_file():
                yield from passages_at(found)
        return
    kind = _kind(path)
    if not kind:
        raise CorpusError(
            f"{path} is not a corpus: it must be a folder or end in .jsonl, .txt or .md, or one of them .gz"
        )
    try:
        with opened(path) as file:
            yield from _lines(file, path) if kind == ".jsonl" else _paragraphs(file, path)
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise CorpusError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def opened(path: Path) -> TextIO:
    return gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")


def _kind(path: Path) -> str:
    plain = path.with_suffix("") if path.suffix == ".gz" else path
    return plain.suffix if plain.suffix in (".jsonl", ".txt", ".md") else ""


def _lines(file: Iterable[str], path: Path) -> Iterator[Passage]:
    for number, line in enumerate(file, 1):
        if line.strip():
            try:
                yield _passage(line, f"{path.name}:{number}")
            except ValueError as error:
                raise CorpusError(f"{path} line {number}: {error}") from None


def _passage(line: str, place: str) -> Passage:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"this is not JSON: {error}") from None
    match value:
        case {"contents": str(contents)}:
            pass
        case {"text": str(text)}:
            contents = f"{value.get('title') or ''}\n{text}"
        case _:
            raise ValueError('a passage is an object with "contents", or with "text" and perhaps "title"')
    return Passage(str(value.get("id", place)), contents, str(value.get("url") or value.get("link") or ""))


def _paragraphs(file: TextIO, path: Path) -> Iterator[Passage]:
    """The paragraphs of a file, with the file's name as title."""
    name = path.name.partition(".")[0]
    for number, paragraph in enumerate(re.split(r"\n\s*\n", file.read()), 1):
        if paragraph.strip():
            yield Passage(f"{path.name}:{number}", f"{name}\n{paragraph.strip()}")


def missing_corpus(variable: str) -> str:
    """Why the corpus that an environment variable names cannot be read; empty if it can, or if there is none."""
    if not (path := os.environ.get(variable)):
        return ""
    with _reading:
        problem = _problem_with(path)
    return f"{variable}: {problem}" if problem else ""


_reading = threading.Lock()
"""Held while a corpus is read, so that searches wait instead of reading it again."""


@functools.cache
def _problem_with(path: str) -> str:
    """What is wrong with a corpus, checked once: a failing search must not read a large file again up to the wrong
    line."""
    try:
        read_corpus(path)
    except CorpusError as error:
        return str(error)
    return ""
