"""The events that the event loop hands to the writer of a store: small, and made quickly."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from toolyard.core.output import Blocks, Reply
from toolyard.placement.base import SessionSpec
from toolyard.runtime.journal import Why


class Open:
    """An open episode. The event loop owns the first half of its fields, the writer the second."""

    __slots__ = (
        *("begun", "broken", "id", "keep", "parent", "parent_step", "spec", "task"),
        *("closed", "file", "finished", "last", "number", "prompt", "rewards", "rowid", "total", "why"),
    )

    def __init__(self, episode_id: str, spec: SessionSpec, task: bytes, keep: Keep | None = None) -> None:
        self.id = episode_id
        self.keep = keep
        """Takes each call when it is over, with its result. None if its steps do not come from a journal."""
        self.spec = spec
        self.task = task
        """The task as JSON, before the author's code could change it."""
        self.begun = 0
        """How many steps have begun."""
        self.broken = False
        """A part of it was lost, so the store keeps no more of it."""
        self.parent: Open | None = None
        self.parent_step = 0
        self.rowid = 0
        self.file: object = None
        """The connection to the file with its row."""
        self.number = 0
        """How many steps are written."""
        self.total: float | None = None
        self.rewards: dict[str, float] = {}
        """The sums of the rewards that have names."""
        self.finished = False
        self.last = "ok"
        """The outcome of the last written step."""
        self.prompt: bytes | None = None
        self.closed: float | None = None
        self.why: Why | None = None

    @property
    def outcome(self) -> str:
        """How it ended, in one word."""
        if self.finished:
            return "finished"
        match self.why:
            case None:
                return "open"
            case "failed":
                return "failed"
            case why:
                return "lost" if self.last == "lost" else "idle" if why == "idle" else "closed"

    @property
    def complete(self) -> bool:
        """Whether it is over, and every step that began is written."""
        return self.closed is not None and self.number == self.begun and not self.broken


class Deed:
    """A call that has begun."""

    __slots__ = ("arguments", "at", "given", "number", "of", "said", "tool")

    def __init__(self, of: Open, tool: str, arguments: bytes, given: bytes, said: str) -> None:
        self.of = of
        self.tool = tool
        self.arguments = arguments
        self.given = given
        self.said = said
        self.number = of.begun
        self.at = time.time()

    def ended(self, result: Reply, waited: float, ran: float | None) -> None:
        if self.of.keep is not None:
            self.of.keep(self, result, waited, ran)


Keep: TypeAlias = Callable[[Deed, Reply, float, float | None], None]


@dataclass(slots=True)
class Opened:
    of: Open
    at: float = field(default_factory=time.time)


@dataclass(slots=True)
class Prompted:
    of: Open
    blocks: Blocks


@dataclass(slots=True)
class Stepped:
    deed: Deed
    result: Reply
    waited: float
    ran: float | None


@dataclass(slots=True)
class Closed:
    of: Open
    why: Why
    at: float = field(default_factory=time.time)


Event: TypeAlias = Opened | Prompted | Stepped | Closed
