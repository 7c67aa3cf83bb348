"""Reads test statements that the host can judge by itself, such as `assert f(1, [2]) == 3`. Evaluates nothing."""

from __future__ import annotations

import ast
import builtins
import traceback
from collections import deque
from collections.abc import KeysView, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from toolyard.sandboxes.driving import Opaque
from toolyard.sandboxes.foresight import LONGEST, literal
from toolyard.sandboxes.inside.proving import MATCH, joined

_ERRORS = (SyntaxError, ValueError, TypeError, MemoryError, RecursionError)
_METADATA = "METADATA"
"""A name that HumanEval's tests assign, but do not read."""
_HEAD = "Traceback (most recent call last):\n"
Relation: TypeAlias = Literal["==", "!=", "is", "is not", "true", "false"]
_RELATIONS: dict[type[ast.cmpop], Relation] = {ast.Eq: "==", ast.NotEq: "!=", ast.Is: "is", ast.IsNot: "is not"}


@dataclass(frozen=True, slots=True)
class PlainAssert:
    """A call of the program with literals, and a condition on its value."""

    name: str
    steps: Sequence[Any]
    """Calls and attributes that follow the name, as `sides.Deeds.chain` takes them."""
    relation: Relation
    expected: Any
    message: str
    lines: Sequence[str]
    whole: ast.expr
    call: ast.expr
    outer: ast.expr | None = None
    """The call of `check`, if the assertion stands in that function."""

    def holds(self, value: Any) -> bool:
        """Whether the statement is true of this value. It is true of no value that is not plain data."""
        if isinstance(value, Opaque):
            return self._holds_of_object(value)
        if _is_opaque(value):
            return False
        match self.relation:
            case "==":
                return bool(value == self.expected)
            case "!=":
                return bool(value != self.expected)
            case "is":
                return value is self.expected
            case "is not":
                return value is not self.expected
            case "true":
                return bool(value)
            case "false":
                return not value

    def _holds_of_object(self, value: Opaque) -> bool:
        """Judge an object that is no plain data: it is certainly no constant, and nothing else is known."""
        match self.relation:
            case "is not":
                return True
            case "!=":
                return self.expected is None
            case "true":
                return value.kind == MATCH
        return False

    def traceback(self, of_call: str = "") -> str:
        """The traceback as Python would write it: of the statement, or of the call in it that raised."""
        if of_call:
            return joined(f"{_HEAD}{self._frames(self.call)}", of_call)
        return f"{_HEAD}{self._frames(self.whole)}AssertionError{self.message}\n"

    def _frames(self, node: ast.expr) -> str:
        if self.outer is None:
            return self._frame(node, "<module>")
        return self._frame(self.outer, "<module>") + self._frame(node, "check")

    def _frame(self, node: ast.expr, function: str) -> str:
        frame = traceback.FrameSummary(
            "test.py",
            node.lineno,
            function,
            lookup_line=False,
            line=self.lines[node.lineno - 1] + "\n",  # as in linecache, or the marks are out of place
            end_lineno=node.end_lineno,
            colno=node.col_offset,
            end_colno=node.end_col_offset,
        )
        return "".join(traceback.StackSummary.from_list([frame]).format())


def plain_asserts(statement: str) -> Sequence[PlainAssert]:
    """The assertions of a statement that has nothing else, or of its function `check`. Empty if it must run."""
    if len(statement) > LONGEST:
        return ()
    try:
        body, lines = ast.parse(statement).body, statement.splitlines()
        return _of_check(body, lines) or [_plain(one, lines) for one in body]
    except _ERRORS:
        return ()


def _of_check(body: Sequence[ast.stmt], lines: Sequence[str]) -> Sequence[PlainAssert]:
    """The assertions of `def check(candidate)`, followed by `check(f)`, as HumanEval writes its tests. Empty if the
    statement has another shape. Raises ValueError if the host cannot judge all of them."""
    match [one for one in body if not _is_note(one)]:
        case [
            ast.FunctionDef(name="check", decorator_list=[], returns=None) as check,
            ast.Expr(value=ast.Call(func=ast.Name(id="check"), args=[ast.Name(id=name)], keywords=[]) as call),
        ]:
            parameter = ast.unparse(check.args)
            found = [_plain(one, lines) for one in check.body if not _is_note(one)]
            names = {name, *(one.name for one in found)} - {parameter}
            if not parameter.isidentifier() or names & {"check", _METADATA}:
                raise ValueError(parameter)
            return [replace(one, name=name if one.name == parameter else one.name, outer=call) for one in found]
    return ()


def _plain(statement: ast.stmt, lines: Sequence[str]) -> PlainAssert:
    """Read one assertion. Raises ValueError if it is no plain one."""
    found: PlainAssert | None = None
    match statement:
        case ast.Assert(test=test, msg=None):
            found = _read(test, "", lines)
        case ast.Assert(test=test, msg=ast.Constant(value=str(message))):
            found = _read(test, f": {message}", lines)
    if found is None:
        raise ValueError(statement)
    return found


def _is_note(statement: ast.stmt) -> bool:
    match statement:
        case ast.Pass() | ast.Expr(value=ast.Constant()) | ast.Assert(test=ast.Constant(value=True)):
            return True
        case ast.Assign(targets=[ast.Name(id=name)], value=value) if name == _METADATA:
            literal(value)
            return True
    return False


def _read(test: ast.expr, message: str, lines: Sequence[str]) -> PlainAssert | None:
    match test:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _RELATIONS:
            relation = _RELATIONS[type(op)]
            for call, value in ((left, right), (right, left)):
                if (path := _path(call)) is not None:
                    expected = literal(value)
                    if relation.startswith("is") and expected not in (None, True, False):
                        return None
                    return PlainAssert(*path, relation, expected, message, lines, test, call)
        case ast.UnaryOp(op=ast.Not(), operand=call) if (path := _path(call)) is not None:
            return PlainAssert(*path, "false", None, message, lines, test, call)
        case ast.Call() if (path := _path(test)) is not None:
            return PlainAssert(*path, "true", None, message, lines, test, test)
    return None


def _path(node: ast.expr) -> tuple[str, Sequence[Any]] | None:
    """The name that a call begins with and what follows, as in `Solution().f([1])`. Raises ValueError if an argument is
    no literal."""
    steps: list[Any] = []
    while not isinstance(node, ast.Name):
        match node:
            case ast.Call(func=inner, args=args, keywords=keywords):
                named = {str(one.arg): literal(one.value) for one in keywords if one.arg is not None}
                if len(named) < len(keywords):
                    return None
                steps.append([[literal(one) for one in args], named])
            case ast.Attribute(value=inner, attr=name):
                steps.append([name])
            case _:
                return None
        node = inner
    if not steps or len(steps[0]) == 1 or (len(steps) > 1 and hasattr(builtins, node.id)):
        return None
    return node.id, steps[::-1]


def _is_opaque(value: Any) -> bool:
    """Whether the value contains something that is no plain data."""
    waiting = [value]
    for one in waiting:
        if isinstance(one, Opaque):
            return True
        if isinstance(one, dict):
            waiting += [*one, *one.values()]
        elif isinstance(one, (list, tuple, set, frozenset, deque, KeysView)):
            waiting += one
    return False
