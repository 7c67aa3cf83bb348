"""Reads the tools of a class when it is defined. Raises `DefinitionError` for a tool that is written wrong."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import docstring_parser
from pydantic import BaseModel, Field, create_model
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from pydantic.fields import FieldInfo

from toolyard.core.errors import DefinitionError
from toolyard.core.output import JsonObject
from toolyard.core.tool import MARK, TERMINAL, Given, Mark, Text, Tool, ToolSpec


def tools_of(owner: type) -> Iterator[Tool]:
    """The tools of a class in definition order, inherited ones first. A subclass drops one with `name = None`."""
    names = dict.fromkeys(name for cls in reversed(owner.__mro__) for name in vars(cls))
    for name in names:
        _check_mark(owner, name)
        value = getattr(owner, name, None)
        if hasattr(value, MARK):
            yield tool_of(owner, name)
        elif hasattr(value, TERMINAL):
            raise DefinitionError(f"{owner.__qualname__}.{name}: @terminal marks a tool; it needs @tool as well")


def tool_of(owner: type, method: str) -> Tool:
    """Read one marked method. Raise `DefinitionError` with exactly what is wrong with it."""
    where = f"{owner.__qualname__}.{method}"
    fn = getattr(owner, method)
    mark: Mark = getattr(fn, MARK)
    is_terminal = getattr(fn, TERMINAL, False)
    _check_options(mark, where, is_terminal=is_terminal)
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise DefinitionError(f"{where}: a tool returns its output, it does not yield")
    doc = inspect.getdoc(fn) or ""
    if not _is_static(owner, method):
        _check_self(inspect.unwrap(fn), doc, where)
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
    return Tool(
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
        timeout=mark.timeout,
        given=given,
        texts=None if whole else _texts(parameters),
    )


def _check_options(mark: Mark, where: str, *, is_terminal: bool) -> None:
    if mark.concurrent and (mark.exclusive or is_terminal):
        raise DefinitionError(f"{where}: a tool that must run alone cannot be concurrent=True")
    if mark.timeout is not None and not is_duration(mark.timeout):
        raise DefinitionError(f"{where}: timeout is {mark.timeout!r}; it must be a positive number of seconds")


def is_duration(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _check_mark(owner: type, name: str) -> None:
    """Refuse a method that looks like a tool and would silently not be one."""
    where, value, *inherited = (
        found for cls in owner.__mro__ if name in vars(cls) for found in (cls.__qualname__, vars(cls)[name])
    )
    wrapped = getattr(value, "__func__", value)
    if isinstance(value, classmethod) and (hasattr(value, MARK) or hasattr(wrapped, MARK)):
        raise DefinitionError(f"{where}.{name}: a tool is a method of the session; it cannot be a classmethod")
    for mark, decorator in ((MARK, "tool"), (TERMINAL, "terminal")):
        if isinstance(value, staticmethod) and hasattr(value, mark) and not hasattr(wrapped, mark):
            raise DefinitionError(f"{where}.{name}: write @staticmethod above @{decorator}")
    if isinstance(value, property) and hasattr(value.fget, MARK):
        raise DefinitionError(f"{where}.{name} is a property; a tool is a method: leave out @property")
    if value is None or hasattr(wrapped, MARK):
        return
    for above in inherited[1::2]:
        if above is None:
            return
        if hasattr(getattr(above, "__func__", above), MARK):
            raise DefinitionError(
                f"{where}.{name} overrides a tool: decorate it with @tool too, or drop the tool with {name} = None"
            )


def _parameters(owner: type, method: str) -> dict[str, Any]:
    """Each parameter with its hint; where there is a default, as Annotated[hint, Field(default=…)]."""
    where = f"{owner.__qualname__}.{method}"
    fn = inspect.unwrap(getattr(owner, method))
    try:
        hints = get_type_hints(fn, include_extras=True)
    except Exception as error:  # the author's annotations, which can raise anything when they are evaluated
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


def _check_self(fn: Any, doc: str, where: str) -> None:
    """Refuse a tool whose first parameter is not the instance: its first argument would silently get lost."""
    parameters = list(inspect.signature(fn).parameters.values())
    first = parameters[0] if parameters else None
    if first is not None and first.kind in (first.VAR_POSITIONAL, first.VAR_KEYWORD):
        return  # a decorator's function; its other parameters say whether it can be described
    if first is not None and first.kind is not first.KEYWORD_ONLY and _is_instance(first, doc):
        return
    shown = [_shown(parameter) for parameter in parameters]
    written, meant = (f"{fn.__name__}({', '.join(listed)})" for listed in (shown, ["self", *shown]))
    raise DefinitionError(f"{where}: {written} has no self; write def {meant}, or put @staticmethod above @tool")


def _shown(parameter: inspect.Parameter) -> str:
    """The parameter as the author wrote it: Python quotes a hint that is not evaluated."""
    hint = parameter.annotation
    return str(parameter).replace(repr(hint), hint, 1) if isinstance(hint, str) else str(parameter)


def _is_instance(first: inspect.Parameter, doc: str) -> bool:
    """Whether this parameter is the instance, under any name: authors neither annotate nor describe it."""
    if first.name == "self" or "self" in str(first.annotation).lower():
        return True
    described = {param.arg_name for param in docstring_parser.parse(doc).params}
    return first.annotation is first.empty and first.default is first.empty and first.name not in described


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
        raise DefinitionError(_no_schema(fields, where, error)) from error
    return model, (parsed.description or "").strip() if described else doc


def _no_schema(fields: Mapping[str, Any], where: str, error: Exception) -> str:
    """Name the first parameter of a type that JSON has no words for."""
    for name, field in fields.items():
        one: dict[str, Any] = {name: field}
        try:
            create_model(where, **one)
        except PydanticSchemaGenerationError:
            hint = get_args(field[0])[0] if get_origin(field[0]) is Annotated else field[0]
            shown = getattr(hint, "__name__", str(hint))
            return (
                f"{where}: parameter {name!r} is of type {shown}, which a model cannot write as JSON; take str, int, "
                f"float, bool, list, dict, Literal, an Enum, a dataclass or a pydantic model"
            )
    return f"{where}: no JSON schema can be made of its parameters: {error}"


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


def _texts(parameters: Mapping[str, Any]) -> Sequence[Text] | None:
    """The parameters, if the only thing to validate about each is that it is text."""
    texts: list[Text] = []
    for name, value in parameters.items():
        hint, default = value if isinstance(value, tuple) else (value, None)
        marks = getattr(hint, "__metadata__", ())
        given = next((mark for mark in marks if isinstance(mark, Given)), None)
        if len(marks) > (given is not None) or getattr(hint, "__origin__", hint) is not str:
            return None
        if isinstance(default, FieldInfo):  # a Field may constrain the text
            return None
        texts.append(Text(name, default, given=given is not None, written=given is None or given.open))
    return texts


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
