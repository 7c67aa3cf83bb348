"""Finds the calls of a program that a test is certain to make first, so that one message asks for all of them.

A test such as HumanEval's `check(candidate)` is a list of assertions about calls with literals. The program can answer
those calls before the test begins. Where it is not certain what a test does next, the test asks as it runs.
"""

from __future__ import annotations

import ast
import builtins
import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from toolyard.sandboxes.inside.proving import ALIASES, HELPERS, JUDGES, OWN, bound_names, prepare

LONGEST = 10_000
"""Characters of the longest statement that the host parses: parsing blocks the event loop."""
_DYNAMIC = {"eval", "exec", "globals", "locals", "vars", "compile", "__import__", "breakpoint", "input"}
_LEAVING = (_DYNAMIC - {"globals", "locals"}) | {"open", "setattr", "delattr", "getattr", "__del__"}
"""Names that can change more than the names of a test. A call of `getattr`, `setattr` or `delattr` with a literal name
counts as that attribute instead."""
_NEAT = {
    *("abc", "array", "base64", "binascii", "bisect", "calendar", "cmath", "collections", "contextlib", "copy"),
    *("dataclasses", "datetime", "decimal", "difflib", "enum", "fractions", "functools", "hashlib", "heapq", "html"),
    *("inspect", "io", "itertools", "json", "math", "numbers", "numpy", "operator", "pprint", "pytest", "random", "re"),
    *("secrets", "statistics", "string", "struct", "sys", "textwrap", "time", "types", "typing", "unittest", "uuid"),
    *("zlib",),
}
"""Modules that keep no state of their use, except by the names in `_SETTINGS`. `random` begins anew after each test."""
_SYS = {
    *("byteorder", "exc_info", "float_info", "getrecursionlimit", "getrefcount", "getsizeof", "hash_info", "int_info"),
    *("maxsize", "maxunicode", "platform", "setrecursionlimit", "stderr", "stdout", "version", "version_info"),
}
"""What a test may read of `sys`. The recursion limit is set back after each test."""
_SETTINGS = {
    *("random", "seterr", "seterrcall", "seterrobj", "setbufsize", "set_printoptions", "set_string_function"),
    *("setcontext", "getcontext", "DefaultContext", "tzset", "setfirstweekday"),
}
_OF_MODULES = _SETTINGS | {"open", "mock", "patch", "MonkeyPatch", "installHandler"}
"""The same as attributes and in imports. Alone, some of them are good names for functions of programs."""
_READ = {
    f"__{name}__"
    for name in (
        *("abs", "add", "annotations", "bool", "call", "class", "contains", "doc", "enter", "eq", "exit", "float"),
        *("ge", "getitem", "gt", "hash", "init", "int", "iter", "le", "len", "lt", "main", "module", "mro", "mul"),
        *("name", "ne", "neg", "new", "next", "qualname", "repr", "reversed", "slots", "str", "sub", "truediv"),
    )
}
"""Special attributes that a test only reads."""
_SIMPLE = (
    *(ast.BinOp, ast.UnaryOp, ast.List, ast.Tuple, ast.Set, ast.Subscript, ast.Slice, ast.Attribute, ast.Starred),
    *(ast.JoinedStr, ast.FormattedValue, ast.keyword, ast.operator, ast.unaryop, ast.expr_context),
)
"""Nodes that evaluate all of their parts, in the order in which they are written."""


def literal(node: ast.expr) -> Any:
    """The value of a literal. Raises ValueError if the node is not a literal of plain data."""
    if any(isinstance(part, ast.Constant) and part.value is ... for part in ast.walk(node)):
        raise ValueError(node)
    return ast.literal_eval(node)


class _Uncertain(Exception):
    """The next call depends on the result of an earlier one."""


@dataclass(frozen=True, slots=True)
class Foreseen:
    requests: Sequence[Any]
    """In the form that `sides.Deeds` takes."""
    everything: bool
    """The test has no other requests."""
    is_neat: bool = False
    """The test binds its own names and changes nothing else in its process."""


@functools.lru_cache(256)  # a trainer judges many programs by the same tests
def foreseen(statement: str) -> Foreseen:
    """Foresees nothing of a test that cannot be parsed, or is too long to parse on the event loop."""
    try:
        if len(statement) > LONGEST:
            return Foreseen([], everything=False)
        tree = ast.parse(statement)
        nodes = [*ast.walk(tree)]
        bound = bound_names(nodes)
        only_called = prepare(nodes, bound)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return Foreseen([], everything=False)
    walk = _Walk(bound, only_called)
    everything = False
    try:
        walk.statements(tree.body)
        everything = walk.counted == sum(walk.is_programs(node) for node in nodes)
    except (_Uncertain, ValueError, TypeError, RecursionError):
        everything = False
    return Foreseen(walk.requests, everything, is_neat=_is_neat(nodes, bound))


def _is_neat(nodes: Sequence[ast.AST], bound: set[str]) -> bool:
    """Whether no other test in the same process could notice that this one ran. Tests are trusted, so this does not
    look for state that they would reach by other names."""
    modules = {name for node in nodes if isinstance(node, ast.alias) for name in bound_names([node])}
    own = bound - modules
    calls = {node.func: named for node in nodes if isinstance(node, ast.Call) and (named := _named_attribute(node))}
    every = [*nodes, *calls.values()]
    read = {node.value for node in every if isinstance(node, ast.Attribute) and _is_of_sys(node)}
    return not any(_leaves_something(node, own) for node in every if node not in calls and node not in read)


