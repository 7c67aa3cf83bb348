"""Parameters that take any text: such arguments need no validation, and fitting them costs next to nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from keyword import iskeyword
from typing import Any, TypeAlias

from toolyard.core.output import JsonObject

CallTexts: TypeAlias = Callable[[object, JsonObject, JsonObject, JsonObject], Any]  # what the method returns
"""Of the object that has the method, what the model wrote, what the trainer says, and the task."""

UNFIT = object()
"""Returned in the place of a call if an argument is no text."""


@dataclass(frozen=True, slots=True)
class Text:
    name: str
    default: str | None
    given: bool
    """The trainer fills it in."""
    written: bool
    """The model may write it."""

    def written_out(self, default: str) -> str:
        """Its value, as Python is written; `default` is what the default is called there."""
        name = repr(self.name)
        if not self.given:
            return f"written.get({name}, {default})"
        said = f"said[{name}] if {name} in said else task.get({name})"
        filled_in = f"{default} if (value := {said}) is None else value"
        return f"written[{name}] if {name} in written else {filled_in}" if self.written else filled_in


def caller_of(method: str, texts: Sequence[Text]) -> CallTexts | None:
    """Calls a method that takes nothing else. None if it has no name that can be written.

    Its source is put together here, as `dataclasses` does it: a loop over the parameters for each call would take
    longer than many a tool.
    """
    if not method.isidentifier() or not method.isascii() or iskeyword(method):
        return None
    places = range(len(texts))
    lines = [f"    text_{i} = {texts[i].written_out(f'default_{i}')}" for i in places]
    fitting = " and ".join(f"type(text_{i}) is str" for i in places) or "True"
    called = f"owner.{method}({', '.join(f'text_{i}' for i in places)})"
    source = ["def call(owner, written, said, task):", *lines, f"    return {called} if {fitting} else unfit"]
    made: dict[str, Any] = {"unfit": UNFIT, **{f"default_{i}": texts[i].default for i in places}}
    exec("\n".join(source), made)  # names, of which those of parameters are quoted, and nothing else of the author's
    call: CallTexts = made["call"]
    return call
