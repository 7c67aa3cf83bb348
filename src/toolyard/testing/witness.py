"""A placement that sees what the runtime asks of an environment, and a log handler that hears what it says."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from toolyard.placement.base import Placed, SessionSpec
from toolyard.placement.local import LocalEnvironment, LocalPlacement


class Witness(LocalPlacement):
    """LocalPlacement, and how often an environment was built and torn down."""

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self.built = 0
        self.torn_down = 0

    async def place(self, spec: SessionSpec) -> LocalEnvironment:
        placed = await super().place(spec)
        self.built += 1
        return cast(LocalEnvironment, _Witnessed(placed, self))  # by delegation


class _Witnessed:
    def __init__(self, placed: Placed, witness: Witness) -> None:
        self._placed = placed
        self._witness = witness

    async def teardown(self) -> None:
        self._witness.torn_down += 1
        await self._placed.teardown()

    def __getattr__(self, name: str) -> Any:  # everything else is the environment's own
        return getattr(self._placed, name)


class LoggedMeanwhile(logging.Handler):
    """What was logged, and warned of, while it listened."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.warnings: list[warnings.WarningMessage] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def last_error(self) -> BaseException | None:
        """The exception that the last record came with."""
        info = self.records[-1].exc_info if self.records else None
        return info[1] if info else None


@contextmanager
def hearing() -> Iterator[LoggedMeanwhile]:
    """Listen to our loggers and to asyncio's instead of letting them write, and to Python's warnings."""
    heard = LoggedMeanwhile()
    loggers = [logging.getLogger(name) for name in ("toolyard", "asyncio")]
    before = [(logger.handlers, logger.propagate, logger.level) for logger in loggers]
    for logger in loggers:
        logger.handlers, logger.propagate = [heard], False
        logger.setLevel(logging.WARNING)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            heard.warnings = caught
            yield heard
    finally:
        for logger, (handlers, propagate, level) in zip(loggers, before, strict=True):
            logger.handlers, logger.propagate = handlers, propagate
            logger.setLevel(level)
