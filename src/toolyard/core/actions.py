"""Finds the tool call in a model's text: by a tool's own form first, then as JSON, then by its name as a tag."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import TypeAlias
from weakref import WeakKeyDictionary

from toolyard.core.environment import Environment, lists_task_tools
from toolyard.core.forms import Form, Plain, is_late, tagged
from toolyard.core.output import JsonObject
from toolyard.core.tool import Tool

log = logging.getLogger("toolyard.actions")

PLAIN = Plain()


Action: TypeAlias = tuple[str, JsonObject, Form, bool]
"""A call that a text asks for: the tool's name, its arguments, the form that writes the result, and whether the tool
has parameters that the trainer fills in. A bare tuple, because there are many and the caller unpacks each at once."""


class Actions:
    """Reads the texts of models in one environment. It tries tools in the order in which they are defined."""

    def __init__(self, tools: Mapping[str, Tool], terminal: Tool | None, *, open_ended: bool) -> None:
        listed = {name: tool for name, tool in tools.items() if not tool.terminal}
        formed = [(name, tool.form, bool(tool.given)) for name, tool in listed.items() if tool.form]
        self._forms = [one for one in formed if not is_late(one[1])]
        self._late = [one for one in formed if is_late(one[1])]
        self._unformed = [(name, tool) for name, tool in listed.items() if not tool.form]
        self._tools = tools
        self._terminal = terminal
        self._open_ended = open_ended
        """A session may have tools that its class does not list."""

    def read(self, text: str) -> Action | None:
        """The call that the text asks for, if any."""
        return (
            _read(self._forms, text)
            or self._tool_call(text)
            or self._by_name(text)
            or _read(self._late, text)
            or self._last_message(text)
        )

    def _tool_call(self, text: str) -> Action | None:
        for written in tagged(text, "tool_call"):
            call = tool_call(written)
            if call is None:
                continue
            name, arguments = call
            if (tool := self._tools.get(name)) is not None:
                return name, arguments, tool.form or PLAIN, bool(tool.given)
            if self._open_ended:
                return name, arguments, PLAIN, False
        return None

    def _by_name(self, text: str) -> Action | None:
        for name, tool in self._unformed:
            if found := tagged(text, name):
                return name, _arguments(tool, found[-1]), PLAIN, bool(tool.given)
        return None

    def _last_message(self, text: str) -> Action | None:
        if self._terminal is None or not text.strip():
            return None
        argument = self._terminal.terminal_spec().arg
        return self._terminal.name, {argument: text} if argument else {}, PLAIN, bool(self._terminal.given)


def _read(forms: Sequence[tuple[str, Form, bool]], text: str) -> Action | None:
    for tool, form, given in forms:
        try:
            arguments = form.read(text)
        except Exception:  # the author's form: a text that it cannot read is no call of its tool
            log.warning("the form of tool %r could not read a text", tool, exc_info=True)
            continue
        if arguments is not None:
            return tool, arguments, form, given
    return None


def actions_of(environment: type[Environment]) -> Actions:
    """The `Actions` of an environment, made once for each class."""
    if (found := _actions.get(environment)) is None:
        definition = environment._definition
        open_ended = bool(definition.catalogue) or any(map(lists_task_tools, (environment, *environment.toolsets)))
        found = _actions[environment] = Actions(definition.tools, definition.terminal, open_ended=open_ended)
    return found


_actions: WeakKeyDictionary[type[Environment], Actions] = WeakKeyDictionary()


def tool_call(written: str) -> tuple[str, JsonObject] | None:
    """Name and arguments of `{"name": …, "arguments": {…}}`; some models write the arguments as a string of JSON."""
    call = _object(written)
    arguments = call.get("arguments") or {}
    if isinstance(arguments, str):
        arguments = _object(arguments)
    name = call.get("name")
    return (name, arguments) if isinstance(name, str) and isinstance(arguments, dict) else None


def _arguments(tool: Tool, written: str) -> JsonObject:
    """Read the text between the tags of a tool: a JSON object of its arguments, or the value of its first one."""
    properties: JsonObject = (tool.spec.input_schema or {}).get("properties", {})
    given = _object(written)
    if not properties or (given and given.keys() <= properties.keys()):
        return given if properties else {}
    first, schema = next(iter(properties.items()))
    return {first: written.strip() if schema.get("type") == "string" else _value(written)}


def _value(written: str) -> object:
    try:
        return json.loads(written)
    except (ValueError, RecursionError):
        return written.strip()


def _object(written: str) -> dict[str, object]:
    try:
        value = json.loads(written)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
