"""`@tool` marks a method; `Tool` is what we know of it: name, schema, how to call it.

A tool is read once, when its class is defined. Whatever is wrong with it is a `DefinitionError` then.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self, TypeAlias, TypeVar, get_type_hints, overload

import docstring_parser
from pydantic import BaseModel, Field, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo

from toolyard.core.errors import DefinitionError
from toolyard.core.forms import Form
from toolyard.core.output import JsonObject, Model
from toolyard.core.texts import CallTexts, Text, caller_of

F = TypeVar("F", bound=Callable[..., object])

_MARK = "__toolyard_tool__"
_TERMINAL = "__toolyard_terminal__"

Turn: TypeAlias = Literal["serial", "concurrent", "exclusive"]
"""How calls of a tool wait for each other in one session: one at a time per tool (the default), freely, or alone."""


@dataclass(frozen=True, slots=True)
class Given:
    """Marks a parameter that the trainer fills in, by its name: `stdin: Annotated[str, Given()] = ""`.

    The value comes with the call where a wire has such a thing, as verl's `extra_fields`, or else from the task. The
    model neither sees nor sets it, unless it is `open`: then what the model writes comes first. A parameter that wants
    `everything` gets all that the trainer says, as one object.
    """

    open: bool = False
    everything: bool = False


@dataclass(frozen=True, slots=True)
class _Mark:
    name: str | None
    shared: bool
    concurrent: bool
    exclusive: bool
    form: Form | None


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
) -> F | Callable[[F], F]:
    """Offer this method to the model. Its name, docstring and type hints are its definition.

    `shared=False` lists it only inside a session. `concurrent=True` lets calls of it overlap in one session;
    `exclusive=True` lets nothing else run in the session meanwhile. `form` is how a model writes a call of it in
    plain text.
    """

    def mark(fn: F) -> F:
        setattr(fn, _MARK, _Mark(name, shared, concurrent, exclusive, form))
        return fn

    return mark if fn is None else mark(fn)


def terminal(fn: F) -> F:
    """Make this tool the one that takes the agent's last plain message; the model never sees it listed."""
    setattr(fn, _TERMINAL, True)
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


