"""Finds the tools that a question asks for, among thousands. By words: no model, no network, about a millisecond.

A word counts by how rare it is and where it stands: in a tool's name, in the name of its family, in its description or
in its parameters. A family is a part that the names of several tools share, such as their API. A tool ranks higher when
the other tools of its family fit as well. A question that holds the name of a tool finds that tool.

An index may have a model that knows what words mean. Then similar meaning counts beside equal words.
"""

from __future__ import annotations

import heapq
import math
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain
from operator import add

from toolyard.core.families import Name, taken_apart
from toolyard.core.meaning import Bag, MeaningModel, Sums
from toolyard.core.output import JsonObject
from toolyard.core.tool import ToolSpec
from toolyard.core.words import FILLERS, stem, unglued, words

_LONGEST_QUESTION = 8_000
"""Read this many characters of a question."""
_MOST_SENTENCES = 16
"""The text after this many sentences counts as one more."""
_LONGEST_TEXT = 4_000
"""Read this many characters of a description."""
_LONGEST_NAME = 6
"""At most this many words of a question can be the name of a tool."""
_LONGEST_WORD = 40
"""Letters of the longest word that a model gets."""
_LIKELY = 100
"""Score this many tools again, sentence by sentence."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of words. Chosen by cross-validation; the exact values hardly matter."""

    name: float = 2.0
    family: float = 2.0
    description: float = 0.7
    parameters: float = 0.7
    name_length: float = 0.5
    """How much less a word counts the more words stand beside it: here in names, below in texts."""
    text_length: float = 0.8
    saturation: float = 1.0
    """How soon further repetitions of a word stop counting."""
    rarity: float = 1.5
    """Above 1: rare words count for even more than in BM25."""
    relatives: float = 2.0
    """The weight of the family's score, added to that of the tool itself."""
    whole_name: float = 0.4
    """The weight of the full name of a tool, or of a family, in the question."""
    best_sentence: float = 0.7
    """The weight of the sentence that fits best, added to the score of the whole question."""
    meaning: float = 0.4
    """With a model: the weight of equal meaning, relative to a word that only one family has."""


WEIGHTS = Weights()
_SHORT = frozenset(("by", "id", "in", "ip", "of", "qr", "to", "tv"))
"""Words of two letters that glued names are made of."""
_SENTENCE_ENDS = re.compile(r"(?<=[.?!;])\s+|\n+")
_QUOTED = re.compile(r"""(?<!\w)(["'])[^"'\n]{1,200}\1(?!\w)""")
_VERSION = re.compile(r"(?:api|v\d+)$")

_Fields = tuple[list[str], list[str], list[str], list[str]]


@dataclass(frozen=True, slots=True)
class _Posting:
    """The tools and families in which a term occurs, with its weight in each."""

    tools: array[int]
    tool_weights: array[float]
    families: array[int]
    family_weights: array[float]


