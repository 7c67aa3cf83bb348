"""Overview: what is served, what happens now, and what is wrong."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from typing import Any

from toolyard.core.environment import needs_sandbox
from toolyard.sandboxes.provider import in_force
from toolyard.studio.environments import served
from toolyard.studio.parts import Parts
from toolyard.studio.pulse import Sample, joined
from toolyard.studio.sessions import whole_number
from toolyard.studio.trouble import recent_troubles, troubles_of, without_doubles
from toolyard.studio.visit import Page, Visit

_AGAIN, _MINUTE = 3, 60
"""Seconds."""
_PLACES = {
    "local": "in the server's process",
    "process": "in a process each",
    "pool": "in a pool of processes",
    "ray": "on a Ray cluster",
}


def pages(parts: Parts) -> Sequence[Page]:
    return [
        Page("GET", "", overview),
        Page("GET", "api/v1/pulse", pulse),
        Page("GET", "api/v1/here/pulse/*", pulse_here),
    ]


async def overview(visit: Visit) -> None:
    parts = visit.parts
    await visit.page("overview.html", environments=served(parts.runtime), facts=facts(parts))


def facts(parts: Parts) -> list[tuple[str, str]]:
    runtime, options = parts.runtime, parts.options
    report = in_force()
    uses_sandbox = any(map(needs_sandbox, runtime.environments.values()))
    isolation = "not started yet" if uses_sandbox else "none needed"
    if report is not None:
        lacks = ", ".join(one.feature for one in report.missing)
        isolation = f"{report.backend}, isolation {report.level}" + f", without {lacks}" * bool(lacks)
    return [
        ("Sessions live", _PLACES[options.placement]),
        ("Gateways", str(runtime.owners.count)),
        ("Sandboxes", isolation),
        ("Episodes", f"kept in {options.record}" if options.record else "not kept"),
        ("Who may use it", "whoever has the key" if options.api_key else "whoever can reach it"),
    ]


async def pulse(visit: Visit) -> None:
    """Every second: the newest samples, and how things stand now. The first message has those of five minutes."""
    await visit.events(_beats(visit))


async def _beats(visit: Visit) -> AsyncIterator[object]:
    since = 0
    minute: dict[int, Sample] = {}
    while True:
        # The newest seconds may still grow, where several gateways count: they are asked for, and sent, again.
        standings, missing = await _asked(visit.parts, max(since - _AGAIN, 0))
        samples = joined([standing["samples"] for standing in standings])
        minute.update({sample.second: sample for sample in samples[-_MINUTE:]})
        for second in sorted(minute)[:-_MINUTE]:
            del minute[second]
        last = [minute[second] for second in sorted(minute)]
        now: Counter[str] = Counter()
        sessions: Counter[str] = Counter()
        calls: Counter[str] = Counter()
        for standing in standings:
            now.update(standing["now"])
            sessions.update(standing["sessions"])
            calls.update(standing["calls"])
        troubles = [one for standing in standings for one in standing["troubles"]]
        if missing:
            troubles.append(
                {
                    "words": f"{missing} of the gateways did not answer.",
                    "advice": "The supervisor replaces one that has ended. Look into the server's log.",
                }
            )
        yield {
            "samples": [sample.as_json() for sample in samples],
            "now": now,
            "sessions": sessions,
            "calls": calls,
            "troubles": without_doubles([*troubles, *recent_troubles(last)]),
        }
        since = max((sample.second for sample in samples), default=since)
        await asyncio.sleep(1.0)


async def _asked(parts: Parts, since: int) -> tuple[list[Any], int]:
    """How things stand on all gateways, and how many did not answer."""
    owners = parts.runtime.owners
    answers = await owners.ask_others(f"GET /studio/api/v1/here/pulse/{since}")
    found = [standing_of(parts, since), *map(read, answers.values())]
    return found, owners.count - len(found)


async def pulse_here(visit: Visit) -> None:
    standing = standing_of(visit.parts, whole_number(visit.named[0]))
    await visit.json({**standing, "samples": [asdict(sample) for sample in standing["samples"]]})


def read(answer: bytes) -> dict[str, Any]:
    """How things stand on another gateway."""
    standing: dict[str, Any] = json.loads(answer)
    return {**standing, "samples": [Sample(**one) for one in standing["samples"]]}


def standing_of(parts: Parts, since: int) -> dict[str, Any]:
    runtime = parts.runtime
    busy = [session for session in runtime.sessions.values() if session.running]
    running, waiting = sum(session.running for session in busy), sum(session.waiting for session in busy)
    by_class = Counter(session.spec.environment for session in runtime.sessions.values())
    by_environment = {environment.name().lower(): count for environment, count in by_class.items()}
    return {
        "samples": parts.pulse.after(since),
        "now": {"sessions": len(runtime.sessions), "running": running - waiting, "waiting": waiting},
        "sessions": by_environment,
        "calls": parts.pulse.calls,
        "troubles": troubles_of(runtime, parts.options),
    }
