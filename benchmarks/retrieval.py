"""How well and how fast search finds tools: `python -m benchmarks.retrieval FOLDER`.

FOLDER holds `tools.jsonl` (name, description, parameters), `queries.jsonl` (query, and the names of the relevant tools)
and, for speed at scale, `catalog.jsonl`, with the same fields as the first. The score is NDCG@5, of our index and of
plain BM25 over the same words. `--folds` also reports the scores when weights are chosen on other questions than those
that judge them. `--embeddings` reports what the model of that extra adds: to these questions, and to the same ones
without half of the words that any tool has, as a user who does not know the names might ask.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from statistics import mean, median, stdev
from typing import Any, NamedTuple

from toolyard.core.meaning import MeaningModel
from toolyard.core.retrieval import WEIGHTS, ToolIndex, Weights
from toolyard.core.tool import ToolSpec
from toolyard.core.words import FILLERS, stem, words
from toolyard.embeddings import word_vectors

TOP = 5
DRAWS = 3
ALONE = 1e6
"""So much that words only decide between two tools of equal similarity."""
Search = Callable[[str, int], Sequence[ToolSpec]]


class Query(NamedTuple):
    question: str
    relevant: frozenset[str]


class PlainBM25:
    """Every word of a tool in one bag, without fillers."""

    def __init__(self, specs: Sequence[ToolSpec], k1: float = 1.2, b: float = 0.75) -> None:
        self._specs = specs
        bags = [Counter(map(stem, words(f"{spec.name} {spec.description} {_parameters(spec)}"))) for spec in specs]
        usual = mean(bag.total() for bag in bags)
        self._postings: defaultdict[str, dict[int, float]] = defaultdict(dict)
        for tool, bag in enumerate(bags):
            for word, count in bag.items():
                self._postings[word][tool] = count * (k1 + 1) / (count + k1 * (1 - b + b * bag.total() / usual))

    def search(self, question: str, top_k: int) -> Sequence[ToolSpec]:
        scores: Counter[int] = Counter()
        for word in {stem(word) for word in words(question) if word not in FILLERS}:
            found = self._postings.get(word, {})
            rarity = math.log(1 + (len(self._specs) - len(found) + 0.5) / (len(found) + 0.5))
            for tool, value in found.items():
                scores[tool] += value * rarity  # type: ignore[assignment]  # a Counter of floats is as good
        return [self._specs[tool] for tool, _ in scores.most_common(top_k)]


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--folds", type=int, default=0, metavar="WEIGHTS", help="try this many sets of weights")
    parser.add_argument("--embeddings", action="store_true", help="compare with an index that has a model")
    return parser


def main() -> None:
    options = arguments().parse_args()
    specs, queries = read_specs(options.folder / "tools.jsonl"), read_queries(options.folder / "queries.jsonl")
    print(f"{len(queries)} questions, {len(specs)} tools")
    for name, search in (("plain BM25", PlainBM25(specs).search), ("ToolIndex", ToolIndex(specs).search)):
        values = scores(search, queries)
        print(f"  NDCG@{TOP} {name:<12}{mean(values):.3f}  (standard error {stdev(values) / len(values) ** 0.5:.3f})")
    if options.folds:
        print(f"  NDCG@{TOP} cross-validated: {cross_validated(specs, queries, options.folds)}")
    models: list[MeaningModel | None] = [None]
    if options.embeddings:
        print(f"the model: loaded in {_seconds(word_vectors):.2f} s")
        compare(specs, queries, word_vectors())
        models.append(word_vectors())
    for path in (options.folder / "tools.jsonl", options.folder / "catalog.jsonl"):
        for model in models if path.exists() else ():
            measure_speed(read_specs(path), queries, model)


def read_specs(path: Path) -> list[ToolSpec]:
    return [
        ToolSpec(name=one["name"], description=one["description"], input_schema=one["parameters"])
        for one in _lines(path)
    ]


def read_queries(path: Path) -> list[Query]:
    return [Query(one["query"], frozenset(one["relevant"])) for one in _lines(path)]


def scores(search: Search, queries: Sequence[Query]) -> list[float]:
    return [ndcg([spec.name for spec in search(query.question, TOP)], query.relevant) for query in queries]


def ndcg(found: Sequence[str], relevant: frozenset[str]) -> float:
    gains = [1 / math.log2(place + 2) for place in range(TOP)]
    gained = sum(gain for gain, name in zip(gains, found, strict=False) if name in relevant)
    return gained / sum(gains[: len(relevant)])


def cross_validated(specs: Sequence[ToolSpec], queries: Sequence[Query], tries: int, folds: int = 5) -> str:
    """Of random weights within half and double of ours, choose the best on four fifths, and judge on the other
    fifth."""
    chance = random.Random(0)
    tried = [scores(ToolIndex(specs, _near(WEIGHTS, chance)).search, queries) for _ in range(tries)]
    order = chance.sample(range(len(queries)), len(queries))
    judged: list[float] = []
    for fold in range(folds):
        held_out = set(order[fold::folds])
        best = max(tried, key=lambda values: sum(value for at, value in enumerate(values) if at not in held_out))
        judged += [best[at] for at in held_out]
    means = sorted(map(mean, tried))
    return f"{mean(judged):.3f}; random weights {means[0]:.3f} to {means[-1]:.3f}, median {median(means):.3f}"


def compare(specs: Sequence[ToolSpec], queries: Sequence[Query], model: MeaningModel) -> None:
    """What a model adds, its best weight, and its effect where words are missing."""
    fewer = [_fewer_words(queries, specs, seed) for seed in range(DRAWS)]
    for about, several in (("as they are", [queries]), ("with half of the words", fewer)):
        without = _mean_scores(ToolIndex(specs), several)
        print(f"  the questions {about}: NDCG@{TOP} {mean(without):.3f} without the model")
        for weight in (0.1, 0.2, WEIGHTS.meaning, 0.6, 0.8, ALONE):
            found = _mean_scores(ToolIndex(specs, replace(WEIGHTS, meaning=weight), model=model), several)
            more = [one - other for one, other in zip(found, without, strict=True)]
            name = "alone" if weight == ALONE else f"counting {weight}"
            print(f"    {name:<14}{mean(found):.3f}  ({mean(more):+.3f} ± {stdev(more) / len(more) ** 0.5:.3f})")


def measure_speed(
    specs: Sequence[ToolSpec], queries: Sequence[Query], model: MeaningModel | None, rounds: int = 3
) -> None:
    builds = [_seconds(lambda: ToolIndex(specs, model=model)) for _ in range(rounds)]
    index = ToolIndex(specs, model=model)
    times = sorted(_seconds(lambda text=query.question: index.search(text, TOP)) for query in queries)  # type: ignore[misc]
    usual, long = 1000 * median(times), 1000 * times[-len(times) // 20]
    print(f"{len(specs)} tools{', with the model' if model else ''}: built in {min(builds):.2f} s")
    print(f"  a question takes {usual:.2f} ms, 95 % of them less than {long:.2f}")


def _fewer_words(queries: Sequence[Query], specs: Sequence[ToolSpec], seed: int) -> list[Query]:
    """Drops words that a tool has from a question, each at random."""
    chance = random.Random(seed)
    known = {stem(word) for spec in specs for word in words(f"{spec.name} {spec.description} {_parameters(spec)}")}

    def fewer(question: str) -> str:
        shared = {word for word in re.findall(r"\w+", question) if known & set(map(stem, words(word)))}
        gone = {word for word in sorted(shared) if chance.random() < 0.5}
        return re.sub(r"\w+", lambda found: "" if found[0] in gone else found[0], question)

    return [Query(fewer(query.question), query.relevant) for query in queries]


def _mean_scores(index: ToolIndex, several: Sequence[Sequence[Query]]) -> list[float]:
    """For each question, the mean over all of its forms."""
    return [mean(forms) for forms in zip(*[scores(index.search, queries) for queries in several], strict=True)]


def _near(weights: Weights, chance: random.Random) -> Weights:
    limits = dict.fromkeys(("name_length", "text_length"), 0.95)
    values = {one.name: getattr(weights, one.name) * 2 ** chance.uniform(-1, 1) for one in fields(weights)}
    return Weights(**{name: min(value, limits.get(name, value)) for name, value in values.items()})


def _seconds(action: Callable[[], object]) -> float:
    """Processor time of all threads, which other programs do not affect."""
    began = time.process_time()
    action()
    return time.process_time() - began


def _parameters(spec: ToolSpec) -> str:
    properties: Mapping[str, Any] = (spec.input_schema or {}).get("properties", {})
    return " ".join(f"{name} {about.get('description', '')}" for name, about in properties.items())


def _lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    main()
