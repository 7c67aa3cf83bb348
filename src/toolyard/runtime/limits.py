"""The limits of the runtime: how long, how much, how many. `settings.py` explains each."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    idle_seconds: float
    setup_seconds: float
    call_seconds: float
    teardown_seconds: float
    drain_seconds: float
    replay_seconds: float
    replay_bytes: int
    outcome_seconds: float
    output_bytes: int
    max_sessions: int
    max_concurrent_calls: int
    max_queued_calls: int
    latch_finished: bool
    sweep_seconds: float
