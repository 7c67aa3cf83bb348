"""What is wrong right now, and what to do about it, in sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from toolyard.gate import is_loopback_name
from toolyard.readiness import obstacles
from toolyard.runtime.runtime import Runtime
from toolyard.studio.parts import Options
from toolyard.studio.pulse import Sample

_RECENT = 60
"""Samples, of about a second each."""
_LATE_SECONDS = 0.25

_FULL = {
    "draining": "It starts no more sessions. Start it again when it has ended.",
    "full": "Close sessions that nobody uses, or raise --max-sessions or --max-concurrent-calls.",
    "unavailable": "Run `toolyard doctor` on the server's machine: it names what is missing.",
}
_FAILED: Mapping[str, tuple[str, str]] = {
    "tool_raised": (
        "{count} calls in the last minute broke, because a tool raised an error that its author did not expect.",
        "The server's log has the traceback of each.",
    ),
    "timed_out": (
        "{count} calls in the last minute took too long, and were stopped.",
        "Raise --call-seconds, or the timeout of the tool, if they need the time.",
    ),
    "lost": (
        "{count} calls in the last minute are lost: their environment, or a service that it uses, was gone.",
        "The server's log says what was lost. These calls are never scored; trainers may make them again.",
    ),
    "overloaded": (
        "{count} calls in the last minute were refused, because too many were waiting.",
        "Send fewer at once, raise --max-queued-calls, or use --gateways and --placement pool.",
    ),
}


_ONE = [("calls", "call"), ("sessions", "session"), ("were", "was"), ("are lost", "is lost"), ("their", "its")]


def troubles_of(runtime: Runtime, options: Options) -> list[dict[str, str]]:
    """What a gateway itself knows to be wrong."""
    return [{"words": words, "advice": advice} for words, advice in _here(runtime, options)]


def _here(runtime: Runtime, options: Options) -> Iterator[tuple[str, str]]:
    for obstacle in obstacles(runtime):
        yield f"The server takes no new sessions: {obstacle.reason}.", _FULL[obstacle.status]
    if waiting := runtime.shared.slots.waiting:
        yield (
            f"{waiting} calls wait for a slot, because {runtime.limits.max_concurrent_calls} run already.",
            "Raise --max-concurrent-calls if the machine has room.",
        )
    recorder = runtime.journal.recorder
    if recorder is not None and recorder.left_out:
        yield (
            f"{recorder.left_out} episodes are not recorded, or not whole: the disk could not keep up.",
            "Record on a faster disk, or a part of all sessions with --record-fraction.",
        )
    if not (options.api_key or is_loopback_name(options.host)):
        yield (
            "Everybody who can reach this server may use it: it asks for no key.",
            "Start it with --api-key, unless its network keeps others out.",
        )


def recent_troubles(samples: Sequence[Sample]) -> list[dict[str, str]]:
    """What the last minute shows."""
    return [{"words": words, "advice": advice} for words, advice in _recently(samples[-_RECENT:])]


def _recently(samples: Sequence[Sample]) -> Iterator[tuple[str, str]]:
    outcomes: Counter[str] = Counter()
    for sample in samples:
        outcomes.update(sample.outcomes)
    for outcome, (words, advice) in _FAILED.items():
        if count := outcomes[outcome]:
            yield said(words, count), advice
    if failed := sum(sample.setups_failed for sample in samples):
        yield (
            said("{count} sessions in the last minute could not be set up.", failed),
            "The server's log has the traceback of each constructor or setup() that failed.",
        )
    late = max((sample.late for sample in samples[-10:]), default=0.0)
    if late > _LATE_SECONDS:
        yield (
            f"The event loop was {late:.1f} s late: something blocks it, or the machine has too much to do.",
            "A coroutine that computes holds up every session. Write it as a plain function, which runs in a thread, "
            "or use --placement process.",
        )


def said(words: str, count: int) -> str:
    text = words.format(count=f"{count:,}")
    if count == 1:
        for many, one in _ONE:
            text = text.replace(many, one)
    return text


def without_doubles(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return list({one["words"]: one for one in found}.values())
