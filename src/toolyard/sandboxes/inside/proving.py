"""Runs a test statement in its own sandbox. Names that it does not define stand for those of a program elsewhere.

Imports only the standard library and its neighbours here: sandboxes load the text of this file.

Built-in names and modules are always those of this sandbox: a program that defines `abs`, `set` or a module `math`
forges nothing. The one exception is the function that an assertion tests, as in `assert sum(10, 15) == 6`.
"""

from __future__ import annotations

import ast
import builtins
import gc
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from toolyard.sandboxes.inside.plain import write
from toolyard.sandboxes.inside.proxies import TEXT, Proxy, Unproven, doom, exact, length
from toolyard.sandboxes.inside.sides import Said, Side, Traits

UNTESTED = "The program ended before the test had ended."
_HOLDS, OWN = "__toolyard_holds__", "__toolyard_own_"
HELPERS = {
    **dict.fromkeys(("Counter", "OrderedDict", "defaultdict", "deque", "namedtuple"), "collections"),
    **dict.fromkeys(("isclose",), "math"),
    **dict.fromkeys(("Decimal",), "decimal"),
    **dict.fromkeys(("Fraction",), "fractions"),
}
"""Names that tests compare with, and that some tests take from the program's imports. They come from the library."""
MATCH = "Match"
"""The result of `re.match` counts as true. A program that claims this class could as well return True."""
_BUILTINS = vars(builtins)
_REHEARSALS = 20
"""Enough for Python to specialise hot code."""
ALIASES = {"np": "numpy", "pd": "pandas", "sp": "sympy"}
_STOPPING = {"next", "islice", "takewhile", "itertools"}
"""Names of functions that leave an iterator before its end."""
_LOOPING = {"all", "any", "filter", "map"}
_LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.comprehension)
_BINDING = (*(ast.Name, ast.arg, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.alias, ast.ExceptHandler),)
JUDGES = {
    *("math", "cmath", "numpy", "scipy", "sympy", "pandas", "decimal", "fractions", "statistics", "operator"),
    *("collections", "itertools", "functools", "re", "copy", "json", "unittest", "pytest", *ALIASES),
}
"""Modules that tests judge by. `math.isclose` is the library's, even where the program binds `math` to another
object."""


class Names(dict[str, Any]):
    """The built-in names of a test, which it looks up last. Names not found here are the program's."""

    def __init__(self, side: Side, only_called: set[str], only_read: set[str]) -> None:
        super().__init__({name: _BUILTINS[name] for name in ("__import__", "__build_class__", "__debug__")})
        self[_HOLDS] = lambda value: _whole(side, value)
        self._side = side
        self._only_called = only_called
        self._judges = JUDGES & only_read

    def __missing__(self, name: str) -> Any:
        if name == "callable":
            return _is_callable
        if name == "len" and self._side.test.loops:
            return length
        if name in _BUILTINS:  # not copied here: that would make a fork copy their memory
            return _BUILTINS[name]
        if name.startswith(OWN):
            return Named(self._side, name.removeprefix(OWN))
        if name.startswith("__"):
            raise KeyError(name)
        if name in HELPERS:
            return getattr(importlib.import_module(HELPERS[name]), name)
        if name in self._only_called:
            return Named(self._side, name)
        is_there, value = self._side.ask("load", name)
        if not is_there:
            raise KeyError(name)
        if name in self._judges or (type(value) is Proxy and value._kind_ == "m"):
            return importlib.import_module(ALIASES.get(name, name))
        if type(value) is Proxy:
            self._side.loaded[value._number_] = name
        return value


def _is_callable(item: Any, /) -> bool:
    if type(item) is Proxy:
        return item._side_.ask("operate", "callable", [item]) is True
    return callable(item)


class Named:
    """A function of the program that the test only calls: calling it directly saves the message that loads it."""

    def __init__(self, side: Side, name: str) -> None:
        self._side = side
        self._name = name

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        found = self._side.ask("chain", self._name, True, [[list(args), keywords]])
        return self._side.note(found, self._name)

    def __getattr__(self, name: str) -> Any:
        return self._side.ask("chain", self._name, True, [[name]])


