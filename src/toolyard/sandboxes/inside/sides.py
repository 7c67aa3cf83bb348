"""Lets code in one sandbox use objects of another: each of the two runs a `Side`, and the host carries messages.

Imports only the standard library and its neighbours here: sandboxes load the text of this file. A side performs what
the other requests, and answers with plain data. Other objects stay where they are, and the other side gets a handle. A
side speaks only when the host calls it: work that may ask something back runs in a thread, and the host waits.

The program's side shares its process with the program, which can forge its messages. The test's side is `wary`: the
program may call, iterate and read what the test has passed to it, and nothing else.
"""

from __future__ import annotations

import _thread
import gc
import sys
import types
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from toolyard.sandboxes.inside.deeds import BUILTINS, Deeds, permitted
from toolyard.sandboxes.inside.lengths import Lengths
from toolyard.sandboxes.inside.plain import TooLarge, write
from toolyard.sandboxes.inside.plain_reader import NotPlain, Reader
from toolyard.sandboxes.inside.proxies import OBJECT, Proxy, attached, doom, raised, restore, stand_in, twin_of

_ITERATORS: tuple[type, ...] = (
    *(types.GeneratorType, map, filter, zip, enumerate, reversed),
    *map(type, (iter([]), iter(()), iter({}), iter(set()), iter(""), iter(b""), iter(range(1)))),
)
_BUILTIN_ERRORS = {
    kind: name for name, kind in BUILTINS.items() if isinstance(kind, type) and issubclass(kind, BaseException)
}
_mro: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__


