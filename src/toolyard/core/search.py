"""Which tools of an environment fit a question, those too that are not listed."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from toolyard.core.environment import Environment, full_name
from toolyard.core.retrieval import ToolIndex
from toolyard.core.tool import ToolSpec

SEARCH = "search_tools"
"""The tool that searches is what nobody searches for."""


@dataclass(frozen=True, slots=True)
class _Known:
    """The tools of an environment class, ready to be searched."""

    index: ToolIndex
    specs: Mapping[str, ToolSpec]
    """By the names in the index, which say more than those that tools are called by."""


_known: WeakKeyDictionary[type[Environment], _Known] = WeakKeyDictionary()
_building = threading.Lock()


def search(environment: type[Environment], question: str, top_k: int) -> list[ToolSpec]:
    """Best first. The first time this takes a while if there are many: to be called in a thread."""
    with _building:
        if (known := _known.get(environment)) is None:
            known = _known[environment] = _read(environment)
    return [known.specs[spec.name] for spec in known.index.search(question, top_k)]


def _read(environment: type[Environment]) -> _Known:
    specs = dict(_specs(environment))
    return _Known(ToolIndex([spec.model_copy(update={"name": name}) for name, spec in specs.items()]), specs)


def _specs(environment: type[Environment]) -> Iterator[tuple[str, ToolSpec]]:
    definition = environment._definition
    for known in definition.tools.values():
        if not known.terminal and known.name != SEARCH:
            yield full_name(known.owner, known.name), known.spec
    for owner, spec in definition.catalogue.values():
        yield full_name(owner, spec.name), spec
