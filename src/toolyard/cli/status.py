"""Shows on one screen what a server does now, from its metrics."""

from __future__ import annotations

import argparse
import json
import os
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping
from typing import Any

import httpx2

from toolyard.cli._look import ServerLook, read
from toolyard.core.errors import ToolyardError
from toolyard.settings import variable_of

HELP = "show what a server does now"

EXAMPLES = """\
examples:
  toolyard status http://127.0.0.1:8080
  toolyard status http://127.0.0.1:8080 --watch       every 2 seconds, with rates, until Ctrl-C
  toolyard status http://127.0.0.1:8080 --json | jq .sessions

exit codes: 0 it takes new sessions, 1 it does not, 2 the command makes no sense, 3 no server answers
"""
_PATIENCE = 5.0
_NOBODY = 3
_METRICS = "/toolyard/metrics"
"""This path also works when another protocol has /metrics."""


class StatusError(ToolyardError):
    """The command line makes no sense, or the server refuses the request."""


class Stranger(ToolyardError):
    """Another kind of server answers."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("url", metavar="URL", help="where the server is, such as http://127.0.0.1:8080")
    parser.add_argument("--api-key", metavar="KEY", help=f"key of the server [{variable_of('api_key')}]")
    parser.add_argument("--json", action="store_true", help="for other programs; with --watch one line for each look")
    parser.add_argument(
        "--watch",
        type=float,
        nargs="?",
        const=2.0,
        metavar="SECONDS",
        help="look again and again, and show what happened since the last look [2]",
    )


def run(args: argparse.Namespace) -> int:
    if args.watch is not None and not args.watch > 0:
        raise StatusError(f"--watch is {args.watch:g}; it must be more than 0")
    key = args.api_key or os.environ.get(variable_of("api_key"), "")
    try:
        with httpx2.Client(base_url=args.url, headers={"X-API-Key": key} if key else {}, timeout=_PATIENCE) as client:
            look = look_at(client, args.url)
            show(args, look, None)
            while args.watch is not None:
                time.sleep(args.watch)
                look, before = look_at(client, args.url), look
                show(args, look, before)
    except (httpx2.InvalidURL, httpx2.UnsupportedProtocol):
        raise StatusError(f"{args.url!r} is no address of a server; one looks like http://127.0.0.1:8080") from None
    except Stranger as error:
        return explain(str(error))
    except httpx2.TransportError as error:
        return explain(f"there is no answer from {args.url} ({error}). To start a server: toolyard serve")
    return int(not look.ready)


def explain(problem: str) -> int:
    print(textwrap.fill(f"toolyard status: {problem}", 100, break_on_hyphens=False), file=sys.stderr)
    return _NOBODY


def look_at(client: httpx2.Client, url: str) -> ServerLook:
    answer = client.get(_METRICS)
    if answer.status_code == 401:
        refused = "it does not take this key" if "x-api-key" in client.headers else "it asks for a key"
        raise StatusError(f"{refused}: {url}. The key is given with --api-key or {variable_of('api_key')}")
    if answer.status_code != 200 or not answer.text.startswith("# HELP"):
        raise Stranger(f"{url} is no Toolyard server: it answers {answer.status_code} to {_METRICS}, and no metrics")
    health = client.get("/health")
    try:
        told = health.json()
    except ValueError:
        told = {}
    return ServerLook(url, time.monotonic(), told if isinstance(told, dict) else {}, list(read(answer.text)))


# For people.


def show(args: argparse.Namespace, look: ServerLook, before: ServerLook | None) -> None:
    if args.json:
        print(json.dumps(as_json(look), indent=None if args.watch else 2), flush=True)
        return
    clear = "\x1b[H\x1b[2J" if before is not None and sys.stdout.isatty() else ""
    print(clear + "\n".join(page(look, before)), flush=True)


def page(look: ServerLook, before: ServerLook | None) -> Iterator[str]:
    version = look.info("toolyard_build_info").get("version", "?")
    state = "ready" if look.ready else look.health.get("status", "not ready")
    yield f"Toolyard {version} at {look.url} is {state}; it has been up for {long_time(look.uptime)}"
    for reason in look.health.get("reasons", ()) if not look.ready else ():
        yield f"  {reason}"
    yield ""
    for name, text in (*overview(look), *(rates(look, before) if before is not None else ())):
        yield f"  {name:12}{text}"
    yield ""
    yield from table(look)


def overview(look: ServerLook) -> Iterator[tuple[str, str]]:
    states = look.by("state", "toolyard_sessions")
    calls = look.by("state", "toolyard_calls_in_progress")
    opened, closed = look.sum("toolyard_sessions_opened_total"), look.sum("toolyard_sessions_closed_total")
    yield "sessions", f"{sum(states.values()):,} of {look.sum('toolyard_sessions_limit'):,.0f} open{listed(states)}"
    reasons = look.by("reason", "toolyard_sessions_closed_total")
    yield "", f"{opened:,.0f} opened and {closed:,.0f} closed{listed(reasons)} since it started"
    yield "calls", f"{calls.get('running', 0):,} running, {calls.get('waiting', 0):,} waiting"
    outcomes = look.by("outcome", "toolyard_calls_total")
    yield "", f"{sum(outcomes.values()):,} answered{listed(outcomes)}"
    lag = look.within(0.99, "toolyard_loop_lag_seconds")
    yield "event loop", "not measured yet" if lag is None else f"late by {bound(lag)} at most, 99 % of the time"
    processes = look.sum("toolyard_placement_processes")
    kind = look.info("toolyard_placement_info").get("placement", "?")
    yield "placement", kind + f", {count(processes, 'process', 'processes')} with sessions" * (kind != "local")
    if sandbox := look.info("toolyard_sandbox_info"):
        ready, in_use = (look.sum("toolyard_sandboxes", state=state) for state in ("ready", "in_use"))
        counted = f"; {in_use:,.0f} in use, {ready:,.0f} ready" * bool(list(look.of("toolyard_sandboxes")))
        yield "sandboxes", f"{sandbox['backend']}, isolation {sandbox['level']}{counted}"
    memory, files = look.sum("process_resident_memory_bytes"), look.sum("process_open_fds")
    most = look.sum("process_max_fds")
    several = f"{look.gateways} gateways: " * (look.gateways > 1)
    yield "process", f"{several}{memory / 2**20:,.0f} MiB of memory, {files:,.0f} of {most:,.0f} files open"


def rates(look: ServerLook, before: ServerLook) -> Iterator[tuple[str, str]]:
    seconds = look.at - before.at
    each = {
        name: max(look.sum(total) - before.sum(total), 0) / seconds
        for name, total in (
            ("calls", "toolyard_calls_total"),
            ("sessions", "toolyard_sessions_opened_total"),
            ("processor", "process_cpu_seconds_total"),
        )
    }
    yield (
        "per second",
        f"{each['calls']:,.1f} calls, {each['sessions']:,.1f} sessions opened, {each['processor']:.0%} of a processor",
    )


def table(look: ServerLook) -> Iterator[str]:
    rows = [["environment", "sessions", "running", "waiting", "calls", "not ok", "waited", "ran"]]
    for name in look.environments:
        one = {"environment": name}
        calls, fine = look.sum("toolyard_calls_total", **one), look.sum("toolyard_calls_total", **one, outcome="ok")
        rows.append(
            [
                name,
                f"{look.sum('toolyard_sessions', **one):,.0f}",
                *(
                    f"{look.sum('toolyard_calls_in_progress', **one, state=state):,.0f}"
                    for state in ("running", "waiting")
                ),
                f"{calls:,.0f}",
                f"{calls - fine:,.0f}",
                *(bound(look.within(0.99, f"toolyard_call_{what}_seconds", **one)) for what in ("queue", "run")),
            ]
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        first, *others = (
            f"{cell:<{w}}" if not n else f"{cell:>{w}}" for n, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        yield f"  {first}   " + "   ".join(others)
    yield ""
    yield "  waited, ran: 99 % of the calls since the server started took no longer"


def listed(counts: Mapping[str, int]) -> str:
    """` (3 ready, 1 starting)`."""
    return f" ({', '.join(f'{count:,} {what}' for what, count in counts.items())})" if counts else ""


def count(number: float, noun: str, nouns: str) -> str:
    return f"{number:,.0f} {noun if number == 1 else nouns}"


def bound(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds == float("inf"):
        return "> 1 h"
    return f"{seconds * 1000:g} ms" if seconds < 1 else f"{seconds:g} s"


def long_time(seconds: float) -> str:
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if days:
        return f"{days} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min {int(seconds) % 60} s" if minutes else f"{max(seconds, 0):.0f} s"


# For programs.


def as_json(look: ServerLook) -> dict[str, Any]:
    return {
        "url": look.url,
        "ready": look.ready,
        "reasons": look.health.get("reasons", []) if not look.ready else [],
        "version": look.info("toolyard_build_info").get("version"),
        "uptime_seconds": round(look.uptime, 3),
        "gateways": look.gateways,
        "placement": look.info("toolyard_placement_info").get("placement"),
        "processes": int(look.sum("toolyard_placement_processes")),
        "sandbox": as_sandbox(look),
        "memory_bytes": int(look.sum("process_resident_memory_bytes")),
        "cpu_seconds": look.sum("process_cpu_seconds_total"),
        "open_files": int(look.sum("process_open_fds")),
        "environments": {
            name: {
                "sessions": look.by("state", "toolyard_sessions", environment=name),
                "opened": int(look.sum("toolyard_sessions_opened_total", environment=name)),
                "closed": look.by("reason", "toolyard_sessions_closed_total", environment=name),
                "calls_now": look.by("state", "toolyard_calls_in_progress", environment=name),
                "calls": look.by("outcome", "toolyard_calls_total", environment=name),
            }
            for name in look.environments
        },
    }


def as_sandbox(look: ServerLook) -> dict[str, Any] | None:
    info = {name: value for name, value in look.info("toolyard_sandbox_info").items() if name != "gateway"}
    return {**info, **look.by("state", "toolyard_sandboxes")} if info else None
