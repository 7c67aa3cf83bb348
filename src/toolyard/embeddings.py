"""What texts mean, by the vectors that the package wordllama has inside it: nothing is downloaded, ever.

Only its files are used. To import it would set up the logging of the whole process, and its own loader asks a server
for a file that lies beside it.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from toolyard.core.errors import ModelUnavailable
from toolyard.core.meaning import Bag, Sums

_INSTALL = "pip install 'toolyard[embeddings]'"

try:
    import numpy as np
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer
except ImportError as missing:
    raise ModelUnavailable(f"--retrieval embeddings needs the package wordllama: {_INSTALL}") from missing

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Vector: TypeAlias = NDArray[np.float32]

_VECTORS = "weights/l2_supercat_256.safetensors"
_PIECES = "tokenizers/l2_supercat_tokenizer_config.json"
_WORDS_KEPT = 2**15
"""Whose pieces are not looked up again."""


@functools.cache
def word_vectors() -> WordVectors:
    """Loaded once in a process, and shared with those that are forked from it."""
    found = importlib.util.find_spec("wordllama")
    for folder in map(Path, (found and found.submodule_search_locations) or ()):
        if (folder / _VECTORS).is_file() and (folder / _PIECES).is_file():
            return WordVectors(folder / _VECTORS, folder / _PIECES)
    raise ModelUnavailable(f"--retrieval embeddings needs the package wordllama, with its model: {_INSTALL}")


class WordVectors:
    """A vector for each piece that words are made of. That of a text is the sum of all of its pieces'."""

    def __init__(self, vectors: Path, pieces: Path) -> None:
        (self._vectors,) = load_file(vectors).values()
        self._tokenizer = Tokenizer.from_file(str(pieces))
        self._pieces = functools.lru_cache(_WORDS_KEPT)(self._look_up)

    def read(self, texts: Sequence[Bag], families: Sequence[int], *, weight: float) -> Comparison:
        return Comparison(self, texts, families, weight)

    def embed(self, text: Bag) -> Vector:
        """Of length 1; or 0, if the text has no words."""
        pieces = [self._pieces(word) for word in text]
        weights = np.repeat(np.array([*text.values()], np.float32), [*map(len, pieces)])
        vector: Vector = (self._vectors[[*chain.from_iterable(pieces)]] * weights[:, None]).sum(axis=0)
        return vector / (np.linalg.norm(vector) or 1)

    def _look_up(self, word: str) -> Sequence[int]:
        # One by one, and not in batches: those start threads, which a process that is forked later does not have.
        pieces: Sequence[int] = self._tokenizer.encode(word, add_special_tokens=False).ids
        return pieces


class Comparison:
    """Texts that others are compared with."""

    def __init__(self, model: WordVectors, texts: Sequence[Bag], families: Sequence[int], weight: float) -> None:
        self._model = model
        self._vectors = np.array([weight * model.embed(text) for text in texts])
        self._order = np.argsort(families, kind="stable")
        """Relatives side by side."""
        _, self._starts = np.unique(np.sort(families), return_index=True)

    def __call__(self, text: Bag) -> Sums:
        # Not with `@`: BLAS starts threads for it, which on a busy machine cost many times what they save.
        alike = np.maximum(np.vecdot(self._vectors, self._model.embed(text)), 0)
        return alike.tolist(), np.maximum.reduceat(alike[self._order], self._starts).tolist()
