"""Stands in one sandbox for an object in another: it forwards calls, attributes and operators.

Imports only the standard library: sandboxes load the text of this file.

In a test, a stand-in can never make an assertion hold by its own claim. It equals nothing and has no order: a test that
compares it, or computes with it and plain data, fails, whatever it does next. If its class is a subclass of `list` or
another plain type, the test reads the plain value, by that type's own methods, and this value stays the same until the
program runs again. Operations on the program's own objects (calls, attributes, items, `len()`, `str()`, sums) return
plain data, and the test compares that.
"""

from __future__ import annotations

import builtins
import copy
import operator
from collections import deque
from collections.abc import Callable
from typing import Any, NoReturn

from toolyard.sandboxes.inside.lengths import VIEWS

_ITEMS_AT_ONCE = 256
TEXT = "_toolyard_text"
"""The attribute of an exception that holds its traceback on the other side."""
OBJECT = "_toolyard_object"
"""The attribute of plain data that holds the stand-in of the object that it is the value of."""
ITEMS_MOST = 100_000
"""The most items that a test may take from one iterator."""


class Unproven(BaseException):
    """Ends a test that asks of a stand-in what only plain data can answer."""


class Proxy:
    # Its own names end in an underscore: all others are attributes of the program's object.
    __slots__ = ("_base_", "_kind_", "_number_", "_side_")
    _base_: type | None
    """For an instance of a subclass of `list`, `dict`, `set` or `deque`: that type."""
    _kind_: str
    _number_: int
    _side_: Any

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__name__", "__doc__", "__qualname__"):
            raise AttributeError(name)
        if name in _READS and hasattr(self._base_, name):
            return getattr(exact(self), name)
        found = self._side_.ask("chain", self, False, [[name]])
        return _part(self, found) if name in VIEWS else found

    def __setattr__(self, name: str, value: Any) -> None:
        self._side_.ask("put", self, name, value)

    def __delattr__(self, name: str) -> None:
        self._side_.ask("put", self, name)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        found = self._side_.ask("chain", self, False, [[list(args), keywords]])
        self._side_.note(found, self._side_.loaded.get(self._number_, ""))
        is_view = self._side_.lengths.is_part(self._number_) and not args and not keywords
        if is_view and hasattr(type(found), "__len__") and (type(found) is not Proxy or found._base_):
            hold(self._side_, self._side_.lengths.end(self._number_, len(found)))
        return _part(self, found) if is_view else found

    def __iter__(self) -> Any:
        if self._base_:
            return iter(exact(self))
        if self._kind_ == "i":
            return self
        found = _part(self, self._side_.ask("operate", "iter", [self]))
        if not self._side_.lengths.is_part(self._number_) and type(found) is Proxy:
            self._side_.begin_again(found._number_)
        return found

    def __next__(self) -> Any:
        buffers = self._side_.buffers
        if self._number_ not in buffers:
            buffers[self._number_] = Buffer(self)
        return buffers[self._number_].next()

    def __getitem__(self, key: Any) -> Any:
        if self._base_ in (list, deque):
            try:
                return exact(self)[key]
            except (IndexError, TypeError):  # its own class may have such an item
                return self._side_.ask("operate", "getitem", [self, key])
        return self._side_.ask("operate", "getitem", [self, key])

    def __reversed__(self) -> Any:
        return reversed(exact(self)) if self._base_ else _part(self, self._side_.ask("operate", "reversed", [self]))

    def __contains__(self, item: object) -> bool:
        """An object that the test made itself answers as its methods do. Any other would learn what is expected."""
        if self._number_ in self._side_.made and not self._base_:
            return self._side_.ask("operate", "contains", [self, item]) is True
        return any(one is item or one == item for one in iter(self))

    def __len__(self) -> Any:
        return len(exact(self)) if self._base_ else self._side_.ask("operate", "len", [self])

    def __bool__(self) -> bool:
        if self._base_:
            return bool(exact(self))
        is_true = self._side_.ask("operate", "truth", [self]) is True
        if not is_true:
            hold(self._side_, self._side_.lengths.tell(self._number_, 0))
        return is_true

    def __instancecheck__(self, item: object) -> bool:
        item = getattr(item, OBJECT, item)
        return type(item) is Proxy and self._side_.ask("operate", "isinstance", [item, self]) is True

    def __subclasscheck__(self, item: object) -> bool:
        return type(item) is Proxy and self._side_.ask("operate", "issubclass", [item, self]) is True

    @property  # type: ignore[misc]  # isinstance() asks it
    def __class__(self) -> Any:
        return self._base_ or Proxy

    @property
    def __doc__(self) -> Any:  # type: ignore[override]  # the program's
        return self._side_.ask("chain", self, False, [["__doc__"]])

    def __copy__(self) -> Any:
        return copy.copy(exact(self)) if self._base_ else self

    def __deepcopy__(self, memo: Any) -> Any:
        return copy.deepcopy(exact(self), memo) if self._base_ else self

    def __enter__(self) -> Any:
        return self._side_.ask("chain", self, False, [["__enter__"], [[], {}]])

    def __exit__(self, kind: Any = None, error: object = None, trace: Any = None) -> Any:
        """The program may end a `with` block of the test by an exception that the block itself raises. It never ends
        one that asserts or calls: that would skip the assertions."""
        is_own = trace is None or (trace.tb_next is None and not self._side_.test.asserts_in_blocks)
        may_ignore = (
            is_own and kind is not None and issubclass(kind, Exception) and not issubclass(kind, AssertionError)
        )
        try:
            goes_on = self._side_.ask("chain", self, False, [["__exit__"], [[kind, None, None], {}]])
        except Exception:
            if kind is None or may_ignore:
                raise
            goes_on = False  # the test may expect this exception, but not the one that ends the block
        return goes_on if may_ignore else False

    def __hash__(self) -> int:
        return object.__hash__(self)

    def __str__(self) -> str:
        return str(self._side_.ask("operate", "str", [self]))

    def __repr__(self) -> str:
        return str(self._side_.ask("operate", "repr", [self]))


