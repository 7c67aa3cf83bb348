"""`@tool` marks a method as a tool. `Tool` describes it: name, schema, how to call it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar, overload

from pydantic import BaseModel

from toolyard.core.errors import DefinitionError
from toolyard.core.forms import Form
from toolyard.core.output import JsonObject, Model

F = TypeVar("F", bound=Callable[..., object])

MARK = "__toolyard_tool__"
TERMINAL = "__toolyard_terminal__"

Turn: TypeAlias = Literal["serial", "concurrent", "exclusive"]
"""How calls of a tool wait for each other in one session: one at a time per tool (the default), freely, or alone."""


class Claim(NamedTuple):
    """The tool that a call runs, and how that call takes turns with the other calls of its session."""

    tool: str
    turn: Turn


@dataclass(frozen=True, slots=True)
class Given:
    """Marks a parameter that the trainer fills in, by its name: `stdin: Annotated[str, Given()] = ""`.

    The value comes with the call on wires that can carry it, such as verl's `extra_fields`, and else from the task. The
    model neither sees nor sets the parameter. If it is `open`, the model may set it, and the model's value wins. With
    `everything`, the parameter gets all values that the trainer sends, as one object.
    """

    open: bool = False
    """The model may set it too."""
    everything: bool = False
    """It gets all values that the trainer sends."""


@dataclass(frozen=True, slots=True)
class Mark:
    name: str | None
    shared: bool
    concurrent: bool
    exclusive: bool
    form: Form | None
    timeout: float | None


@overload
def tool(fn: F, /) -> F: ...
@overload
def tool(
    *,
    name: str | None = None,
    shared: bool = True,
    concurrent: bool = False,
    exclusive: bool = False,
    form: Form | None = None,
    timeout: float | None = None,
) -> Callable[[F], F]: ...
def tool(
    fn: F | None = None,
    /,
    *,
    name: str | None = None,
    shared: bool = True,
    concurrent: bool = False,
    exclusive: bool = False,
    form: Form | None = None,
    timeout: float | None = None,
) -> F | Callable[[F], F]:
    """Offer this method to the model. Its name, docstring and type hints are its definition.

    `shared=False` lists the tool only inside a session. `concurrent=True` lets its calls overlap in one session.
    `exclusive=True` lets no other call run in the session meanwhile. `form` is how a model writes a call of the tool
    as plain text. `timeout` is how many seconds a call may run; the server then stops it, and its outcome is
    `timed_out`.
    """

    def mark(fn: F) -> F:
        if isinstance(written, str) or isinstance(fn, type) or not callable(getattr(fn, "__func__", fn)):
            raise DefinitionError(_not_on_a_method(written, fn))
        if name is not None and not isinstance(name, str):
            raise DefinitionError(f"{fn.__qualname__}: @tool(name={name!r}) is no name; write a str, such as 'find'")
        setattr(fn, MARK, Mark(name, shared, concurrent, exclusive, form, timeout))
        return fn

    written: object = fn
    return mark if fn is None or isinstance(written, str) else mark(fn)


def _not_on_a_method(written: object, fn: object) -> str:
    if isinstance(written, str):
        where = getattr(fn, "__qualname__", repr(fn))
        return f"{where}: write @tool(name={written!r}) instead of @tool({written!r})"
    what = (
        "a property" if isinstance(fn, property) else f"the class {fn.__name__}" if isinstance(fn, type) else repr(fn)
    )
    return f"@tool stands above {what}; it marks a method, as def look(self, place: str)"


def terminal(fn: F) -> F:
    """Let this tool take the agent's last plain message. It is not listed for the model."""
    setattr(fn, TERMINAL, True)
    return fn


class ToolSpec(Model):
    """A tool as the wire shows it."""

    name: str
    description: str
    input_schema: JsonObject | None


class TerminalToolSpec(Model):
    name: str
    arg: str | None = None
    description: str = ""


class ListToolsOutput(Model):
    tools: list[ToolSpec]
    terminal_tool: TerminalToolSpec | None = None
    supports_score_group: bool | None = None
    message_block_types: list[str] | None = None


@dataclass(frozen=True, slots=True)
class Text:
    """A parameter that takes any text, so that its value needs no validation."""

    name: str
    default: str | None
    given: bool
    """The trainer fills it in."""
    written: bool
    """The model may write it."""


@dataclass(frozen=True, slots=True, eq=False)
class Tool:
    spec: ToolSpec
    owner: type
    """The environment or toolset class that has the method."""
    method: str
    arguments: type[BaseModel] | None
    """The model that validates the arguments; None if the tool takes none."""
    whole: bool
    """Whether the method takes an instance of that model, as in ORS, or its fields one by one."""
    is_async: bool
    shared: bool
    terminal: bool
    turn: Turn
    claim: Claim = field(init=False)
    form: Form | None = None
    timeout: float | None = None
    """Seconds that a call may run; None if only the server limits it."""
    given: Mapping[str, Given] = field(default_factory=dict)
    """Parameters that the trainer fills in."""
    texts: Sequence[Text] | None = None
    """The parameters, if all of them take any text. Then arguments that are text skip validation."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "claim", Claim(self.name, self.turn))

    @property
    def name(self) -> str:
        return self.spec.name

    def method_of(self, owner: object) -> Callable[..., Any]:
        """The method to call with the arguments that `fit` returns."""
        method: Callable[..., Any] = getattr(owner, self.method)
        return method

    def fit(self, written: JsonObject, sent: JsonObject, task: JsonObject) -> tuple[Sequence[Any], JsonObject]:
        """Validate the arguments. Return what to call the method with, by position and by name.

        The model wrote `written`. Parameters marked `Given` take their values from `sent`, which the trainer sent with
        this call, and else from the task. Raises pydantic's ValidationError if the arguments do not fit.
        """
        if self.arguments is None:
            return (), {}
        if self.texts is not None and (texts := fit_texts(self.texts, written, sent, task)) is not None:
            return (), texts
        if self.given:
            written = self._with_given(written, sent, task)
        model = self.arguments.model_validate(written)
        if self.whole:
            return (model,), {}
        return (), {name: getattr(model, name) for name in self.arguments.model_fields}

    def _with_given(self, written: JsonObject, sent: JsonObject, task: JsonObject) -> JsonObject:
        """Add the values that the trainer sent with this call, or else those in the task."""
        joined = {**written}
        for name, marked in self.given.items():
            if marked.open and name in written:
                continue
            if marked.everything:
                joined[name] = {**task, **sent}
            elif (value := sent[name] if name in sent else task.get(name)) is not None:
                joined[name] = value
            else:
                joined.pop(name, None)
        return joined

    def terminal_spec(self) -> TerminalToolSpec:
        arg = next(iter(self.arguments.model_fields), None) if self.arguments else None
        return TerminalToolSpec(name=self.name, arg=arg, description=self.spec.description)


def fit_texts(texts: Sequence[Text], written: JsonObject, sent: JsonObject, task: JsonObject) -> dict[str, str] | None:
    """The arguments by name, from the model, the trainer, the task or the default. None if one of them is no text."""
    fitted: dict[str, str] = {}
    for text in texts:
        name = text.name
        if text.written and name in written:
            value = written[name]
        elif text.given:
            value = sent[name] if name in sent else task.get(name)
            if value is None:
                value = text.default
        else:
            value = text.default
        if type(value) is not str:
            return None
        fitted[name] = value
    return fitted
