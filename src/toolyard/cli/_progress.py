"""A line on the terminal that shows how an evaluation goes, if the package rich is installed."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from toolyard.agents.evaluation import Evaluation, Prices

_EVERY = 0.25
"""Seconds between two looks at all attempts."""


@contextmanager
def shown_progress(evaluation: Evaluation, prices: Prices) -> Iterator[Callable[[], None]]:
    """The function to call when something has changed."""
    if not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
        yield lambda: None
        return
    parts: Any = importlib.import_module("rich.progress")
    console: Any = importlib.import_module("rich.console").Console(stderr=True)
    columns = (
        parts.BarColumn(),
        parts.MofNCompleteColumn(),
        parts.TimeRemainingColumn(),
        parts.TextColumn("{task.description}"),
    )
    with parts.Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("", total=len(evaluation.planned))

        shown = 0.0

        def show() -> None:
            nonlocal shown
            if time.monotonic() < shown + _EVERY:
                return
            shown = time.monotonic()
            left = len(evaluation.left)
            progress.update(bar, completed=len(evaluation.planned) - left, description=status(evaluation, prices))

        show()
        yield show


def status(evaluation: Evaluation, prices: Prices) -> str:
    """The mean return so far, the failures, and the cost."""
    tokens, mean = evaluation.tokens, evaluation.summary.mean
    failed = Counter(attempt.outcome for attempt in evaluation.attempts if attempt.failed_by is not None)
    parts = [
        f"return {mean:.3f}" if mean is not None else "",
        *(f"{count} {name}" for name, count in failed.most_common(3)),
        f"{tokens.prompt + tokens.completion:,} tokens" if tokens.completion else "",
        f"cost {cost:.2f}" if (cost := prices.of(tokens)) else "",
    ]
    return "  ".join(filter(None, parts))