def _whole(side: Side, value: Any) -> Any:
    """The value that an `assert` tests. A value that is not plain data would be true only by the program's claim."""
    if type(value) is Proxy and value._kind_ == f"o{MATCH}":
        return True
    value = exact(value)
    if type(value) is Proxy:
        doom(side, "The test asserts a value that is no plain data. It proves nothing.")
    return value


def begin(source: str, requests: Sequence[Sequence[str]], answers: Sequence[str], everything: bool) -> Said:
    """Run the test until it requests something of the program, or ends. It certainly begins with these requests; if
    they are everything, it needs no thread that can wait for an answer."""
    program: Any = sys.modules["toolyard_program"]
    side = Side({}, lambda error: program.told(error, ("test.py",)), wary=True)
    sys.modules[__name__].side = side  # type: ignore[attr-defined]  # where the host finds it
    if answers:
        side.expect(requests, answers)
    side.is_alone = everything and len(side.expected) == len(requests) and not side.has_proxies
    if side.is_alone:
        return _proven(side, source, program.told)
    return side.aside(lambda: _proven(side, source, program.told))


def _proven(side: Side, source: str, told: Callable[..., str]) -> Said:
    try:
        _run(side, source)
    except KeyboardInterrupt:
        if side.is_alone:
            raise  # the host interrupts the interpreter
        sys.stderr.write(f"{UNTESTED}\n")
    except SystemExit:
        sys.stderr.write(f"{UNTESTED}\n")
    except Unproven as error:
        sys.stderr.write(f"{error}\n")
    except BaseException as error:  # the test's own
        sys.stderr.write(_with_the_other_side(error, told))
    else:
        if not side.doom:
            if side.test.ends_late:
                gc.collect()  # now: what a generator prints as it ends is not for the next test
            return side.message("passed")
        sys.stderr.write(f"{side.doom}\n")
    return side.message("failed")


def _run(side: Side, source: str) -> None:
    linecache: Any = sys.modules["linecache"]
    linecache.cache["test.py"] = (len(source), None, [line + "\n" for line in source.split("\n")], "test.py")
    tree = ast.parse(source, "test.py")
    nodes = [*ast.walk(tree)]
    side.test = _described(nodes)
    only_called = prepare(nodes, bound_names(nodes))
    names = Names(side, only_called, _only_read(nodes))
    limit = sys.getrecursionlimit()
    variables = {"__name__": "__main__", "__builtins__": names}
    exec(compile(tree, "test.py", "exec", dont_inherit=True), variables)
    variables.clear()  # free the memory for the next test in this process
    side.close()
    linecache.cache.clear()  # it has the text of every message
    sys.setrecursionlimit(limit)
    if (random := sys.modules.get("random")) is not None:  # the test may have seeded it
        random.seed()


def _described(nodes: Sequence[ast.AST]) -> Traits:
    names = [node for node in nodes if isinstance(node, ast.Name)]
    raised = {part for node in nodes if isinstance(node, ast.Raise) for part in ast.walk(node)}
    expects = {node.id for node in names if node not in raised}
    bound = bound_names(nodes)
    return Traits(
        expects=expects,
        has_items="__getitem__" in bound,
        asserts_in_blocks=_asserts_in_blocks(nodes),
        loops=any(isinstance(node, _LOOPS) for node in nodes) or bool(_LOOPING & expects),
        classes={name for name in expects - {"Solution", *HELPERS, *_BUILTINS, *bound} if name[:1].isupper()},
        stops_early=bool(_STOPPING & expects) or any(isinstance(node, ast.Break) for node in nodes),
        ends_late=any(isinstance(node, ast.Yield | ast.YieldFrom | ast.AsyncFunctionDef) for node in nodes),
    )


def _asserts_in_blocks(nodes: Sequence[ast.AST]) -> bool:
    blocks = [node for node in nodes if isinstance(node, ast.With | ast.AsyncWith)]
    plain = {one for block in blocks for one in block.body if isinstance(one, ast.Raise)}
    return any(
        _may_assert(part) for block in blocks for one in block.body if one not in plain for part in ast.walk(one)
    )


def _may_assert(node: ast.AST) -> bool:
    """Whether it asserts, raises where something does not hold, or calls what may do that."""
    match node:
        case ast.Call(func=ast.Name(id=name)):
            return name not in _BUILTINS or not _is_literal(node)
    return isinstance(node, ast.Assert | ast.Raise | ast.Call)


