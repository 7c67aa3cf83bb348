"""Parameters that take any text: such arguments need no validation, and fitting them costs next to nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from toolyard.core.output import JsonObject

FitTexts: TypeAlias = Callable[[JsonObject, JsonObject, JsonObject], tuple[str, ...] | None]
"""Of what the model wrote, what the trainer says, and the task: the arguments by position; None if one is no text."""


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


def fit_of(texts: Sequence[Text]) -> FitTexts:
    """A function of the parameters, of which there is at least one.

    Its source is put together here, as `dataclasses` does it: a loop over the parameters for each call would take
    longer than many a tool.
    """
    places = range(len(texts))
    lines = [f"    text_{i} = {texts[i].written_out(f'default_{i}')}" for i in places]
    fitting = " and ".join(f"type(text_{i}) is str" for i in places)
    found = "".join(f"text_{i}, " for i in places)
    source = "\n".join(["def fit(written, said, task):", *lines, f"    return ({found}) if {fitting} else None"])
    made: dict[str, Any] = {f"default_{i}": texts[i].default for i in places}
    exec(source, made)  # names of parameters, quoted, and nothing else of the author's
    fit: FitTexts = made["fit"]
    return fit
