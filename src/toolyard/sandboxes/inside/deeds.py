"""The operations that one side of a call between two sandboxes requests of the other; a wary side refuses some.

Imports only the standard library and its neighbours here: sandboxes load the text of this file.
"""

from __future__ import annotations

import builtins
import operator
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from toolyard.sandboxes.inside.plain import CHUNK, LONGEST, TooLarge, exactly, write
from toolyard.sandboxes.inside.plain_reader import NotPlain

BUILTINS = dict(vars(builtins))
_OPERATORS: Mapping[str, Callable[..., Any]] = {
    **{name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge", "truth", "neg", "pos", "invert")},
    **{name: getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul")},
    **{name: getattr(operator, name) for name in ("lshift", "rshift", "xor", "and_", "or_", "abs", "index")},
    **{name: getattr(operator, name) for name in ("getitem", "setitem", "delitem", "contains")},
    **{name: BUILTINS[name] for name in ("iter", "len", "str", "repr", "int", "float", "complex", "round")},
    **{
        name: BUILTINS[name] for name in ("dir", "reversed", "divmod", "format", "isinstance", "issubclass", "callable")
    },
    "exactly": exactly,
}
_TELLTALES = (
    *(types.FunctionType, types.MethodType, types.ModuleType, types.FrameType, types.CodeType, types.TracebackType),
    *(types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType, type),
)
"""Attributes of these types lead to everything that a test knows."""
_DATA = ("__main__", "builtins", "collections", "datetime", "array")
"""Modules whose classes have safe attributes. Large libraries have methods that evaluate text."""


def permitted(request: Any, is_mine: Callable[[Any], bool]) -> bool:
    """Whether the test's sandbox may do this for a program: only with an object that the test has passed to it, one
    step at a time. Text of the program's own does not qualify: its `format` would read every other object."""
    match request:
        case ["chain", first, False, [[_, _]]]:
            return is_mine(first)
        case ["chain", first, False, [[str(name)]]]:
            return is_mine(first) and _is_open(first) and not name.startswith("_")
        case ["put", first, str(name), *_]:  # never replace a method: the test may rely on it
            is_data = not callable(getattr(type(first), name, None))
            return is_mine(first) and _is_open(first) and not name.startswith("_") and is_data
        case ["operate", str(name), [*operands]]:
            mine = [one for one in operands if is_mine(one)]
            return bool(mine) and (name == "iter" or all(map(_is_open, mine)))
        case ["take", iterator, int()]:
            return is_mine(iterator)
    return False


def _is_open(item: Any) -> bool:
    return getattr(type(item), "__module__", "") in _DATA and not isinstance(item, _TELLTALES)


class Deeds:
    """The operations, by name. `side` performs them."""

    @staticmethod
    def chain(side: Any, first: Any, by_name: bool, steps: Sequence[Any]) -> Any:
        """Follow attributes and calls, one after the other, from a name or an object."""
        found = side.named(first) if by_name else first
        for step in steps:
            found = found(*step[0], **step[1]) if len(step) == 2 else getattr(found, step[0])
        return found

    @staticmethod
    def entry(side: Any, name: str, steps: Sequence[Any]) -> Any:
        """Call a function, or else the method of LeetCode's class."""
        function = side.names[name] if name in side.names else getattr(side.named("Solution")(), name)
        ((args, keywords),) = steps
        if isinstance(args, str):  # source text of arguments
            names = {**side.names, "_toolyard_function": function}
            return eval(compile(f"_toolyard_function({args})", "test.py", "eval"), names)
        return function(*args, **keywords)

    @staticmethod
    def several(side: Any, requests: Sequence[Any]) -> Any:
        """Perform requests in turn until one raises or returns something other than plain data, on which the rest may
        depend. A result that one message cannot take is kept until it is asked for alone."""
        answers: list[Any] = []
        left = LONGEST - CHUNK
        for request in requests:
            try:
                done = side.performed(request)
                answers.append((*done, None))
                left -= sum(map(len, write(answers[-1], _none_of_it, longest=left, owned=True)))
            except NotPlain:
                break
            except TooLarge:
                answers.pop()
                side.ahead = request, done
                break
            except Exception as error:  # the program's
                answers.append((None, None, side.described(error)))
                break
        return answers

    @staticmethod
    def load(side: Any, name: str) -> Any:
        """Whether the program defines the name, and its value."""
        return (True, side.names[name]) if name in side.names else (False, None)

    @staticmethod
    def put(side: Any, item: Any, name: str, *value: Any) -> None:
        setattr(item, name, *value) if value else delattr(item, name)

    @staticmethod
    def operate(side: Any, name: str, operands: Sequence[Any]) -> Any:
        return _OPERATORS[name](*operands)

    @staticmethod
    def take(side: Any, iterator: Any, count: int) -> Any:
        """Up to `count` items, whether more may follow, and the error raised instead of the next item."""
        items: list[Any] = []
        try:
            for _ in range(count):
                items.append(next(iterator))
        except StopIteration:
            return items, False, None
        except Exception as error:  # the iterator's own
            return items, False, side.described(error)
        return items, True, None


def _none_of_it(item: object) -> NoReturn:
    raise NotPlain
