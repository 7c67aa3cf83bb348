"""A placement that counts how often the runtime builds and tears down, and a handler that keeps what is logged."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from toolyard.placement.base import Placed, SessionSpec
from toolyard.placement.local import LocalEnvironment, LocalPlacement


class Witness(LocalPlacement):
    """A LocalPlacement that counts how often environments are built and torn down."""

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self.built = 0
        self.torn_down = 0

    async def place(self, spec: SessionSpec) -> LocalEnvironment:
        placed = await super().place(spec)
        self.built += 1
        return cast(LocalEnvironment, _Witnessed(placed, self))  # it delegates the rest


class _Witnessed:
    def __init__(self, placed: Placed, witness: Witness) -> None:
        self._placed = placed
        self._witness = witness

    async def teardown(self) -> None:
        self._witness.torn_down += 1
        await self._placed.teardown()

    def __getattr__(self, name: str) -> Any:  # delegates the rest to the environment
        return getattr(self._placed, name)


class LoggedMeanwhile(logging.Handler):
    """Keeps log records and warnings while it listens."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.warnings: list[warnings.WarningMessage] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def last_error(self) -> BaseException | None:
        """The exception of the last record."""
        info = self.records[-1].exc_info if self.records else None
        return info[1] if info else None


@contextmanager
def hearing() -> Iterator[LoggedMeanwhile]:
    """Collect the records of Toolyard's and asyncio's loggers, instead of writing them, and Python's warnings."""
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