def prepare(nodes: Sequence[ast.AST], bound: set[str]) -> set[str]:
    """Mark the program's names, and make assertions check the values that they test. Returns the names that are only
    called."""
    called: set[ast.AST] = set()
    others: set[str] = set()
    for node in nodes:
        match node:
            case ast.Assert():
                _own_the_function(node, bound)
                if not isinstance(node.test, ast.Compare):  # a comparison returns no value of the program
                    call = ast.Call(ast.Name(_HOLDS, ast.Load()), [node.test], [])
                    node.test = ast.fix_missing_locations(ast.copy_location(call, node.test))
            case ast.Call(func=ast.Name(id=name) as function):
                called.add(function)
                if name == "check" in bound:
                    for one in [one for one in node.args if isinstance(one, ast.Name) and one.id not in bound]:
                        one.id = OWN + one.id
            case ast.Name(id=name) if node not in called:
                others.add(name)
    return {node.id for node in called if isinstance(node, ast.Name)} - others - bound


def _only_read(nodes: Sequence[ast.AST]) -> set[str]:
    """Names that occur in the test only as `name.attribute`."""
    names = [node for node in nodes if isinstance(node, ast.Name)]
    read = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    return {node.id for node in names if id(node) in read} - {node.id for node in names if id(node) not in read}


def bound_names(nodes: Sequence[ast.AST]) -> set[str]:
    """Names that the test itself binds."""
    return {name for node in nodes if isinstance(node, _BINDING) for name in _bound(node)}


def _bound(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
            yield name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.alias(name=name, asname=other):
            yield other or name.partition(".")[0]
        case ast.ExceptHandler(name=str(name)):
            yield name


def _own_the_function(node: ast.Assert, bound: set[str]) -> None:
    """If an assertion uses only built-in names, its first call of one with literals alone calls the function that the
    program was asked to write."""
    names = [one for one in ast.walk(node.test) if isinstance(one, ast.Name)]
    if all(name.id in _BUILTINS and name.id not in bound for name in names):
        for call in _as_written(node.test):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and _is_literal(call):
                call.func.id = OWN + call.func.id
                return


def _as_written(node: ast.AST) -> Iterator[ast.AST]:
    """A node and all of its parts, in the order in which they are written."""
    waiting = [node]
    while waiting:
        yield (one := waiting.pop())
        waiting += reversed([*ast.iter_child_nodes(one)])


def _is_literal(call: ast.Call) -> bool:
    parts = [*call.args, *(keyword.value for keyword in call.keywords)]
    return not any(isinstance(one, (ast.Name, ast.Call)) for part in parts for one in ast.walk(part))


def _with_the_other_side(error: BaseException, told: Callable[..., str]) -> str:
    """The test's own frames, then the program's if the exception comes from there."""
    here, there = told(error, ("test.py",)), error.__dict__.get(TEXT, "")
    return joined(here, there) if there else here


def joined(here: str, there: str) -> str:
    """Join two tracebacks of one exception."""
    head = "Traceback (most recent call last):\n"
    frames = [line for line in here.splitlines(keepends=True)[1:] if line.startswith(" ")]
    kept = "".join(frames[: next((at for at, line in enumerate(frames) if '"<toolyard>"' in line), len(frames))])
    before, _, own = there.rpartition(head)
    return f"{before}{head}{kept}{own}"


def rehearse() -> None:
    """In a template: do what its copies will do, so that they inherit the results and copy less memory."""
    program: Any = sys.modules["toolyard_program"]
    for _ in range(_REHEARSALS):
        theirs = Side({"f": list}, program.told)
        side = Rehearsed({}, program.told, wary=True)
        side.other = theirs
        _proven(side, "assert sorted(f([2, 'b', 1.5])[:1]) == [2]", program.told)
    sys.modules["linecache"].cache.pop("test.py", None)


class Rehearsed(Side):
    """Asks a side in the same process."""

    other: Side

    def ask(self, *request: Any) -> Any:
        self.message("asks", request)
        result, _, _ = self._read(
            [str(self.other._done(self.other._read(write(request, self.refer)))).partition("\n")[2]]
        )
        return result
