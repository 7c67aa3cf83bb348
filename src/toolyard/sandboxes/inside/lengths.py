"""Holds objects of a program to the number of items that they have told a test, so that no loop ends early.

Imports only the standard library: sandboxes load the text of this file. An object could say that it has three items and
then give none to the loop that asserts something of each. A call may change the program's objects, so it makes the test
forget what they have told.
"""

from __future__ import annotations

from typing import Any

VIEWS = ("items", "keys", "values")
"""Methods that return as many items as their object has."""
CONTRADICTION = "The program's object says that it has {} items, and a loop over it gets {}."


class Lengths:
    """Objects, iterators and views are known by their numbers."""

    def __init__(self) -> None:
        self._told: dict[int, int] = {}
        self._looped: dict[int, int] = {}
        """Items that a loop got until its end, of several loops the fewest."""
        self._sources: dict[int, int] = {}
        """The object that an iterator, a view, or the method that returns the view belongs to."""

    def link(self, part: int, whole: int) -> None:
        if part != (whole := self._whole(whole)):  # an iterator may be the object itself
            self._sources[part] = whole

    def tell(self, number: int, length: int) -> str:
        """Note what `len()` returned. The text says what it contradicts."""
        whole = self._whole(number)
        if length > self._looped.get(whole, length):
            return CONTRADICTION.format(length, self._looped[whole])
        if length < (before := self._told.get(whole, 0)):
            return f"The program's object says that it has {before} items, and then {length}."
        self._told[whole] = length
        return ""

    def told(self, number: int) -> int:
        return self._told.get(self._whole(number), 0)

    def end(self, number: int, count: int, least: int = 0) -> str:
        """Note that a loop has got this many items in all. `least` was told before it began. The text says what it
        contradicts."""
        whole = self._whole(number)
        if count < (told := max(least, self._told.get(whole, 0))):
            return CONTRADICTION.format(told, count)
        self._looped[whole] = min(count, self._looped.get(whole, count))
        return ""

    def is_part(self, number: int) -> bool:
        return number in self._sources

    def forget(self, request: tuple[Any, ...]) -> None:
        """Forget what a request may change. Reading an item may add one, as in a defaultdict."""
        match request:
            case ("chain", _, _, [*steps]) if not any(len(step) == 2 for step in steps):
                return  # it reads attributes
            case ("chain", method, False, [[[], keywords]]) if not keywords and method._number_ in self._sources:
                return  # it asks for a view
            case ("chain" | "put", *_) | ("operate", "setitem" | "delitem", _):
                self._told.clear()
                self._looped.clear()
            case ("operate", "getitem", _):
                self._looped.clear()

    def _whole(self, number: int) -> int:
        return self._sources.get(number, number)
