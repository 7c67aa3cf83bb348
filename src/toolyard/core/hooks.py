"""Checks the hooks that an author wrote when the class is defined: each error says what was there and what to write.

A hook is a method that the server calls, such as `list_tasks`. Nothing here runs code of the author.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from types import CodeType
from typing import Any

from toolyard.core.errors import DefinitionError
from toolyard.core.nearness import is_near, same_letters
from toolyard.core.tool import MARK

CLASS_HOOKS: Mapping[str, Sequence[str]] = {
    "name": (),
    "list_splits": (),
    "list_tasks": ("split",),
    "num_tasks": ("split",),
    "get_task": ("split", "index"),
    "list_tools": (),
}
INSTANCE_HOOKS: Mapping[str, Sequence[str]] = {
    "setup": (),
    "teardown": (),
    "get_prompt": (),
    "get_messages": (),
    "list_task_tools": (),
    "call_task_tool": ("name", "arguments"),
    "workspace": (),
    "fork": (),
    "score_group": ("candidates",),
}
TOOLSET_HOOKS: Mapping[str, Sequence[str]] = {
    "teardown": (),
    "list_task_tools": (),
    "call_task_tool": ("name", "arguments"),
    "fork": ("env",),
}
"""The hooks of an environment that the server asks of the class, those that it asks of an instance, and those of a
toolset. Each with the parameters that it takes after `cls` or `self`."""

_RETURNED = {
    "list_splits": "return a list, such as ['train', 'test']",
    "list_tasks": "return a list of dicts, one for each task",
    "get_prompt": "return the whole prompt",
    "setup": "write it without yield, and put what follows the yield into teardown()",
}
"""What to write instead of `yield`."""
_WRONG_HINTS = {"list_splits": ("str",), "list_tasks": ("str", "dict")}
"""Types that a hook cannot return, as authors annotate them."""


def check_hooks(cls: type, base: type) -> None:
    """Check every hook of an environment. `base` is `Environment`."""
    for hook, parameters in CLASS_HOOKS.items():
        if not isinstance(inspect.getattr_static(cls, hook), classmethod | staticmethod):
            raise DefinitionError(_no_classmethod(cls, hook, parameters))
        _check_hook(cls, base, hook, "cls", parameters)
    for hook, parameters in INSTANCE_HOOKS.items():
        _check_hook(cls, base, hook, "self", parameters)
    _check_constructor(cls, base)
    _check_names(cls, base, {**CLASS_HOOKS, **INSTANCE_HOOKS})


def check_toolset_hooks(cls: type, base: type) -> None:
    """The same for a toolset. `base` is `Toolset`."""
    for hook, parameters in TOOLSET_HOOKS.items():
        _check_hook(cls, base, hook, "self", parameters)
    _check_names(cls, base, TOOLSET_HOOKS)


def function_of(cls: type, hook: str) -> object:
    value = getattr(cls, hook)
    return getattr(value, "__func__", value)


# One hook.


def _no_classmethod(cls: type, hook: str, parameters: Sequence[str]) -> str:
    where, value = f"{cls.__qualname__}.{hook}", inspect.getattr_static(cls, hook)
    written = signature(hook, "cls", parameters)
    if inspect.isfunction(value):
        return f"{where} is asked of the class: it needs @classmethod. Write @classmethod above def {written}"
    return f"{where} is {_shown(value)}; write it as a method, @classmethod and below it def {written}"


def _check_hook(cls: type, base: type, hook: str, first: str, parameters: Sequence[str]) -> None:
    function = function_of(cls, hook)
    if function is function_of(base, hook):
        return
    where, written = f"{cls.__qualname__}.{hook}", signature(hook, first, parameters)
    if not callable(function):
        raise DefinitionError(f"{where} is {_shown(function)}; write it as a method: def {written}")
    args = [None] * len(parameters) if first == "cls" else [None] * (1 + len(parameters))
    try:
        inspect.signature(getattr(cls, hook)).bind(*args)
    except TypeError:
        raise DefinitionError(
            f"{where} does not take the arguments that the server gives it: it is written as "
            f"{hook}{inspect.signature(function)}; write def {written}"
        ) from None
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise DefinitionError(f"{where} yields; {_RETURNED.get(hook, 'write it without yield')}")
    if (hint := _return_hint(function)) in _WRONG_HINTS.get(hook, ()):
        raise DefinitionError(f"{where} is written to return a {hint}; {_RETURNED[hook]}")


def signature(hook: str, first: str, parameters: Sequence[str]) -> str:
    """`list_tasks(cls, split)`."""
    return f"{hook}({', '.join((first, *parameters))})"


def _return_hint(function: object) -> str:
    try:
        hint = getattr(function, "__annotations__", {}).get("return")
    except NameError:  # since Python 3.14, hints are evaluated here, and a name in them may be defined further below
        return ""
    return hint.__name__ if isinstance(hint, type) else str(hint)


def _shown(value: object) -> str:
    if isinstance(value, property):
        return "a property"
    text = repr(value)
    return f"{text if len(text) <= 60 else f'{text[:60]}…'}, a {type(value).__name__}"


# The constructor.


def _check_constructor(cls: type, base: type) -> None:
    function = cls.__init__  # type: ignore[misc]  # the constructor of this class itself
    if function is base.__init__:  # type: ignore[misc]
        return
    where = f"{cls.__qualname__}.__init__"
    try:
        inspect.signature(function).bind(None, task_spec={}, secrets={})
    except TypeError as error:
        raise DefinitionError(
            f"{where} must accept the keywords task_spec and secrets: {error}. Write "
            f"def __init__(self, task_spec={{}}, secrets={{}})"
        ) from error
    if inspect.isfunction(function) and not _calls_or_replaces_super(cls, function):
        raise DefinitionError(without_super(cls))


def without_super(cls: type) -> str:
    return (
        f"{cls.__qualname__}.__init__ does not call the constructor of Environment, which sets self.task_spec and "
        f"self.secrets: begin it with super().__init__(task_spec, secrets)"
    )


def _calls_or_replaces_super(cls: type, function: Any) -> bool:
    """Whether the constructor, or a method that it calls, names `__init__` or `task_spec`. It may also set attributes
    by other means, which its code does not show."""
    seen: set[str] = set()
    todo: list[Callable[..., Any]] = [inspect.unwrap(function), function]
    while todo:
        code = getattr(todo.pop(), "__code__", None)
        if code is None:
            return True
        names = _names_in(code)
        if names & {"__init__", "task_spec", "setattr", "__dict__", "vars"}:
            return True
        for name in names - seen:
            called = inspect.getattr_static(cls, name, None)
            todo += [found] if inspect.isfunction(found := getattr(called, "__func__", called)) else []
        seen |= names
    return False


# Names that resemble a hook's.


def _check_names(cls: type, base: type, hooks: Mapping[str, Sequence[str]]) -> None:
    """Refuse a misspelt hook, such as `list_task` or `tear_down`.

    A helper of the author may resemble a hook by chance. It is refused only if the server could call it like the hook,
    the class has no hook of the right name, and no code of the class mentions the helper.
    """
    missing = {hook for hook in hooks if function_of(cls, hook) is function_of(base, hook)}
    own = [one for one in cls.__mro__ if one is cls or not issubclass(one, base)]
    used: Set[str] | None = None
    for owner in own:
        for name, value in vars(owner).items():
            if name.startswith("_") or hasattr(base, name):
                continue
            function = getattr(value, "__func__", value)
            if not inspect.isfunction(function) or hasattr(function, MARK):
                continue
            for hook in _resembled(name, missing):
                used = _used_in(cls.__mro__) if used is None else used
                if name not in used and _takes(value, function, hooks[hook]):
                    written = signature(hook, "cls" if _is_of_class(base, hook) else "self", hooks[hook])
                    raise DefinitionError(
                        f"{owner.__qualname__}.{name} is no hook, and nothing calls it: did you mean {written}? If it "
                        f"is a method of your own, begin its name with _"
                    )


def _is_of_class(base: type, hook: str) -> bool:
    return isinstance(inspect.getattr_static(base, hook), classmethod)


def _resembled(name: str, missing: Set[str]) -> Iterator[str]:
    """The hooks that the author may have meant. Where the class works without the hook, a name that makes sense by
    itself is the author's own: `get_message` beside `get_messages`, or `workplace` beside `workspace`."""
    needed = _needed(missing)
    for hook in sorted(missing):
        wanted = hook in needed
        slip = is_near(name, hook) and (wanted or not _is_another_word(name, hook))
        if same_letters(name, hook) or slip:
            yield hook