class Said:
    """A message: the interpreter sends the host the repr() of the last expression."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


@dataclass(slots=True)
class Traits:
    """What a test says of itself, before it runs."""

    expects: set[str] = field(default_factory=set)
    """Names of exceptions that it names in other places than after `raise`."""
    has_items: bool = False
    """It defines `__getitem__`, so a loop of its own may end by an IndexError."""
    asserts_in_blocks: bool = False
    """It asserts within a `with` block, or does there what may assert."""
    loops: bool = False
    """It has a loop, in which it may assert."""
    classes: set[str] = field(default_factory=set)
    """Classes of the program that it names."""
    stops_early: bool = False
    """It may leave an iterator before its end, and then ask the program what is left."""
    ends_late: bool = False
    """It has generators or coroutines. One that is left may print something when it is freed."""


class Side:
    def __init__(self, names: dict[str, Any], told: Callable[[BaseException], str], *, wary: bool = False) -> None:
        self.names = names
        self._told = told
        self.wary = wary
        self.is_alone = False
        """No thread waits for answers."""
        self.test = Traits()
        self.loaded: dict[int, str] = {}
        """Names under which the test has loaded objects of the program."""
        self.made: set[int] = set()
        """Objects of the program that the test made by calling their class."""
        self.doom = ""
        """Why a test has failed, whatever else it does."""
        self.buffers: dict[int, Any] = {}
        """For iterators: items fetched and not yet used."""
        self.values: dict[int, Any] = {}
        """For instances of the program's own subclasses of plain types: values read since the program last ran."""
        self.lengths = Lengths()
        self._received = 0
        """How much the other side has sent, in characters and bytes of arrays."""
        self._mine: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._theirs: dict[int, Any] = {}
        self.new: set[int] = set()
        """Objects of the other side that the latest message named first."""
        self.ahead: tuple[Any, tuple[Any, Any]] | None = None
        """A request performed before it was made, and its result."""
        self._rest: list[str] = []
        self.expected: list[Any] = []
        self._waiting: list[list[Any]] = []
        self._spoke = _thread.allocate_lock()
        self._spoke.acquire()
        self._said = Said("")

    # What the host calls.

    def serve(self, chunks: Sequence[str]) -> Said:
        """Perform a request of the other side."""
        self.values.clear()
        request = self._read(chunks)
        if self._theirs or self.wary:  # it may ask something back
            return self.aside(lambda: self._done(request))
        return self._done(request)

    def resume(self, kind: str, chunks: Sequence[str]) -> Said:
        """Pass the answer to the thread that asked last, and wait for the next message."""
        waiting = self._waiting.pop()
        waiting[1:] = [kind, chunks]
        waiting[0].release()
        return self._heard()

    def more(self) -> Said:
        return Said(self._rest.pop(0))

    def aside(self, work: Callable[[], Said]) -> Said:
        _thread.start_new_thread(lambda: self._say(work()), ())
        return self._heard()

    def expect(self, requests: Sequence[Sequence[str]], chunks: Sequence[str]) -> None:
        """Store the answers to requests that are certain to come. Unreadable ones are requested again."""
        try:
            answers, _, _ = self._read(chunks)
            if type(answers) is list:
                self.expected = [(asked, *answer) for asked, answer in zip(requests, answers, strict=False)]
        except (NotPlain, TypeError, ValueError):
            self.expected = []

    def close(self) -> None:
        """Forget the other side. What the test has left may be freed much later, and asks nothing then. What is large
        is freed now: the next test in this process needs the memory."""
        for held in (self._mine, self._numbers):
            held.clear()  # it may still ask something, such as a generator as it ends
        self.is_alone = True
        for held in (self.expected, self._theirs, self.buffers, self.values):
            held.clear()
        if self._received > _MUCH:
            gc.collect()

    @property
    def has_proxies(self) -> bool:
        return bool(self._theirs)

    def note(self, found: Any, name: str) -> Any:
        """What the program returned for a call of this name."""
        if type(found) is Proxy and name in self.test.classes and found._kind_ == f"o{name}":
            self.made.add(found._number_)
        return found

    def begin_again(self, number: int) -> None:
        """A loop begins. An object that is its own iterator may give its items once more."""
        if number in self.buffers and self.buffers[number].has_ended:
            del self.buffers[number]

    def ask(self, *request: Any) -> Any:
        """Request something of the other side. Call it in a thread of `aside`."""
        self.lengths.forget(request)
        if self.expected:
            asked, *answer = self.expected.pop(0)
            if asked == write(request, self.refer):
                return self._taken(request, *answer)
            self.expected = []
        if self.is_alone:
            doom(self, "The test asks for more than could be foreseen.")
        lock = _thread.allocate_lock()
        lock.acquire()
        waiting: list[Any] = [lock]
        self._waiting.append(waiting)
        self._say(self.message("asks", request))
        lock.acquire()
        _, kind, chunks = waiting
        if request[:2] != ("operate", "exactly"):
            self.values.clear()
        try:
            answer = self._read(chunks)
        except NotPlain:
            doom(self, "The program's answer cannot be read.")
        return self._taken(request, *((None, None, answer) if kind == "raised" else answer))

    def _taken(self, request: Any, *answer: Any) -> Any:
        """Unpack an answer: a value, changed arguments and an exception. The other side may have sent anything."""
        try:
            result, changed, error = answer
            failure = raised(self, *error) if error is not None else None
            if changed is not None:
                restore(request[-1][-1], changed)
        except (TypeError, ValueError, KeyError, IndexError, AttributeError):
            doom(self, "The program's answer cannot be read.")
        if failure is not None:
            raise self.loud(failure)
        return result

    def loud(self, failure: BaseException) -> BaseException:
        """`map` and `for` of a test would take a StopIteration as their own end, and assert nothing more."""
        ends = (StopIteration, StopAsyncIteration, *((IndexError,) if self.test.has_items else ()))
        for kind in ends:
            if self.wary and isinstance(failure, kind) and kind.__name__ not in self.test.expects:
                return RuntimeError(f"the program raised {kind.__name__}")
        return failure

    def message(self, kind: str, value: object = None) -> Said:
        self._rest = list(write(value, self.refer, owned=not self.wary))
        return Said(f"{kind} {len(self._rest) - 1}\n{self._rest.pop(0)}")

    # Handles.

    def refer(self, item: Any) -> str:
        """The token of an object that stays here, or of one that the other side owns."""
        if "_toolyard_attached" in vars(type(item)):
            item = item.__dict__.get(OBJECT)
        if type(item) is Proxy:
            return f"r{item._number_}"
        if (number := twin_of(item)) is not None:
            return f"r{number}"
        return f"h{self._number(item)} {self._kind(item)}"

    def _number(self, item: Any) -> int:
        if id(item) not in self._numbers:
            self._numbers[id(item)] = len(self._mine)
            self._mine.append(item)
        return self._numbers[id(item)]

    def _kind(self, item: Any) -> str:
        kind = type(item)
        if issubclass(kind, type) and BaseException in _mro(item):
            return "e" + self.lineage(item)
        if kind is types.ModuleType:
            return "m"
        if kind in _ITERATORS:
            return "i"
        return f"o{_named(kind)}"

    def lineage(self, error: type[BaseException]) -> str:
        """The name of the nearest built-in exception, and the classes between."""
        between: list[str] = []
        for kind in _mro(error):
            if kind in _BUILTIN_ERRORS:
                return "|".join([_BUILTIN_ERRORS[kind], *reversed(between)])
            if BaseException in _mro(kind):
                between.append(f"{self._number(kind)}:{_named(kind)}")
        return "Exception"

    def _resolve(self, token: str) -> Any:
        if token[:1] == "r":
            if not 0 <= int(token[1:]) < len(self._mine):  # an IndexError could end a loop of the test
                raise NotPlain(token[:20])
            return self._mine[int(token[1:])]
        if token[:1] != "h":
            raise NotPlain(token[:20])
        number, _, kind = token[1:].partition(" ")
        if int(number) not in self._theirs:
            self.new.add(int(number))
            self._theirs[int(number)] = stand_in(self, int(number), kind)
        self.made.discard(int(number))  # until `note`: a method that returns it could return it as anything
        return self._theirs[int(number)]

    def _read(self, chunks: Sequence[str]) -> Any:
        self.new.clear()
        reader = Reader(self._resolve, self._array, attached, longest=_ANY_LENGTH)
        for chunk in chunks:
            self._received += len(chunk)
            reader.feed(chunk)
        return reader.value

    def _array(self, kind: str, nested: Any) -> Any:
        """Rebuild a numpy array if numpy is installed."""
        try:
            import numpy  # noqa: PLC0415  # slow to load, and seldom needed
        except ImportError:
            return nested
        array = numpy.array(nested, dtype=kind)
        self._received += array.nbytes
        return array

    # Doing.

    def _done(self, request: Any) -> Said:
        try:
            result, changed = self.performed(request)
        except KeyboardInterrupt:
            raise
        except SystemExit:
            return Said("ended 0\n[]")
        except BaseException as error:  # the program's
            return self._failed(error)
        try:
            return self.message("returned", (result, changed, None))
        except TooLarge:
            return self.message("returned", (types.SimpleNamespace(large=result), None, None))

    def performed(self, request: Any) -> tuple[Any, Any]:
        """The result, and the arguments if they have changed."""
        if self.wary and not permitted(request, lambda item: id(item) in self._numbers):
            raise AttributeError("a test lets a program use only what it has passed to it")
        if self.ahead is not None and self.ahead[0] == request:
            (_, done), self.ahead = self.ahead, None
            return done
        deed = getattr(Deeds, request[0])
        given = request[-1][-1] if request[0] in ("chain", "entry") and len(request[-1][-1]) == 2 else ()
        before = self._state(given)
        result = deed(self, *request[1:])
        return result, None if before == self._state(given) else given

    def _failed(self, error: BaseException) -> Said:
        lineage, args, text = self.described(error)
        try:
            return self.message("raised", (lineage, args, text))
        except TooLarge:
            return self.message("raised", (lineage, (), text))

    def described(self, error: BaseException) -> tuple[str, tuple[Any, ...], str]:
        """A test does not reveal its traceback: its lines show what is expected."""
        text = "" if self.wary else self._told(error)[-_TEXT_MOST:]
        return self.lineage(type(error)), error.args, text

    def _state(self, given: Any) -> Sequence[str]:
        """A snapshot of arguments that can be changed in place."""
        if not given or not any(type(one) in _CONTAINERS for one in (*given[0], *given[1].values())):
            return ()
        try:
            return write(given, self.refer)
        except TooLarge:
            return ()

    def named(self, name: str) -> Any:
        if name in self.names:
            return self.names[name]
        if name in BUILTINS:
            return BUILTINS[name]
        raise NameError(f"name {name!r} is not defined")

    # Threads.

    def _say(self, said: Said) -> None:
        self._said = said
        self._spoke.release()

    def _heard(self) -> Said:
        self._spoke.acquire()
        return self._said


def _named(kind: type) -> str:
    name: str = type.__dict__["__name__"].__get__(kind)
    return name if name.isidentifier() and len(name) < 100 else "object"


_CONTAINERS = (list, dict, set, tuple, deque)
_ANY_LENGTH = 2**40
"""A sandbox may read any length: its memory is limited, and the host limits what the other side sends."""
_MUCH = 2**14
"""Less is not worth the time of a collection."""
_TEXT_MOST = 20_000
"""Characters of a traceback."""


def begin(source: str, stdin: bytes, chunks: Sequence[str]) -> Said:
    """Run a program, then perform the first request."""
    program: Any = sys.modules["toolyard_program"]
    main = program.prepare(stdin)
    ending, _ = program.attempt(source, main)
    if ending:
        return Said(f"{ending} 0\n[]")
    side = Side(main, program.told)
    sys.modules[__name__].side = side  # type: ignore[attr-defined]  # where the host finds it
    return side.serve(chunks) if chunks else Said("ready 0\n[]")
