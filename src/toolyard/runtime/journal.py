"""`Journal`: calls listeners, such as metrics and logs, when something happens on a server.

To listen, add a function to the list of an event. The runtime calls it on the event loop, before it goes on: the
function must be quick and must not raise. An empty list costs a call almost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, Protocol, TypeAlias

from toolyard.core.output import Blocks, JsonObject, Reason, Reply
from toolyard.placement.base import SessionSpec

Outcome: TypeAlias = Literal["ok"] | Reason

Why: TypeAlias = Literal["deleted", "idle", "drained", "replaced", "failed"]
"""Why a session was closed: its client deleted it, it was idle, the server ends, its client meant another environment,
or it could not be built."""

Opened: TypeAlias = Callable[[SessionSpec], None]
Settled: TypeAlias = Callable[[SessionSpec, str, float], None]
Rebuilt: TypeAlias = Callable[[SessionSpec], None]
Started: TypeAlias = Callable[[SessionSpec, str], None]
Answered: TypeAlias = Callable[[SessionSpec, str, Outcome, float, float | None], None]
Closed: TypeAlias = Callable[[SessionSpec, Why, float], None]
Swept: TypeAlias = Callable[[float], None]


class Deed(Protocol):
    """A listener's own note of a running call."""

    def ended(self, result: Reply, waited: float, ran: float | None) -> None: ...


class Listener(Protocol):
    """Hears of calls, with their arguments and results. Its methods are quick and do not raise."""

    def began(self, spec: SessionSpec, tool: str, arguments: JsonObject, given: JsonObject, said: str) -> Deed | None:
        """A call has begun. `said` is the text in which the model wrote it. None if the listener ignores this call."""

    def prompted(self, spec: SessionSpec, prompt: Blocks) -> None: ...


class Recorder(Listener, Protocol):
    """Keeps what happens in sessions."""

    @property
    def left_out(self) -> int:
        """How many episodes are missing or incomplete."""

    @property
    def waiting(self) -> int:
        """How many events are not written yet."""


class _Deeds:
    """The notes of several listeners."""

    __slots__ = ("_deeds",)

    def __init__(self, deeds: Sequence[Deed]) -> None:
        self._deeds = deeds

    def ended(self, result: Reply, waited: float, ran: float | None) -> None:
        for deed in self._deeds:
            deed.ended(result, waited, ran)


class _Listeners:
    """Several listeners as one."""

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self.listeners = listeners

    def began(self, spec: SessionSpec, tool: str, arguments: JsonObject, given: JsonObject, said: str) -> Deed | None:
        deeds = [listener.began(spec, tool, arguments, given, said) for listener in self.listeners]
        kept = [deed for deed in deeds if deed is not None]
        return _Deeds(kept) if len(kept) > 1 else kept[0] if kept else None

    def prompted(self, spec: SessionSpec, prompt: Blocks) -> None:
        for listener in self.listeners:
            listener.prompted(spec, prompt)


class Journal:
    __slots__ = ("answered", "closed", "listener", "opened", "rebuilt", "recorder", "settled", "started", "swept")

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
        self.listener: Listener | None = None
        """Hears of calls with their arguments and results, if anything listens. `hear` and `unhear` set it."""
        self.recorder: Recorder | None = None
        """The listener that keeps what it hears, if recording is on."""
        self.swept: list[Swept] = []
        """The server's clock ticked, this many seconds late: as late as everything else on the event loop."""

    def hear(self, listener: Listener) -> None:
        """From now on, tell this listener of calls too."""
        self._tell([*self._listeners, listener])

    def unhear(self, listener: Listener) -> None:
        self._tell([one for one in self._listeners if one is not listener])

    @property
    def _listeners(self) -> Sequence[Listener]:
        if isinstance(self.listener, _Listeners):
            return self.listener.listeners
        return [] if self.listener is None else [self.listener]

    def _tell(self, listeners: Sequence[Listener]) -> None:
        self.listener = _Listeners(listeners) if len(listeners) > 1 else listeners[0] if listeners else None