def stand_in(side: Any, number: int, kind: str) -> Any:
    if kind[:1] == "e":
        return twin(side, kind[1:])
    proxy = object.__new__(Proxy)
    for name, value in (("_side_", side), ("_number_", number), ("_kind_", kind), ("_base_", None)):
        object.__setattr__(proxy, name, value)
    return proxy


class Buffer:
    """Items of an iterator on the other side, fetched in growing numbers, unless the test may stop early."""

    def __init__(self, proxy: Any) -> None:
        self._proxy = proxy
        self._items: deque[Any] = deque()
        self._goes_on = True
        self._error: Any = None
        self.has_ended = False
        self._least = proxy._side_.lengths.told(proxy._number_)
        """What the test calls in the loop does not make the loop shorter."""
        self._taken = 0
        self._next = 1

    def next(self) -> Any:
        side = self._proxy._side_
        if not self._items and self._goes_on:
            items, self._goes_on, self._error = side.ask("take", self._proxy, self._next)
            self._items.extend(items)
            self._next = 1 if side.test.stops_early else min(max(self._taken, 1), _ITEMS_AT_ONCE)
            self._taken += len(items)
            if self._taken > ITEMS_MOST and side.wary:
                doom(side, f"The test took more than {ITEMS_MOST} items of an iterator.")
        if self._items:
            return self._items.popleft()
        self.has_ended = True
        if self._error is not None:
            error, self._error = raised(side, *self._error), None
            if not isinstance(error, StopIteration):
                raise side.loud(error)
        hold(side, side.lengths.end(self._proxy._number_, self._taken, self._least))
        raise StopIteration


def doom(side: Any, why: str) -> NoReturn:
    side.doom = side.doom or why
    raise Unproven(why)


def hold(side: Any, contradiction: str) -> None:
    if contradiction:
        doom(side, contradiction)


def _part(whole: Proxy, found: Any) -> Any:
    """An iterator or a view of an object, or the method that returns the view."""
    if type(found) is Proxy and not _is_known(whole):
        whole._side_.lengths.link(found._number_, whole._number_)
    return found


def _is_known(item: Proxy) -> bool:
    """The test names its class, so what its length counts is part of the task."""
    return item._kind_[1:] in item._side_.test.classes


def length(item: Any, /) -> int:
    """`len()` in a test that loops."""
    found = len(item)
    if type(item) is Proxy and not item._base_ and not _is_known(item):
        if item._kind_ == "i":
            doom(item._side_, "The program's object says that it is an iterator and has a length.")
        hold(item._side_, item._side_.lengths.tell(item._number_, found))
    return found


def _compared(name: str) -> Callable[[Any, Any], Any]:
    def compare(self: Any, other: Any) -> Any:
        if other is None and name in ("eq", "ne"):
            return name == "ne"
        if not self._side_.wary:
            return self._side_.ask("operate", name, [self, other])
        if self._base_:
            return getattr(operator, name)(exact(self), exact(other))
        what = self._kind_[1:] or "iterator"
        return doom(self._side_, f"The test compares a value that is no plain data ({what} object). It equals nothing.")

    return compare


def _operated(name: str) -> Callable[..., Any]:
    def operate(self: Any, *others: Any) -> Any:
        return self._side_.ask("operate", name, [self, *others])

    return operate


def _computed(name: str, *, reflected: bool = False) -> Callable[[Any, Any], Any]:
    """An operator for two objects of the program. In `abs(f(x) - 3.2)` the other operand is what the test expects: an
    object that sees it could choose the difference."""

    def compute(self: Any, other: Any) -> Any:
        if self._side_.wary and type(other) is not Proxy:
            if self._base_:
                ours, theirs = (other, exact(self)) if reflected else (exact(self), other)
                return divmod(ours, theirs) if name == "divmod" else getattr(operator, name)(ours, theirs)
            doom(self._side_, f"The test computes with a value that is no plain data ({self._kind_[1:]} object).")
        return self._side_.ask("operate", name, [other, self] if reflected else [self, other])

    return compute


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Proxy, f"__{_name}__", _compared(_name))
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "lshift", "rshift", "xor", "divmod"):
    setattr(Proxy, f"__{_name}__", _computed(_name))
    setattr(Proxy, f"__r{_name}__", _computed(_name, reflected=True))
