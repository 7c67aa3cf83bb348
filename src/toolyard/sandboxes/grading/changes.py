"""Changes to a test, such that no honest program passes both the test and the changed one.

Only code that certainly runs is changed: not code in a branch, after a `return`, or in a loop over unknown values.
"""

from __future__ import annotations

import ast
import builtins
import random
from collections.abc import Callable, Iterator, Sequence, Set
from typing import TypeAlias

from toolyard.sandboxes.grading.finding import Function, called, case_key, parameters
from toolyard.sandboxes.grading.literals import is_literal, other

Change: TypeAlias = Callable[[random.Random], Set[str]]
"""Makes one change in the tree that it was found in. Returns the keys of the cases that it leaves unchanged."""

_OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    **{ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.NotIn: ast.In},
    **{ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt},
}
_BOUNDS: dict[type[ast.cmpop], str] = {
    **{ast.Lt: "float('-inf')", ast.LtE: "float('-inf')", ast.Gt: "float('inf')", ast.GtE: "float('inf')"}
}
_EQUALITIES = {
    *("assertEqual", "assertEquals", "assertListEqual", "assertTupleEqual", "assertSetEqual", "assertDictEqual"),
    *("assertSequenceEqual", "assertMultiLineEqual", "assertCountEqual"),
}
_PAIRS = [
    *[("assertTrue", "assertFalse"), ("assertIs", "assertIsNot"), ("assertIsNone", "assertIsNotNone")],
    *[("assertIn", "assertNotIn"), ("assertIsInstance", "assertNotIsInstance"), ("assertRegex", "assertNotRegex")],
    *[("assertGreater", "assertLessEqual"), ("assertLess", "assertGreaterEqual")],
    *[("assertAlmostEqual", "assertNotAlmostEqual")],
]
_ASSERTIONS = {**dict(_PAIRS), **{second: first for first, second in _PAIRS}}
_RAISES = {"raises", "assertRaises", "assertRaisesRegex"}
_RARE = ("BufferError", "ChildProcessError", "FloatingPointError")
"""Exceptions that code under test hardly ever raises; neither does it derive from them."""
_LENIENT = {"suppress", "subTest", "test", "warns", "assertWarns", "assertWarnsRegex"}
"""Blocks that may go on after a failure inside, or fail by themselves."""
_LEAVES = (ast.Return, ast.Break, ast.Continue)
_NONE: frozenset[str] = frozenset()


def find_changes(function: Function) -> Sequence[Change]:
    """Changes of comparisons come first: they catch an object that equals everything."""
    found = list(_in_body(function.body, function))
    return [change for _, change in sorted(found, key=lambda one: one[0])]


def _in_body(body: Sequence[ast.stmt], function: Function) -> Iterator[tuple[int, Change]]:
    for statement in body:
        yield from _in_statement(statement, function)
        if any(isinstance(node, _LEAVES) for node in ast.walk(statement)):
            return


def _in_statement(statement: ast.stmt, function: Function) -> Iterator[tuple[int, Change]]:
    match statement:
        case ast.Assert():
            yield from _in_assert(statement, function)
        case ast.Expr(value=ast.Call() as call) if called(call) in _RAISES and len(call.args) > 1:
            yield 1, _other_exception(call)
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="self"))) as call):
            yield from _in_call(call, function)
        case ast.With(items=[ast.withitem(context_expr=ast.Call() as call)]) if called(call) in _RAISES and call.args:
            yield 1, _other_exception(call)
        case ast.With() | ast.AsyncWith():
            if not any(called(item.context_expr) in (_LENIENT | _RAISES) for item in statement.items):
                yield from _in_body(statement.body, function)
        case ast.Try(handlers=[]):
            yield from _in_body(statement.body, function)
        case ast.For() if _is_full(statement.iter) and not any(isinstance(n, _LEAVES) for n in ast.walk(statement)):
            yield from _in_body(statement.body, function)


def _in_assert(statement: ast.Assert, function: Function) -> Iterator[tuple[int, Change]]:
    test = statement.test
    match test:
        case ast.Compare(ops=[ast.Eq()]):
            yield 0, lambda dice: _expect_another(test, function, dice)
        case ast.Compare(ops=[ast.In()]):
            yield 0, lambda dice: _wrap_membership(test)
        case ast.Compare(ops=[operator], comparators=[right]) if type(operator) in _BOUNDS and is_literal(right):
            yield 1, lambda dice: _go_beyond(test, operator)
        case ast.Compare(ops=[operator]) if type(operator) in _OPPOSITE:
            yield 1, lambda dice: _put(test, "ops", [_OPPOSITE[type(operator)]()])
        case ast.UnaryOp(op=ast.Not()):
            yield 1, lambda dice: _put(statement, "test", test.operand)
        case _:
            yield 1, lambda dice: _put(statement, "test", ast.UnaryOp(ast.Not(), test))


def _in_call(call: ast.Call, function: Function) -> Iterator[tuple[int, Change]]:
    name = called(call)
    if name in _EQUALITIES and len(call.args) > 1:
        yield 0, lambda dice: _expect_another_in(call, function, dice)
    elif name in _ASSERTIONS:
        yield 1, lambda dice: _put(call.func, "attr", _ASSERTIONS[name])


def _put(node: ast.AST, name: str, value: object) -> Set[str]:
    setattr(node, name, value)
    return _NONE