@dataclass(frozen=True, slots=True, eq=False)
class Tool:
    spec: ToolSpec
    owner: type
    """The environment or toolset class that has the method."""
    method: str
    arguments: type[BaseModel] | None
    """What the arguments are validated with; None when there are none."""
    whole: bool
    """Whether the method takes that model itself, as in ORS, or its fields one by one."""
    is_async: bool
    shared: bool
    terminal: bool
    turn: Turn
    form: Form | None = None
    given: Mapping[str, Given] = field(default_factory=dict)
    """Parameters that the trainer fills in."""
    call_texts: CallTexts | None = None
    """Calls the method with arguments that are text, if all of its parameters are."""

    @property
    def name(self) -> str:
        return self.spec.name

    @classmethod
    def of(cls, owner: type, method: str) -> Self:
        """Read one marked method, or say exactly what is wrong with it."""
        where = f"{owner.__qualname__}.{method}"
        fn = getattr(owner, method)
        mark: _Mark = getattr(fn, _MARK)
        is_terminal = getattr(fn, _TERMINAL, False)
        if mark.concurrent and (mark.exclusive or is_terminal):
            raise DefinitionError(f"{where}: a tool that must run alone cannot be concurrent=True")
        if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
            raise DefinitionError(f"{where}: a tool returns its output, it does not yield")
        doc = inspect.getdoc(fn) or ""
        parameters = _parameters(owner, method)
        model = next(iter(parameters.values())) if len(parameters) == 1 else None
        if whole := _is_model(model):
            arguments, description = model, doc
        else:
            arguments, description = _model_of(method, parameters, doc, where)
        given = _given(parameters, where)
        hidden = frozenset(name for name, marked in given.items() if not marked.open)
        if is_terminal and arguments is not None and len(arguments.model_fields) > 1:
            names = ", ".join(arguments.model_fields)
            raise DefinitionError(f"{where}: a terminal tool takes the one message, but this one takes {names}")
        return cls(
            spec=ToolSpec(
                name=mark.name or method, description=description, input_schema=_schema_of(arguments, hidden, where)
            ),
            owner=owner,
            method=method,
            arguments=arguments,
            whole=whole,
            is_async=inspect.iscoroutinefunction(fn),
            shared=mark.shared,
            terminal=is_terminal,
            turn="exclusive" if mark.exclusive or is_terminal else "concurrent" if mark.concurrent else "serial",
            form=mark.form,
            given=given,
            call_texts=None if whole else _call_texts(fn, method, parameters),
        )

    def method_of(self, owner: object) -> Callable[..., Any]:
        """What is to be called with what `fit` makes of the arguments."""
        method: Callable[..., Any] = getattr(owner, self.method)
        return method

    def fit(self, written: JsonObject, said: JsonObject, task: JsonObject) -> tuple[Sequence[Any], JsonObject]:
        """What to call the method with, by position and by name: what the model wrote, and what the trainer gives for
        parameters marked `Given`.

        Raises pydantic's ValidationError when the arguments do not fit.
        """
        if self.arguments is None:
            return (), {}
        if self.given:
            written = self._with_given(written, said, task)
        model = self.arguments.model_validate(written)
        if self.whole:
            return (model,), {}
        return (), {name: getattr(model, name) for name in self.arguments.model_fields}

    def _with_given(self, written: JsonObject, said: JsonObject, task: JsonObject) -> JsonObject:
        """What the trainer says counts now, or else said with the task."""
        joined = {**written}
        for name, marked in self.given.items():
            if marked.open and name in written:
                continue
            if marked.everything:
                joined[name] = {**task, **said}
            elif (value := said[name] if name in said else task.get(name)) is not None:
                joined[name] = value
            else:
                joined.pop(name, None)
        return joined

    def terminal_spec(self) -> TerminalToolSpec:
        arg = next(iter(self.arguments.model_fields), None) if self.arguments else None
        return TerminalToolSpec(name=self.name, arg=arg, description=self.spec.description)


def tools_of(owner: type) -> Iterator[Tool]:
    """The tools of a class in definition order, inherited ones first. A subclass drops one with `name = None`."""
    names = dict.fromkeys(name for cls in reversed(owner.__mro__) for name in vars(cls))
    for name in names:
        _check_mark(owner, name)
        value = getattr(owner, name, None)
        if hasattr(value, _MARK):
            yield Tool.of(owner, name)
        elif hasattr(value, _TERMINAL):
            raise DefinitionError(f"{owner.__qualname__}.{name}: @terminal marks a tool; it needs @tool as well")


def _check_mark(owner: type, name: str) -> None:
    """Refuse what looks like a tool and would silently not be one."""
    where, value, *inherited = (
        found for cls in owner.__mro__ if name in vars(cls) for found in (cls.__qualname__, vars(cls)[name])
    )
    wrapped = getattr(value, "__func__", value)
    if isinstance(value, classmethod) and (hasattr(value, _MARK) or hasattr(wrapped, _MARK)):
        raise DefinitionError(f"{where}.{name}: a tool is a method of the session; it cannot be a classmethod")
    for mark, decorator in ((_MARK, "tool"), (_TERMINAL, "terminal")):
        if isinstance(value, staticmethod) and hasattr(value, mark) and not hasattr(wrapped, mark):
            raise DefinitionError(f"{where}.{name}: write @staticmethod above @{decorator}")
    if value is None or hasattr(wrapped, _MARK):
        return
    for above in inherited[1::2]:
        if above is None:
            return
        if hasattr(getattr(above, "__func__", above), _MARK):
            raise DefinitionError(
                f"{where}.{name} overrides a tool: decorate it with @tool too, or drop the tool with {name} = None"
            )