for _name in ("and", "or"):
    setattr(Proxy, f"__{_name}__", _computed(f"{_name}_"))
    setattr(Proxy, f"__r{_name}__", _computed(f"{_name}_", reflected=True))
for _name in ("neg", "pos", "invert", "abs", "setitem", "delitem", "int", "float", "complex"):
    setattr(Proxy, f"__{_name}__", _operated(_name))
for _name in ("round", "dir", "index", "format"):
    setattr(Proxy, f"__{_name}__", _operated(_name))


# Instances of a program's own subclasses of plain types.


def attached(proxy: Any, value: Any) -> Any:
    """The value of an instance of a program's own subclass. If it cannot change, this is plain data, with the
    program's attributes and methods beside those of its type. Otherwise it is a stand-in."""
    if type(proxy) is not Proxy:
        raise ValueError(proxy)
    if type(value) in _CHANGING:
        if proxy._base_ not in (None, type(value)) or (not proxy._base_ and proxy._number_ not in proxy._side_.new):
            raise ValueError(type(value))  # an object does not change its kind
        object.__setattr__(proxy, "_base_", type(value))
        proxy._side_.values.setdefault(proxy._number_, value)
        return proxy
    if type(value) not in _ATTACHED:
        raise ValueError(type(value))
    found = _ATTACHED[type(value)](value)
    found.__dict__[OBJECT] = proxy
    return found


def exact(item: Any) -> Any:
    """The plain value of a stand-in that has one. It is read once until the program runs again: a program that says
    something else each time could satisfy one assertion after the other."""
    if type(item) is not Proxy or not item._base_:
        return item
    values = item._side_.values
    if item._number_ not in values:
        value = item._side_.ask("operate", "exactly", [item])
        if type(value) is not item._base_:
            doom(item._side_, "The program's answer cannot be read.")
        values.setdefault(item._number_, value)
    return values[item._number_]


def _beside(value: Any, name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(value.__dict__[OBJECT], name)


_CHANGING = (list, dict, set, deque)
_READS = {
    *("count", "index", "keys", "values", "items", "union", "intersection", "difference", "symmetric_difference"),
    *("issubset", "issuperset", "isdisjoint"),
}
"""Methods of these types that only read. The program's own would learn what the test expects."""
_ATTACHED: dict[type, Any] = {
    kind: type(
        kind.__name__,
        (kind,),
        {
            "_toolyard_attached": True,
            "__getattr__": _beside,
            "__str__": lambda value: str(value.__dict__[OBJECT]),
            "__repr__": lambda value: repr(value.__dict__[OBJECT]),
            "__copy__": lambda value: value,
            "__deepcopy__": lambda value, memo: value,
        },
    )
    for kind in (int, float, complex, str, bytes, tuple, frozenset)
}


# Exceptions. Built-in ones cross by name; a class of the program has a twin here with the same ancestry.


def twin(side: Any, lineage: str) -> type[BaseException]:
    base, *between = lineage.split("|")
    found = vars(builtins).get(base)
    kind: type[BaseException] = found if isinstance(found, type) and issubclass(found, BaseException) else Exception
    twins: dict[int, type[BaseException]] = side.__dict__.setdefault("twins", {})
    for one in between:
        number, _, name = one.partition(":")
        if int(number) not in twins:
            twins[int(number)] = type(name, (kind,), {"__module__": "__main__", "_toolyard_twin": int(number)})
        kind = twins[int(number)]
    return kind


def twin_of(item: Any) -> int | None:
    if isinstance(item, type) and issubclass(item, BaseException):
        number = vars(item).get("_toolyard_twin")
        return number if isinstance(number, int) else None
    return None


def raised(side: Any, lineage: str, args: tuple[Any, ...], text: str) -> BaseException:
    """The other side's exception, to raise it here."""
    kind = twin(side, lineage)
    try:
        error = kind(*args)
    except Exception:  # its constructor takes other arguments
        error = kind.__new__(kind)
        error.args = args
    error.__dict__[TEXT] = text
    return error


# Arguments changed by the other side.


def restore(given: Any, changed: Any) -> None:
    """Update positional and keyword arguments in place to their new values."""
    (args, keywords), (new_args, new_keywords) = given, changed
    for old, new in [*zip(args, new_args, strict=True), *((keywords[name], new_keywords[name]) for name in keywords)]:
        _become(old, new)


def _become(old: Any, new: Any) -> None:
    if type(old) is not type(new):
        return
    if type(old) is list:
        old[:] = new
    elif type(old) is deque:
        old.clear()
        old.extend(new)
    elif type(old) in (dict, set):
        old.clear()
        old.update(new)
    elif type(old) is tuple:
        for old_part, new_part in zip(old, new, strict=False):
            _become(old_part, new_part)