class ToolIndex:
    """An index of tools. It never changes. Of two tools with the same name it holds the first."""

    def __init__(
        self, specs: Sequence[ToolSpec], weights: Weights = WEIGHTS, *, model: MeaningModel | None = None
    ) -> None:
        self._specs = list({spec.name: spec for spec in reversed(specs)}.values())[::-1]
        self._weights = weights
        names = taken_apart([spec.name for spec in self._specs])
        keys: dict[str, int] = {}
        self._family_of = [keys.setdefault(name.key, len(keys)) for name in names]
        self._members: list[list[int]] = [[] for _ in keys]
        for tool, family in enumerate(self._family_of):
            self._members[family].append(tool)
        self._postings: dict[str, _Posting] = {}
        fields = [_fields(spec, name) for spec, name in zip(self._specs, names, strict=True)]
        self._vocabulary = _vocabulary(fields)
        """The words that glued words are split into."""
        _unglue(fields, self._vocabulary)
        self._add_words(fields)
        self._add_names(names)
        self._alike = self._read_by(model, fields) if model is not None and specs else None

    def search(self, question: str, top_k: int) -> list[ToolSpec]:
        """At most `top_k` tools that score above zero for the question, best first."""
        if top_k <= 0:
            return []
        question = question[:_LONGEST_QUESTION]
        sentences = [self._terms(text) for text in _SENTENCE_ENDS.split(question, _MOST_SENTENCES)]
        scores = self._scores(dict.fromkeys(chain.from_iterable(sentences)), question)
        if len(sentences) > 1:
            likely = heapq.nlargest(_LIKELY + top_k, scores, key=scores.__getitem__)
            best = self._best_sentence(sentences, likely)
            scores = {tool: scores[tool] + self._weights.best_sentence * best[tool] for tool in likely}
        return [self._specs[tool] for tool in heapq.nlargest(top_k, scores, key=scores.__getitem__)]

    def _scores(self, terms: Iterable[str], question: str) -> dict[int, float]:
        """The scores of all tools in families that hold one of the terms, or whose meaning is like the question's."""
        tools, families = self._sums(terms)
        if self._alike is not None:
            alike = self._alike(self._bag(words(_QUOTED.sub(" ", question)) or words(question)))
            tools, families = list(map(add, tools, alike[0])), list(map(add, families, alike[1]))
        relatives = self._weights.relatives
        return {
            tool: tools[tool] + relatives * score
            for family, score in enumerate(families)
            if score
            for tool in self._members[family]
        }

    def _best_sentence(self, sentences: Sequence[Iterable[str]], likely: Sequence[int]) -> Mapping[int, float]:
        """The score of each of these tools in the sentence that fits it best: a question may ask for several things."""
        best = dict.fromkeys(likely, 0.0)
        relatives = self._weights.relatives
        for terms in sentences:
            tools, families = self._sums(terms)
            for tool in likely:
                score = tools[tool] + relatives * families[self._family_of[tool]]
                best[tool] = max(best[tool], score)
        return best

    def _sums(self, terms: Iterable[str]) -> Sums:
        """Add up the weights of the terms, by tool and by family."""
        tools, families = [0.0] * len(self._specs), [0.0] * len(self._members)
        for term in terms:
            posting = self._postings[term]
            for tool, weight in zip(posting.tools, posting.tool_weights, strict=True):
                tools[tool] += weight
            for family, weight in zip(posting.families, posting.family_weights, strict=True):
                families[family] += weight
        return tools, families

    def _terms(self, text: str) -> Mapping[str, None]:
        """The terms of the text that are in the index. A quoted text is a value: it only counts if it is a name."""
        asked = words(text)
        bare = words(_QUOTED.sub(" ", text)) if "'" in text or '"' in text else asked
        terms = self._known(bare) or self._known(asked)
        return terms | dict.fromkeys(self._named(asked))

    def _known(self, asked: Sequence[str]) -> dict[str, None]:
        """The stems that the index has, each once and in order, so that equal questions get equal sums."""
        terms: dict[str, None] = {}
        for word in asked:
            if word not in FILLERS:
                parts = (word,) if stem(word) in self._postings else _parts(word, self._vocabulary)
                terms.update((stem(part), None) for part in parts)
        return {term: None for term in terms if term in self._postings}

    def _named(self, asked: Sequence[str]) -> Iterator[str]:
        """Adjacent words that together are a whole name, or one word of a name: `qr code` finds `qrcode`."""
        for at in range(len(asked)):
            glued, meaningful = "", False
            for count, word in enumerate(asked[at : at + _LONGEST_NAME], 1):
                glued += word
                meaningful = meaningful or word not in FILLERS
                if not (meaningful and len(glued) > 3) and count < len(asked):
                    continue
                if (name := f"={glued}") in self._postings:
                    yield name
                if count > 1 and glued in self._postings:
                    yield glued

    def _add_words(self, tools: Sequence[_Fields]) -> None:
        stems = {word: stem(word) for word in {word for texts in tools for text in texts for word in text} - FILLERS}
        weights = self._weights
        fields = (
            (weights.name, weights.name_length),
            (weights.family, weights.name_length),
            (weights.description, weights.text_length),
            (weights.parameters, weights.text_length),
        )
        usual = [sum(map(len, column)) / len(tools) or 1.0 for column in zip(*tools, strict=True)]
        counts: defaultdict[str, dict[int, float]] = defaultdict(dict)
        for tool, texts in enumerate(tools):
            for text, (weight, length), mean in zip(texts, fields, usual, strict=True):
                share = weight / (1 - length + length * len(text) / mean)
                for word in text:
                    if (term := stems.get(word)) is not None:
                        count = counts[term]
                        count[tool] = count.get(tool, 0.0) + share
        for term, count in counts.items():
            self._add(term, {tool: value / (value + weights.saturation) for tool, value in count.items()}, {})

    def _add_names(self, names: Sequence[Name]) -> None:
        tools: defaultdict[str, dict[int, float]] = defaultdict(dict)
        families: defaultdict[str, dict[int, float]] = defaultdict(dict)
        weight = self._weights.whole_name
        for tool, name in enumerate(names):
            tools["".join(words(name.own))][tool] = weight
            family = "".join(words(name.family))
            for spelling in (family, _VERSION.sub("", family)):
                if spelling:
                    families[spelling][self._family_of[tool]] = weight
        for spelling in tools | families:
            self._add(f"={spelling}", tools[spelling], families[spelling])

    def _add(self, term: str, tools: Mapping[int, float], families: Mapping[int, float]) -> None:
        """Add a term. Its weight in a family is its highest weight in a tool of that family."""
        related = dict(families)
        for tool, value in tools.items():
            family = self._family_of[tool]
            if value > related.get(family, 0.0):
                related[family] = value
        rarity = self._rarity(len(related))
        self._postings[term] = _Posting(
            array("L", tools),
            array("d", [value * rarity for value in tools.values()]),
            array("L", related),
            array("d", [value * rarity for value in related.values()]),
        )

    def _rarity(self, families: int) -> float:
        """The weight of a term that occurs in so many families."""
        return math.pow(math.log(1 + (len(self._members) - families + 0.5) / (families + 0.5)), self._weights.rarity)

    def _read_by(self, model: MeaningModel, tools: Sequence[_Fields]) -> Callable[[Bag], Sums]:
        bags = [self._bag(chain.from_iterable(texts)) for texts in tools]
        return model.read(bags, self._family_of, weight=self._weights.meaning * self._rarity(1))

    def _bag(self, text: Iterable[str]) -> Bag:
        """The words with their weights. Words that no tool has weigh the most: for these the model is needed."""
        telling = {word for word in text if len(word) <= _LONGEST_WORD} - FILLERS
        found = {word: self._postings.get(stem(word)) for word in sorted(telling)}
        return {word: self._rarity(len(known.families) if known else 0) for word, known in found.items()}


