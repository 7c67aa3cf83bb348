"""Compares texts by meaning, with the vectors inside the package wordllama. It never downloads anything.

It only reads the package's files. Importing the package would set up the logging of the whole process, and its own
loader asks a server for a file that the package contains.
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
"""How many words to keep with their pieces."""


@functools.cache
def word_vectors() -> WordVectors:
    """Load the vectors, once in a process; forked processes share them."""
    found = importlib.util.find_spec("wordllama")
    for folder in map(Path, (found and found.submodule_search_locations) or ()):
        if (folder / _VECTORS).is_file() and (folder / _PIECES).is_file():
            return WordVectors(folder / _VECTORS, folder / _PIECES)
    raise ModelUnavailable(f"--retrieval embeddings needs the package wordllama, with its model: {_INSTALL}")


class WordVectors:
    """A vector for each piece of a word. The vector of a text is the sum of its pieces."""

    def __init__(self, vectors: Path, pieces: Path) -> None:
        (self._vectors,) = load_file(vectors).values()
        self._tokenizer = Tokenizer.from_file(str(pieces))
        self._pieces = functools.lru_cache(_WORDS_KEPT)(self._look_up)

    def read(self, texts: Sequence[Bag], families: Sequence[int], *, weight: float) -> Comparison:
        return Comparison(self, texts, families, weight)

    def embed(self, text: Bag) -> Vector:
        """The vector of a text, of length 1; or of length 0 if the text has no words."""
        pieces = [self._pieces(word) for word in text]
        weights = np.repeat(np.array([*text.values()], np.float32), [*map(len, pieces)])
        vector: Vector = (self._vectors[[*chain.from_iterable(pieces)]] * weights[:, None]).sum(axis=0)
        return vector / (np.linalg.norm(vector) or 1)

    def _look_up(self, word: str) -> Sequence[int]:
        # One by one: batches start threads, which do not survive a later fork.
        pieces: Sequence[int] = self._tokenizer.encode(word, add_special_tokens=False).ids
        return pieces


class Comparison:
    """Texts to compare another text with."""

    def __init__(self, model: WordVectors, texts: Sequence[Bag], families: Sequence[int], weight: float) -> None:
        self._model = model
        self._vectors = np.array([weight * model.embed(text) for text in texts])
        self._order = np.argsort(families, kind="stable")
        """An order with the members of each family side by side."""
        _, self._starts = np.unique(np.sort(families), return_index=True)

    def __call__(self, text: Bag) -> Sums:
        # Not `@`: BLAS starts threads for it, which on a busy machine cost much more than they save.
        alike = np.maximum(np.vecdot(self._vectors, self._model.embed(text)), 0)
        return alike.tolist(), np.maximum.reduceat(alike[self._order], self._starts).tolist()