def _parameters(owner: type, method: str) -> dict[str, Any]:
    """Each parameter with its hint; where there is a default, as Annotated[hint, Field(default=…)]."""
    where = f"{owner.__qualname__}.{method}"
    fn = inspect.unwrap(getattr(owner, method))
    try:
        hints = get_type_hints(fn, include_extras=True)
    except Exception as error:  # the author's annotations can raise anything when they are evaluated
        raise DefinitionError(
            f"{where}: its type hints cannot be read ({error}). Names used in them must be defined at the top "
            f"level of the module, above the class"
        ) from error
    found: dict[str, Any] = {}
    for p in list(inspect.signature(fn).parameters.values())[0 if _is_static(owner, method) else 1 :]:
        if p.kind not in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
            raise DefinitionError(f"{where}: parameter {p} cannot be described to a model; name each parameter")
        if p.name not in hints:
            raise DefinitionError(f"{where}: parameter {p.name!r} needs a type hint")
        found[p.name] = hints[p.name] if p.default is p.empty else (hints[p.name], p.default)
    return found


def _is_static(owner: type, method: str) -> bool:
    return isinstance(inspect.getattr_static(owner, method), staticmethod)


def _is_model(hint: object) -> bool:
    return isinstance(hint, type) and issubclass(hint, BaseModel)


def _model_of(method: str, parameters: Mapping[str, Any], doc: str, where: str) -> tuple[type[BaseModel] | None, str]:
    """A model with one field per plain parameter, each described by its line in the docstring."""
    if not parameters:
        return None, doc
    parsed = docstring_parser.parse(doc)
    described = {param.arg_name: param.description for param in parsed.params if param.description}
    fields: dict[str, Any] = {}
    for name, value in parameters.items():
        hint, default = value if isinstance(value, tuple) else (value, ...)
        if name in described:
            hint = Annotated[hint, Field(description=described[name])]
        fields[name] = (hint, default)
    try:
        model = create_model(method, **fields)
    except (PydanticUserError, NameError, TypeError) as error:
        raise DefinitionError(f"{where}: no JSON schema can be made of its parameters: {error}") from error
    return model, (parsed.description or "").strip() if described else doc


def _given(parameters: Mapping[str, Any], where: str) -> Mapping[str, Given]:
    found: dict[str, Given] = {}
    for name, value in parameters.items():
        hint = value[0] if isinstance(value, tuple) else value
        for marked in getattr(hint, "__metadata__", ()):
            if isinstance(marked, Given):
                if not isinstance(value, tuple):
                    raise DefinitionError(f"{where}: {name!r} may not be given, so it needs a default")
                found[name] = marked
    return found


def _call_texts(fn: Callable[..., object], method: str, parameters: Mapping[str, Any]) -> CallTexts | None:
    named_only = [p for p in inspect.signature(fn).parameters.values() if p.kind is p.KEYWORD_ONLY]
    if named_only or hasattr(fn, "__wrapped__"):  # what wraps it may look for the names of the arguments
        return None
    texts: list[Text] = []
    for name, value in parameters.items():
        hint, default = value if isinstance(value, tuple) else (value, None)
        marks = getattr(hint, "__metadata__", ())
        given = next((mark for mark in marks if isinstance(mark, Given)), None)
        if len(marks) > (given is not None) or getattr(hint, "__origin__", hint) is not str:
            return None
        if isinstance(default, FieldInfo):  # which says more of the text than what it is by default
            return None
        texts.append(Text(name, default, given=given is not None, written=given is None or given.open))
    return caller_of(method, texts)


def _schema_of(arguments: type[BaseModel] | None, hidden: Set[str], where: str) -> JsonObject | None:
    if arguments is None:
        return None
    try:
        schema = arguments.model_json_schema()
    except PydanticUserError as error:
        raise DefinitionError(f"{where}: no JSON schema can be made of its parameters: {error}") from error
    if hidden:
        schema["properties"] = {name: value for name, value in schema["properties"].items() if name not in hidden}
    return schema
