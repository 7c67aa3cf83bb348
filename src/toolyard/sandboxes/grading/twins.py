"""The files of tests that the host sends into sandboxes: each as it is, and as twins that contradict it.

All have the same name, the same tests in the same order and the same shape, and each runs in its own sandbox. So code
under test can tell them apart only by the values that they expect.
"""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal, TypeAlias

from toolyard.sandboxes.grading.changes import find_changes
from toolyard.sandboxes.grading.finding import Function, Test, find_tests, parameters

_BROAD = 3
"""The most twins that change many tests at once."""
Kind: TypeAlias = Literal["changed", "plain", "same"]
"""A test in a twin is changed (it expects something else), plain (it ends in an assertion that cannot hold), or the
same. The last catches code that runs one test in place of another, because the other one then passes changed."""


@dataclass(frozen=True, slots=True)
class Twin:
    text: str
    kinds: Mapping[str, Kind]
    """By name of a test."""
    same_cases: Set[tuple[str, str]]
    """Unchanged cases of changed tests, by name and key."""


@dataclass(frozen=True, slots=True)
class Written:
    """One file, ready to run."""

    path: str
    tests: Sequence[Test]
    real: str
    twins: Sequence[Twin]


def write(path: str, source: str, twins: int, dice: random.Random) -> Written:
    """Raises SyntaxError, ValueError or RecursionError if the file cannot be read."""
    tree = ast.parse(source, path)
    _inline_cases(tree)
    tests = find_tests(tree)
    closes = any(not find_changes(test.node) for test in tests)
    real = copy.deepcopy(tree)
    if closes:
        for node in _nodes(find_tests(real)):
            _close(node, holds=True, dice=dice)
    turns = [0] * len(_nodes(tests))
    written = [_twin(tree, changed, turns, closes, dice) for changed in _chosen(tests, twins, dice)]
    return Written(path, tests, _text(real), written)


def _chosen(tests: Sequence[Test], twins: int, dice: random.Random) -> Iterator[Set[int]]:
    """The numbers of the functions that each twin changes.

    The first twins change most: each function stays the same in one of them, so that code that runs one test in place
    of another passes a test that changed. But code that does some of the work knows such a twin by the tests that it
    can do, and may forge the others elsewhere. Every further twin changes one function only, each another.
    """
    nodes = _nodes(tests)
    broad = min(twins, _BROAD)
    spared = [dice.randrange(broad) if broad > 1 and len(tests) > 1 else -1 for _ in nodes]
    for number in range(broad):
        yield {at for at, spared_in in enumerate(spared) if spared_in != number}
    alone = [at for at, node in enumerate(nodes) if find_changes(node)] or [*range(len(nodes))]
    dice.shuffle(alone)
    for number in range(twins - broad):
        yield {alone[number % len(alone)]} if alone else set()


def _twin(tree: ast.Module, changed: Set[int], turns: list[int], closes: bool, dice: random.Random) -> Twin:
    """Twins of a file change different things in a test, as long as there are more to change. `turns` counts the
    changes of each function so far."""
    tree = copy.deepcopy(tree)
    tests = find_tests(tree)
    kinds: dict[int, Kind] = {}
    same_cases: dict[int, Set[str]] = {}
    for at, node in enumerate(_nodes(tests)):
        if at not in changed:
            kinds[id(node)] = "same"
        elif changes := find_changes(node):
            kinds[id(node)] = "changed"
            same_cases[id(node)] = changes[turns[at] % len(changes)](dice)
            turns[at] += 1
        else:
            kinds[id(node)] = "plain"
    if closes:
        for node in _nodes(tests):
            _close(node, holds=kinds[id(node)] != "plain", dice=dice)
    same = {(test.name, case) for test in tests for case in same_cases.get(id(test.node), ())}
    return Twin(_text(tree), {test.name: kinds[id(test.node)] for test in tests}, same)


def _nodes(tests: Sequence[Test]) -> Sequence[Function]:
    """Each function once: classes may share them."""
    return list({id(test.node): test.node for test in tests}.values())


def _close(function: Function, *, holds: bool, dice: random.Random) -> None:
    """Make it end in a comparison of two numbers, whichever way it is left."""
    first = dice.randint(1000, 99999)
    second = first if holds else first + dice.randint(1, 999)
    closing = ast.Assert(ast.Compare(ast.Constant(first), [ast.Eq()], [ast.Constant(second)]))
    function.body = [ast.Try(function.body, [], [], [closing])]


def _inline_cases(tree: ast.Module) -> None:
    """Copy named lists of cases to where they are used, so that those of one test can change alone."""
    assigned: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name):
                    assigned.setdefault(target.id, []).append(node.value)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            assigned.setdefault(node.target.id, []).extend([node.value] * 2)
    cases = {name: values[0] for name, values in assigned.items() if len(values) == 1 and _is_list(values[0])}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and parameters(node) is not None and isinstance(node.args[1], ast.Name):
            node.args[1] = copy.deepcopy(cases.get(node.args[1].id, node.args[1]))
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    tree.body = [node for node in tree.body if not _assigns(node, cases.keys() - used)]


def _assigns(statement: ast.stmt, names: Set[str]) -> bool:
    """Whether it only assigns one of these. Nothing uses it any more, and it would reveal the expected values."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return len(targets) == 1 and isinstance(targets[0], ast.Name) and targets[0].id in names


def _is_list(value: ast.expr) -> bool:
    return isinstance(value, ast.List | ast.Tuple) and bool(value.elts)


def _text(tree: ast.Module) -> str:
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"