def _go_beyond(test: ast.Compare, operator: ast.cmpop) -> Set[str]:
    strict = ast.Lt() if isinstance(operator, ast.Lt | ast.LtE) else ast.Gt()
    test.ops, test.comparators = [strict], [ast.parse(_BOUNDS[type(operator)], mode="eval").body]
    return _NONE


def _expect_another_in(call: ast.Call, function: Function, dice: random.Random) -> Set[str]:
    pair = ast.Compare(call.args[0], [ast.Eq()], [call.args[1]])
    left_alone = _expect_another(pair, function, dice)
    call.args[:2] = [pair.left, *pair.comparators]
    return left_alone


def _expect_another(pair: ast.Compare, function: Function, dice: random.Random) -> Set[str]:
    """Expect another literal if the test has one; otherwise wrap the expected value in something that it cannot
    equal."""
    left, right = pair.left, pair.comparators[0]
    if not any(isinstance(node, ast.Call) and called(node) == "approx" for node in ast.walk(pair)):
        if (changed := other(right, dice)) is not None:
            return _put(pair, "comparators", [changed])
        if (changed := other(left, dice)) is not None:
            return _put(pair, "left", changed)
        for side in (right, left):
            if (left_alone := _change_at_home(side, function, dice)) is not None:
                return left_alone
    if is_literal(left):
        return _put(pair, "left", _wrapped(left))
    return _put(pair, "comparators", [_wrapped(right)])


def _wrap_membership(test: ast.Compare) -> Set[str]:
    (right,) = test.comparators
    if isinstance(right, ast.List | ast.Tuple | ast.Set) and is_literal(right):
        wrapped = ast.List([_wrapped(element) for element in right.elts], ast.Load())
        return _put(test, "comparators", [wrapped])
    return _put(test, "left", _wrapped(test.left))


def _change_at_home(side: ast.expr, function: Function, dice: random.Random) -> Set[str] | None:
    """Change a variable where it is assigned, if the value is a literal and the variable is used nowhere else."""
    if not isinstance(side, ast.Name):
        return None
    uses = [node for node in ast.walk(function) if isinstance(node, ast.Name) and node.id == side.id]
    if sum(isinstance(use.ctx, ast.Load) for use in uses) != 1:
        return None
    given = [found for decorator in function.decorator_list if (found := parameters(decorator)) is not None]
    for names, values in given:
        if side.id in names:
            if len(uses) > 1:
                return None
            return _change_column(values, names.index(side.id), names, dice if len(given) == 1 else None)
    for node in ast.walk(function) if len(uses) == 2 else ():
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and called(node.targets[0]) == side.id:
            changed = other(node.value, dice)
            return None if changed is None else _put(node, "value", changed)
        if isinstance(node, ast.For) and isinstance(node.target, ast.Tuple):
            names = [called(target) for target in node.target.elts]
            if side.id in names and _change_column(node.iter, names.index(side.id), names, None) is not None:
                return _NONE
    return None


def _change_column(values: ast.expr, at: int, names: Sequence[str], dice: random.Random | None) -> Set[str] | None:
    """Change one value of every case. With `dice`, spare some cases: that detects code that runs one case in place of
    another. Changes nothing unless it can change every case."""
    if not isinstance(values, ast.List | ast.Tuple) or not values.elts:
        return None
    changed = [_change_cell(case, at, len(names), dice or random.SystemRandom()) for case in values.elts]
    if not all(changed):
        return None
    numbers = range(len(changed))
    alone = {number for number in numbers if dice is not None and dice.random() < 1 / 3}
    if len(alone) == len(changed):
        alone = set()
    values.elts = [case for n in numbers if (case := values.elts[n] if n in alone else changed[n]) is not None]
    return {case_key(names, number) for number in alone}


def _change_cell(case: ast.expr, at: int, columns: int, dice: random.Random) -> ast.expr | None:
    match case:
        case ast.Tuple(elts=cells) | ast.List(elts=cells) if columns > 1 and len(cells) == columns:
            changed = other(cells[at], dice)
            return None if changed is None else ast.Tuple([*cells[:at], changed, *cells[at + 1 :]], ast.Load())
        case ast.Call(args=cells) if called(case) == "param" and len(cells) == columns:
            changed = other(cells[at], dice)
            replaced = [*cells[:at], changed or cells[at], *cells[at + 1 :]]
            return None if changed is None else ast.Call(case.func, replaced, case.keywords)
        case _:
            return other(case, dice) if columns == 1 else None


def _other_exception(call: ast.Call) -> Change:
    named = [getattr(builtins, called(node), None) for node in ast.walk(call.args[0]) if isinstance(node, ast.Name)]
    kinds = [one for one in named if isinstance(one, type)]
    rare = [name for name in _RARE if not any(issubclass(kind, getattr(builtins, name)) for kind in kinds)]
    return lambda dice: _put(call, "args", [ast.Name(dice.choice(rare), ast.Load()), *call.args[1:]])


def _is_full(values: ast.expr) -> bool:
    return isinstance(values, ast.List | ast.Tuple) and bool(values.elts)


def _wrapped(node: ast.expr) -> ast.expr:
    """Wrap in a dict: a number of numpy equals a tuple that holds it."""
    return ast.Dict([ast.Constant("value")], [node])