def _fields(spec: ToolSpec, name: Name) -> _Fields:
    parameters = _parameters(spec.input_schema)
    description = spec.description[:_LONGEST_TEXT]
    if "_" in spec.name:  # such a name stands in a text only if the text repeats it, which says nothing new
        description = description.replace(spec.name, " ")
    texts = (said["description"] for said in parameters.values() if isinstance(said, Mapping) and "description" in said)
    return (
        words(name.own),
        words(name.family),
        words(description),
        words(" ".join([*parameters, *(text[:_LONGEST_TEXT] for text in texts if isinstance(text, str))])),
    )


def _parameters(schema: JsonObject | None) -> Mapping[str, object]:
    properties = schema.get("properties") if schema else None
    return properties if isinstance(properties, Mapping) else {}


def _vocabulary(tools: Sequence[_Fields]) -> Set[str]:
    """Words that more than one tool uses."""
    seen = Counter(word for texts in tools for word in {word for text in texts for word in text})
    return {word for word, count in seen.items() if count > 1 and len(word) > 2} | _SHORT


def _unglue(tools: Sequence[_Fields], vocabulary: Set[str]) -> None:
    """Add to names the words that they are glued from: `moviesdatabase` is about movies. Words of texts stay whole."""
    ordinary = {word for texts in tools for word in texts[2]}
    glued = {word for own, family, _, parameters in tools for word in (*own, *family, *parameters)} - ordinary
    made_of = {word: _parts(word, vocabulary) for word in glued}
    for own, family, _, parameters in tools:
        for text in (own, family, parameters):
            text += [part for word in text for part in made_of.get(word, ())]


def _parts(word: str, vocabulary: Set[str]) -> Sequence[str]:
    return unglued(word, vocabulary) if 5 < len(word) <= 40 else ()
