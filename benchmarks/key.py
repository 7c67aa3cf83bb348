"""What checking a key costs: `python -m benchmarks.key`.

Two Toolyard servers are up at once, one with `--api-key`, and take turns under the same load of three wires. A ratio is
the median over rounds of the ratio within one round.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from statistics import median

from benchmarks import ors, toolserver, verl
from benchmarks.cache import load_generator
from benchmarks.load import Load, Step, drive
from benchmarks.report import Row, check_platform, micro, progress, table
from benchmarks.servers import running, serving
from benchmarks.turns import in_turns

KEY = "a-key-of-some-length-0123456789"
TARGET = "0.9x"

WORKS: Mapping[str, tuple[str, Sequence[Step], int]] = {
    "ORS: a call, small result": ("benchmarks/environment.py", ors.calls(ors.SMALL_CALL), ors.SESSIONS),
    "ORS: a call, 64 KiB result": ("benchmarks/environment.py", ors.calls(ors.LARGE_CALL), ors.SESSIONS),
    "ORS: an episode of 8 calls": ("benchmarks/environment.py", ors.EPISODE, ors.SESSIONS),
    "verl-tool: a request of 1": (
        "benchmarks/verl_environment.py:Trivial",
        verl.played("an action of an open one", 1),
        8,
    ),
    "verl-tool: a request of 32": (
        "benchmarks/verl_environment.py:Trivial",
        verl.played("an action of an open one", 32),
        2,
    ),
    "ToolServer: a call": (f"{toolserver.ENVIRONMENT}:Trivial", toolserver.OURS, toolserver.NODES),
}
"""What is served, the requests, and the number of connections."""


def measure(what: str, count: int, seconds: float) -> Row:
    progress(what)
    target, steps, connections = WORKS[what]
    plans = {"without": steps, "with": [dataclasses.replace(step, key=KEY) for step in steps]}
    generator = load_generator()
    with ExitStack() as stack:
        servers = {
            "without": stack.enter_context(running(serving(target))),
            "with": stack.enter_context(running(serving(target, "--api-key", KEY))),
        }

        def turn(name: str, lasting: float) -> Load:
            return drive(generator, servers[name], plans[name], connections=connections, seconds=lasting)

        done = in_turns(list(servers), turn, count=count, seconds=seconds)
    without, with_key = (median(turns[name].cpu for turns in done) for name in servers)
    ratio = median(turns["without"].cpu / turns["with"].cpu for turns in done)
    return Row(what, micro(without), micro(with_key), f"{ratio:.2f}x", TARGET)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.key", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="how often each server has its turn (5)")
    parser.add_argument("--seconds", type=float, default=1.5, metavar="S", help="length of each turn (1.5)")
    args = parser.parse_args()
    check_platform()
    print(table(("without a key", "with a key"), [measure(what, args.rounds, args.seconds) for what in WORKS]))


if __name__ == "__main__":
    main()
