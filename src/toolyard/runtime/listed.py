"""Checks what the hooks that list splits and tasks return: each error names the value, and what to return instead."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from toolyard.core.environment import Environment, Split, as_split
from toolyard.core.errors import DefinitionError
from toolyard.core.output import JsonObject

_SHOWN = 80
"""The most characters of a value to show in an error."""


def as_splits(environment: type[Environment], listed: Any) -> Sequence[Split]:
    where = f"{environment.__qualname__}.list_splits()"
    if isinstance(listed, str | bytes):
        raise DefinitionError(f"{where} returned {shown(listed)}; return a list, such as [{listed!r}]")
    if not isinstance(listed, Iterable):
        raise DefinitionError(f"{where} returned {shown(listed)}; return a list, such as ['train', 'test']")
    splits = list(listed)
    for split in splits:
        if not isinstance(split, str | Split):
            raise DefinitionError(f"{where} lists {shown(split)}; a split is a name, such as 'train', or a Split")
    return [as_split(split) for split in splits]


def as_tasks(environment: type[Environment], split: str, listed: Any) -> Sequence[JsonObject]:
    """The list of tasks, unchanged. Checks every task of a list or tuple; other sequences may be lazy."""
    where = f"{environment.__qualname__}.list_tasks({split!r})"
    if isinstance(listed, str | bytes | Mapping) or not (hasattr(listed, "__len__") and hasattr(listed, "__getitem__")):
        advice = "return list(…) of it" if hasattr(listed, "__next__") else "return a list of dicts, one for each task"
        raise DefinitionError(f"{where} returned {shown(listed)}; {advice}")
    if isinstance(listed, list | tuple):
        for index, task in enumerate(listed):
            if type(task) is not dict:  # nearly all are, and there may be millions
                check_task(environment, split, index, task)
    tasks: Sequence[JsonObject] = listed
    return tasks


def as_count(environment: type[Environment], split: str, number: object) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        where = f"{environment.__qualname__}.num_tasks({split!r})"
        raise DefinitionError(f"{where} returned {shown(number)}; return how many tasks there are, 0 or more")
    return number


def check_task(environment: type[Environment], split: str, index: int, task: object) -> None:
    if not isinstance(task, Mapping):
        example = "task.model_dump()" if hasattr(task, "model_dump") else '{"question": …}'
        raise DefinitionError(
            f"{_name(environment, split, index)} is {shown(task)}; a task is a dict, such as {example}"
        )


def copied(environment: type[Environment], split: str, index: int, task: JsonObject) -> JsonObject:
    """A copy for one session: what it does to its task must not reach the list that all sessions share."""
    try:
        return copy.deepcopy(task)
    except Exception as error:  # raised by an object in the task, such as a lock or an open file
        path, culprit = _not_copied(task)
        raise DefinitionError(
            f"{_name(environment, split, index)} cannot be copied for its session: {path} is {shown(culprit)} "
            f"({error}). A task holds text, numbers, lists and dicts; make the rest in setup()"
        ) from error


def shown(value: object) -> str:
    """`'train', a str`: an author's value, shortened, and its type."""
    if value is None:
        return "None (is a return missing?)"
    kind = type(value).__name__
    try:
        text = repr(value)
    except Exception:  # the author's __repr__
        text = f"<{kind}>"
    text = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
    return f"{text}, {'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}"


def _name(environment: type[Environment], split: str, index: int) -> str:
    return f"task {index} of {environment.__qualname__}.list_tasks({split!r})"


def _not_copied(value: object, path: str = "it") -> tuple[str, object]:
    """The innermost part that cannot be copied, and the way to it: `it['board'][3]`."""
    inner: Iterable[tuple[object, object]] = ()
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list | tuple):
        inner = enumerate(value)
    for key, part in inner:
        try:
            copy.deepcopy(part)
        except Exception:  # as above, for one part
            return _not_copied(part, f"{path}[{key!r}]")
    return path, value
