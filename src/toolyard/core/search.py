"""Finds the tools of an environment that fit a question, including those that are not listed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar, Token
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from toolyard.core.environment import Environment, full_name
from toolyard.core.meaning import MeaningModel
from toolyard.core.retrieval import ToolIndex
from toolyard.core.tool import ToolSpec

SEARCH = "search_tools"
"""The name of the tool that searches. No search finds it."""


@dataclass(frozen=True, slots=True)
class _Known:
    """The indexed tools of an environment class."""

    index: ToolIndex
    specs: Mapping[str, ToolSpec]
    """By their names in the index, which may begin with the toolset's name; calls use the short name."""


_known: WeakKeyDictionary[type[Environment], dict[MeaningModel | None, _Known]] = WeakKeyDictionary()
_building = threading.Lock()
_model: ContextVar[MeaningModel | None] = ContextVar("model", default=None)


def use_model(model: MeaningModel | None) -> Token[MeaningModel | None]:
    """Let searches use this model, in this context and in contexts copied from it."""
    return _model.set(model)


def indexed(specs: Sequence[ToolSpec]) -> ToolIndex:
    """Index these tools. Call it in a thread: with many tools it takes a while."""
    return ToolIndex(specs, model=_model.get())


def search(environment: type[Environment], question: str, top_k: int) -> list[ToolSpec]:
    """The tools that fit, best first. Call it in a thread: the first call indexes the tools, which may take a while."""
    model = _model.get()
    with _building:
        of_class = _known.setdefault(environment, {})
        if (known := of_class.get(model)) is None:
            known = of_class[model] = _read(environment)
    return [known.specs[spec.name] for spec in known.index.search(question, top_k)]


def own_first(
    own: Sequence[ToolSpec], others: Callable[[str, int], Sequence[ToolSpec]], question: str, top_k: int
) -> list[ToolSpec]:
    """Search the tools that only one session has, then the others.

    A session's own tools come first if they fit, since they were made for its task, but are at most half of the result.
    Only words decide whether they fit: a model finds everything a little like everything.
    """
    first = ToolIndex(own).search(question, (top_k + 1) // 2) if own else []
    return list({spec.name: spec for spec in (*first, *others(question, top_k))}.values())[: max(top_k, 0)]


def _read(environment: type[Environment]) -> _Known:
    specs = dict(_specs(environment))
    return _Known(indexed([spec.model_copy(update={"name": name}) for name, spec in specs.items()]), specs)


def _specs(environment: type[Environment]) -> Iterator[tuple[str, ToolSpec]]:
    definition = environment._definition
    for known in definition.tools.values():
        if not known.terminal and known.name != SEARCH:
            yield full_name(known.owner, known.name), known.spec
    for owner, spec in definition.catalogue.values():
        yield full_name(owner, spec.name), spec
