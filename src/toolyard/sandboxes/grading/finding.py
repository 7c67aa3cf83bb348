"""Finds the tests of a file on the host by reading it: these must be reported, whatever the code under test does."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeGuard

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef

_NOT_COUNTED = {"skip", "skipif", "xfail", "skipIf", "skipUnless", "expectedFailure"}


@dataclass(frozen=True, slots=True)
class Test:
    """One function of a test file, under one name: several classes may inherit it."""

    name: str
    """`test_that`, `TestIt::test_that` or `TestIt::TestPart::test_that`."""
    node: Function
    cases: int
    """How many cases its decorators list. The report may have more, but not fewer."""
    ids: Mapping[str, str]
    """pytest's names of the cases, such as `[1-2]`, by the key of a case, where reading the file tells them."""
    counts: bool
    """Whether it must pass: the author did not mark it as one that may be skipped or fail."""


def find_tests(tree: ast.Module) -> Sequence[Test]:
    """Finds tests as pytest does without configuration. Tests that only exist at run time are not among them."""
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    file_counts = not any(_marks_off(node.value) for node in tree.body if _is_pytestmark(node))
    found: dict[str, Test] = {}
    for node in tree.body:
        if _is_test(node):
            found[node.name] = _test(node.name, node, (), file_counts)
        elif isinstance(node, ast.ClassDef):
            found.update({test.name: test for test in _in_class(node, "", (), classes, file_counts)})
    return list(found.values())


def _in_class(
    node: ast.ClassDef, around: str, above: Sequence[ast.expr], classes: Mapping[str, ast.ClassDef], counts: bool
) -> Iterator[Test]:
    """Its own and inherited tests, and those of classes nested in it."""
    if not _is_collected(node, classes):
        return
    path, above, counts = f"{around}{node.name}::", [*above, *node.decorator_list], counts and _class_counts(node)
    for method in _methods(node, classes).values():
        yield _test(path + method.name, method, above, counts)
    if not _is_unittest(node, classes):
        for inner in node.body:
            if isinstance(inner, ast.ClassDef):
                yield from _in_class(inner, path, above, classes, counts)


def is_test_file(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name.endswith("_test.py") or (name.startswith("test_") and name.endswith(".py"))


def parameters(decorator: ast.expr) -> tuple[Sequence[str], ast.expr] | None:
    """Names and values of a `@pytest.mark.parametrize(…)`, if its names can be read."""
    if not (isinstance(decorator, ast.Call) and called(decorator) == "parametrize" and len(decorator.args) > 1):
        return None
    names, values = decorator.args[:2]
    if isinstance(names, ast.Constant) and isinstance(names.value, str):
        return [name.strip() for name in names.value.split(",") if name.strip()], values
    if isinstance(names, ast.List | ast.Tuple) and all(isinstance(name, ast.Constant) for name in names.elts):
        return [str(name.value) for name in names.elts if isinstance(name, ast.Constant)], values
    return None


def called(node: ast.expr) -> str:
    """`raises` for `pytest.raises(…)`, and the like; empty for an expression without a name."""
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _test(name: str, node: Function, above: Sequence[ast.expr], counts: bool) -> Test:
    decorators = [*above, *node.decorator_list]
    cases = math.prod(_cases(decorator) for decorator in decorators)
    given = [decorator for decorator in decorators if called(decorator) == "parametrize"]
    ids = _ids(given[0]) if len(given) == 1 else {}
    return Test(name, node, cases, ids, counts and not any(map(_marks_off, decorators)))


def case_key(names: Sequence[str], number: int) -> str:
    """The key that `pytest_runner` gives to this case of a test with one `parametrize`."""
    return ",".join(f"{name}={number}" for name in sorted(names))


def _ids(decorator: ast.expr) -> Mapping[str, str]:
    """The ids of plain values, if they are unique and the author sets no others."""
    found = parameters(decorator)
    if found is None or not isinstance(decorator, ast.Call) or decorator.keywords or len(decorator.args) != 2:
        return {}
    try:
        values = ast.literal_eval(found[1])
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return {}
    names = found[0]
    cases = [case if len(names) > 1 else (case,) for case in values]
    if not all(isinstance(case, list | tuple) and all(map(_is_plain, case)) for case in cases):
        return {}
    ids = ["[" + "-".join(str(value) for value in case) + "]" for case in cases]
    return {case_key(names, at): id for at, id in enumerate(ids)} if len({*ids}) == len(ids) else {}


def _is_plain(value: object) -> bool:
    if isinstance(value, str):
        return bool(value) and value.isascii() and value.isprintable() and "\\" not in value
    return value is None or isinstance(value, bool | int | float)


def _cases(decorator: ast.expr) -> int:
    """The least number of cases: computed values, or cases with marks, may be only one."""
    if (found := parameters(decorator)) is None or not isinstance(found[1], ast.List | ast.Tuple):
        return 1
    elements = found[1].elts
    if any(isinstance(element, ast.Starred) or _has_marks(element) for element in elements):
        return 1
    return max(len(elements), 1)


def _has_marks(case: ast.expr) -> bool:
    return isinstance(case, ast.Call) and any(keyword.arg == "marks" for keyword in case.keywords)


def _methods(node: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> Mapping[str, Function]:
    found: dict[str, Function] = {}
    for one in reversed(list(_ancestry(node, classes))):
        for method in one.body:
            if _is_test(method):
                found[method.name] = method
    return found


def _is_test(node: ast.stmt) -> TypeGuard[Function]:
    """Whether pytest collects it. A fixture may be called `test_client`."""
    if not (isinstance(node, Function) and node.name.startswith("test")):
        return False
    return not any(called(decorator) == "fixture" for decorator in node.decorator_list)


def _ancestry(node: ast.ClassDef, classes: Mapping[str, ast.ClassDef], depth: int = 0) -> Iterator[ast.ClassDef]:
    yield node
    for base in node.bases:
        if isinstance(base, ast.Name) and base.id in classes and depth < 20:
            yield from _ancestry(classes[base.id], classes, depth + 1)


def _is_collected(node: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> bool:
    if _is_unittest(node, classes):
        return True
    family = list(_ancestry(node, classes))
    has_init = any(isinstance(item, Function) and item.name == "__init__" for one in family for item in one.body)
    return node.name.startswith("Test") and not has_init and not _is_untested(node)


def _is_unittest(node: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> bool:
    return any(called(base).endswith("TestCase") for one in _ancestry(node, classes) for base in one.bases)


def _is_untested(node: ast.ClassDef) -> bool:
    """Whether it has `__test__ = False`."""
    return any(isinstance(item, ast.Assign) and ast.unparse(item) == "__test__ = False" for item in node.body)


def _class_counts(node: ast.ClassDef) -> bool:
    marks = [item.value for item in node.body if _is_pytestmark(item)]
    return not any(map(_marks_off, [*node.decorator_list, *marks]))


def _is_pytestmark(node: ast.stmt) -> TypeGuard[ast.Assign]:
    return isinstance(node, ast.Assign) and any(called(target) == "pytestmark" for target in node.targets)


def _marks_off(expression: ast.expr) -> bool:
    """Whether this decorator, or value of `pytestmark`, lets a test be skipped or fail."""
    return any(
        isinstance(node, ast.Attribute | ast.Name) and called(node) in _NOT_COUNTED for node in ast.walk(expression)
    )
