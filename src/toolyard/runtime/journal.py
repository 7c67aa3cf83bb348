"""`Journal`: calls listeners, such as metrics and logs, when something happens on a server.

To listen, add a function to the list of an event. The runtime calls it on the event loop, before it goes on: the
function must be quick and must not raise. An empty list costs a call almost nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol, TypeAlias

from toolyard.core.output import Blocks, JsonObject, Reason, Reply
from toolyard.placement.base import SessionSpec

Outcome: TypeAlias = Literal["ok"] | Reason

Why: TypeAlias = Literal["deleted", "idle", "drained", "replaced", "failed"]
"""Why a session was closed: its client deleted it, nobody used it, the server ends, its client meant another
environment, or it could not be built."""

Opened: TypeAlias = Callable[[SessionSpec], None]
Settled: TypeAlias = Callable[[SessionSpec, str, float], None]
Rebuilt: TypeAlias = Callable[[SessionSpec], None]
Started: TypeAlias = Callable[[SessionSpec, str], None]
Answered: TypeAlias = Callable[[SessionSpec, str, Outcome, float, float | None], None]
Closed: TypeAlias = Callable[[SessionSpec, Why, float], None]
Swept: TypeAlias = Callable[[float], None]


class Deed(Protocol):
    """What a recorder remembers of a call that has begun."""


class Recorder(Protocol):
    """Keeps what happens in sessions. Its methods are quick and do not raise."""

    @property
    def left_out(self) -> int:
        """How many episodes are missing or incomplete."""

    @property
    def waiting(self) -> int:
        """How many events are not written yet."""

    def began(self, spec: SessionSpec, tool: str, arguments: JsonObject, given: JsonObject, said: str) -> Deed | None:
        """A call has begun. `said` is the text in which the model wrote it. None if this session is not recorded."""

    def ended(self, deed: Deed, result: Reply, waited: float, ran: float | None) -> None: ...
    def prompted(self, spec: SessionSpec, prompt: Blocks) -> None: ...


class Journal:
    __slots__ = ("answered", "closed", "opened", "rebuilt", "recorder", "settled", "started", "swept")

    def __init__(self) -> None:
        self.opened: list[Opened] = []
        """A session's environment is about to be built."""
        self.settled: list[Settled] = []
        """A session is set up, or has failed: the problem, empty if there is none, and seconds since it was opened."""
        self.rebuilt: list[Rebuilt] = []
        """A session's environment was lost, and the runtime has made it again."""
        self.started: list[Started] = []
        """A session has taken a call of this tool, which may still have to wait."""
        self.answered: list[Answered] = []
        """A call of this tool is over: its outcome, the seconds that it waited and the seconds that it ran; None if it
        never ran."""
        self.closed: list[Closed] = []
        """A session is closed: why, and the seconds since it was opened. Its teardown comes next."""
        self.recorder: Recorder | None = None
        """Keeps calls with their arguments and results, if recording is on."""
        self.swept: list[Swept] = []
        """The server's clock ticked, this many seconds late: as late as everything else on the event loop."""