def _named_attribute(node: ast.Call) -> ast.Attribute | None:
    """`getattr(x, "name")` as `x.name`, and the same for `setattr` and `delattr`."""
    match node:
        case ast.Call(
            func=ast.Name(id="getattr" | "setattr" | "delattr" as function), args=[item, ast.Constant(str(name)), *_]
        ):
            return ast.Attribute(item, name, ast.Load() if function == "getattr" else ast.Store())
    return None


def _is_of_sys(node: ast.Attribute) -> bool:
    match node:
        case ast.Attribute(value=ast.Name(id="sys"), attr=name, ctx=ast.Load()):
            return name in _SYS
    return False


def _leaves_something(node: ast.AST, own: set[str]) -> bool:
    """`own`: names of objects that the test makes."""
    match node:
        case ast.Import(names=names):
            return any(one.name not in _NEAT or (one.name == "sys" and one.asname) for one in names)
        case ast.ImportFrom(module="sys", names=names):
            return any(one.name not in _SYS for one in names)
        case ast.ImportFrom(module=module, names=names):
            return module not in _NEAT or (module != "random" and any(one.name in _OF_MODULES for one in names))
        case ast.Attribute(value=ast.Name(id="random"), attr="random", ctx=ast.Load()):
            return False
        case ast.Attribute(attr=name) if name in _OF_MODULES or (_is_special(name) and name not in _READ):
            return True
        case ast.Attribute(attr=name, ctx=ast.Load()) if not name.startswith("_") or _is_special(name):
            return False
        case ast.Attribute():
            return _root(node) not in own
        case ast.Name(id="sys"):
            return True
        case ast.Name(id=name):
            return name in _LEAVING or (name not in own and (name in _SETTINGS - {"random"} or _may_keep_state(name)))
        case ast.FunctionDef(name="__del__") | ast.Constant("__del__"):
            return True
    return False


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _may_keep_state(name: str) -> bool:
    """Whether a name that the test takes from the program may stand for a module that keeps state."""
    module = ALIASES.get(name, name)
    return (module in sys.stdlib_module_names or module in JUDGES) and module not in _NEAT


def _root(node: ast.expr) -> str:
    """The name with which a chain such as `head.next[0].value` begins; empty if it does not begin with a name."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


@dataclass(slots=True)
class _Walk:
    bound: set[str]
    only_called: set[str]
    """Names that the test does not load before it calls them."""
    requests: list[Any] = field(default_factory=list)
    counted: int = 0
    candidate: tuple[str, str] = ("", "")
    """The parameter of `check`, and the function that it stands for."""
    functions: dict[str, ast.FunctionDef] = field(default_factory=dict)

    def is_programs(self, node: ast.AST) -> bool:
        """Whether it is one of the program's names, or may become one."""
        if not isinstance(node, ast.Name) or node.id == "__toolyard_holds__":
            return False
        if node.id == self.candidate[0] or node.id in _DYNAMIC or node.id.startswith(OWN):
            return True
        return node.id not in self.bound and not hasattr(builtins, node.id) and node.id not in HELPERS

    def statements(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            match statement:
                case ast.Assert(test=value) | ast.Expr(value=value):
                    self.expression(value)
                case ast.Assign(targets=[ast.Name(id=name)], value=value) if name != self.candidate[0]:
                    self.expression(value)
                case ast.FunctionDef(name=name, decorator_list=[]):
                    self.functions[name] = statement
                case ast.Import() | ast.ImportFrom() | ast.Pass():
                    continue
                case _:
                    raise _Uncertain

    def expression(self, node: ast.AST) -> None:
        match node:
            case ast.Constant():
                return
            case ast.Name():
                if self.is_programs(node):
                    raise _Uncertain
            case ast.Call():
                self._call(node)
            case ast.Compare(left=left, comparators=[right]):
                self.expression(left)
                self.expression(right)
            case _ if isinstance(node, _SIMPLE):
                for part in ast.iter_child_nodes(node):
                    self.expression(part)
            case _ if any(self.is_programs(part) or isinstance(part, ast.Call) for part in ast.walk(node)):
                raise _Uncertain

    def _call(self, node: ast.Call) -> None:
        match node.func:
            case ast.Name(id="check") if "check" in self.functions:
                self._check(node)
            case ast.Name(id=name) if self.is_programs(node.func) and name not in _DYNAMIC:
                if name != self.candidate[0] and not name.startswith(OWN) and name not in self.only_called:
                    raise _Uncertain
                real = self.candidate[1] if name == self.candidate[0] else name.removeprefix(OWN)
                keywords = {str(one.arg): literal(one.value) for one in node.keywords if one.arg}
                if len(keywords) < len(node.keywords):
                    raise _Uncertain
                args = [literal(one) for one in node.args]
                self.requests.append(("chain", real, True, [[args, keywords]]))
                self.counted += 1
            case ast.Name(id=name) if name in self.bound:
                raise _Uncertain
            case _:
                for part in (node.func, *node.args, *node.keywords):
                    self.expression(part)

    def _check(self, node: ast.Call) -> None:
        function = self.functions["check"]
        match node, function.args:
            case (
                ast.Call(args=[ast.Name(id=name)], keywords=[]),
                ast.arguments(args=[ast.arg(arg=parameter)], posonlyargs=[], kwonlyargs=[], vararg=None, kwarg=None),
            ) if name.startswith(OWN) and not self.candidate[0]:
                self.candidate = (parameter, name.removeprefix(OWN))
                self.counted += 1  # the name passed to it
                self.statements(function.body)
            case _:
                raise _Uncertain