def _needed(missing: Set[str]) -> Set[str]:
    """The hooks without which the class cannot work as far as it is written."""
    needed = set(missing & {"list_splits"})
    if "list_tasks" in missing:
        needed |= missing & {"num_tasks", "get_task"}
        if {"num_tasks", "get_task"} & missing:
            needed.add("list_tasks")
    if {"get_prompt", "get_messages"} <= missing:
        needed |= {"get_prompt", "get_messages"}
    if "list_task_tools" not in missing:
        needed |= missing & {"call_task_tool"}
    return needed


def _is_another_word(name: str, hook: str) -> bool:
    """Whether they differ in number, or in one letter in the same place, which makes other words more often than slips
    do."""
    in_number = f"{name}s" == hook or name == f"{hook}s" or name.rstrip("0123456789") != name
    return in_number or (len(name) == len(hook) and sorted(name) != sorted(hook))


def _takes(value: object, function: Callable[..., Any], parameters: Sequence[str]) -> bool:
    first = () if isinstance(value, staticmethod) else (None,)
    try:
        inspect.signature(function).bind(*first, *parameters)
    except TypeError:
        return False
    return True


def _used_in(classes: Iterable[type]) -> Set[str]:
    """Every name that the code of these classes mentions."""
    functions = [part for cls in classes for value in vars(cls).values() for part in _parts_of(value)]
    codes = [getattr(getattr(function, "__func__", function), "__code__", None) for function in functions]
    return {name for code in codes if code is not None for name in _names_in(code)}


def _parts_of(value: object) -> Sequence[object]:
    return (value.fget, value.fset, value.fdel) if isinstance(value, property) else (value,)


def _names_in(code: CodeType) -> Set[str]:
    names = set(code.co_names) | {const for const in code.co_consts if isinstance(const, str) and const.isidentifier()}
    for const in code.co_consts:
        if isinstance(const, CodeType):
            names |= _names_in(const)
    return names
