"""What happens on a server, told to whoever listens: metrics and logs.

To listen, add a function to the list of what you want to hear. It is called at once, on the event loop, in everybody's
way: it must be quick, and it must not raise. A list that is empty costs a call no more than a look at it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

from toolyard.core.output import Reason
from toolyard.placement.base import SessionSpec

Outcome: TypeAlias = Literal["ok"] | Reason

Why: TypeAlias = Literal["deleted", "idle", "drained", "replaced", "failed"]
"""Why a session was closed: its client wanted that, nobody used it, the server ends, its client meant another
environment, or it could not be built."""

Opened: TypeAlias = Callable[[SessionSpec], None]
Settled: TypeAlias = Callable[[SessionSpec, str, float], None]
Rebuilt: TypeAlias = Callable[[SessionSpec], None]
Started: TypeAlias = Callable[[SessionSpec, str], None]
Answered: TypeAlias = Callable[[SessionSpec, str, Outcome, float, float | None], None]
Closed: TypeAlias = Callable[[SessionSpec, Why, float], None]
Swept: TypeAlias = Callable[[float], None]


class Journal:
    __slots__ = ("answered", "closed", "opened", "rebuilt", "settled", "started", "swept")

    def __init__(self) -> None:
        self.opened: list[Opened] = []
        """Its environment is about to be built."""
        self.settled: list[Settled] = []
        """It is set up, or what went wrong with that; and how many seconds after it was opened."""
        self.rebuilt: list[Rebuilt] = []
        """Its environment was lost, and has been made again."""
        self.started: list[Started] = []
        """A call of this tool was taken, though it may have to wait."""
        self.answered: list[Answered] = []
        """A call of this tool is over: its outcome, the seconds that it waited, and those that it ran; None if it never
        did."""
        self.closed: list[Closed] = []
        """And why, and how many seconds after it was opened. Its teardown comes now."""
        self.swept: list[Swept] = []
        """The server's clock ticked, so many seconds late: as late as everything else on the event loop."""
