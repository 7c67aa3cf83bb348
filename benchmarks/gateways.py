"""One gateway against several: `python -m benchmarks.gateways`. What forwarding a request costs.

Servers are up at once and take turns under the same load. Sessions with ids that a client chose are on any gateway: of
`n` gateways, one call in `n` arrives where its session is. Sessions with ids that the server issued over the same
connection are where their calls arrive, so that none is forwarded.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from statistics import median
from typing import TypeAlias

from benchmarks.cache import load_generator
from benchmarks.load import Load, Step, drive
from benchmarks.report import aligned, micro, milli, per_second, progress
from benchmarks.servers import ENVIRONMENT, Started, running, serving

CONNECTIONS = 64
EVENTS = "text/event-stream"
CREATE = json.dumps({"task_spec": {"id": 1}})
CALL = Step("loop", "POST", "/echo/call", json.dumps({"name": "echo", "input": {"text": "hello world"}}), EVENTS)
LARGE = Step("loop", "POST", "/echo/call", json.dumps({"name": "fill", "input": {"size": 65536}}), EVENTS)
DELETE = Step("teardown", "POST", "/delete")

ANYWHERE = [Step("setup", "POST", "/create", CREATE, session="new")]
HERE = [
    Step("setup", "POST", "/create_session", "{}", EVENTS, session="take"),
    Step("setup", "POST", "/create", CREATE),
]
WORKS: Mapping[str, Sequence[Step]] = {
    "call, session here": [*HERE, CALL, DELETE],
    "call, session anywhere": [*ANYWHERE, CALL, DELETE],
    "64 KiB call, session here": [*HERE, LARGE, DELETE],
    "64 KiB call, session anywhere": [*ANYWHERE, LARGE, DELETE],
}

Figures: TypeAlias = dict[tuple[str, int], list[Load]]
"""By work and number of gateways, one for each round."""


def measure(counts: Sequence[int], rounds: int, seconds: float) -> Figures:
    generator = load_generator()
    figures: Figures = {(work, count): [] for work in WORKS for count in counts}
    with ExitStack() as stack:
        servers: dict[int, Started] = {}
        for count in counts:
            servers[count] = stack.enter_context(running(serving(str(ENVIRONMENT), "--gateways", str(count))))
        for number in range(rounds + 1):
            progress(f"round {number} of {rounds}")
            for work, steps in WORKS.items():
                for count in counts if number % 2 else reversed(counts):
                    load = drive(generator, servers[count], steps, connections=CONNECTIONS, seconds=seconds)
                    if number:  # the first warms up
                        figures[work, count].append(load)
    return figures


def table(figures: Figures, counts: Sequence[int]) -> str:
    lines = [("", "gateways", "CPU per call", "more than one gateway", "calls per second", "p50", "p99")]
    for (work, count), loads in figures.items():
        alone = figures[work, counts[0]]
        more = median(load.cpu - one.cpu for load, one in zip(loads, alone, strict=True))
        lines.append(
            (
                work,
                str(count),
                micro(median(load.cpu for load in loads)),
                micro(more) if count != counts[0] else "",
                per_second(median(load.interval for load in loads)),
                milli(median(load.p50 for load in loads)),
                milli(median(load.p99 for load in loads)),
            )
        )
    return aligned(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateways", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="how often each server has its turn (5)")
    parser.add_argument("--seconds", type=float, default=1.0, metavar="S", help="length of each turn (1)")
    parser.add_argument("--gateways", type=int, nargs="+", default=[1, 2], metavar="N", help="how many, each (1 2)")
    args = parser.parse_args()
    print(table(measure(args.gateways, args.rounds, args.seconds), args.gateways))


if __name__ == "__main__":
    main()
