"""Toolyard against XAgent's own ToolServer node: `python -m benchmarks.toolserver --checkout PATH`.

PATH is a checkout of XAgent; its node runs from there, in a virtual environment with what it imports. All servers are
up at once and take turns under the same load. The tool returns its argument, so the first table shows what the server
itself costs. The second is about many Toolyard nodes, each with a notebook, a shell and files.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import uvloop

from benchmarks.cache import load_generator
from benchmarks.load import Load, Step, drive
from benchmarks.report import (
    TOOLSERVER_PAGE,
    Row,
    aligned,
    check_platform,
    mib,
    micro,
    milli,
    per_second,
    plain,
    processor,
    progress,
    table,
)
from benchmarks.servers import Started, running, serving
from benchmarks.toolserver_nodes import Figures, Node, Times, Use, measure
from benchmarks.turns import in_turns, row
from benchmarks.xagent_node import WAYS, laid_out, xagent_node

ENVIRONMENT = "benchmarks/toolserver_environment.py"
ECHO = Use("echo", "echo", {"text": "hello world"}, "hello world")
NODES = 32
"""With one connection each, while calls are measured."""


def calls(*, create: str, release: str) -> Sequence[Step]:
    """One node per connection, and calls in it one after the other."""
    call = json.dumps({"tool_name": ECHO.tool, "arguments": ECHO.arguments})
    return [
        Step("setup", "POST", create, session="cookie"),
        Step("loop", "POST", "/execute_tool", call, session="cookie"),
        Step("teardown", "POST", release, session="cookie"),
    ]


THEIRS, OURS = calls(create="/", release="/"), calls(create="/get_cookie", release="/release_session")


def compare_calls(checkout: Path, count: int, seconds: float) -> list[Row]:
    generator, folder = load_generator(), laid_out(checkout)
    with ExitStack() as stack:
        servers: dict[str, Started] = {
            **{way: stack.enter_context(running(xagent_node(folder, way))) for way in WAYS},
            "ours": stack.enter_context(running(serving(f"{ENVIRONMENT}:Trivial"))),
            "ours, plain": stack.enter_context(running(serving(f"{ENVIRONMENT}:TrivialPlain"))),
        }
        plans = {name: OURS if name.startswith("ours") else THEIRS for name in servers}
        for name, server in servers.items():
            asyncio.run(check(server, is_ours=name.startswith("ours")))

        def turns(connections: int) -> Sequence[Mapping[str, Load]]:
            def turn(name: str, lasting: float) -> Load:
                return drive(generator, servers[name], plans[name], connections=connections, seconds=lasting)

            return in_turns(list(servers), turn, count=count, seconds=seconds)

        progress(f"calls in {NODES} nodes")
        many = turns(NODES)
        progress("calls in one node")
        return list(rows_of_calls(many, turns(1)))


async def check(server: Started, *, is_ours: bool) -> None:
    """Check that the server does the work to be measured."""
    node = await Node.connected(server.port)
    if is_ours:
        await node.create()
    await node.use(ECHO)
    if is_ours:
        await node.release()


def rows_of_calls(many: Sequence[Mapping[str, Load]], alone: Sequence[Mapping[str, Load]]) -> Sequence[Row]:
    def cpu(theirs: str, ours: str = "ours") -> Sequence[tuple[float, float]]:
        return [(done[theirs].cpu, done[ours].cpu) for done in many]

    return [
        row("CPU per call; the node on uvloop and httptools", cpu("fast"), micro, "less", "5x less"),
        row("CPU per call; the same without its log of requests", cpu("quiet"), micro, "less"),
        row("CPU per call; the node as its image starts it", cpu("shipped"), micro, "less"),
        row("CPU per call, our tool a plain function; on uvloop", cpu("fast", "ours, plain"), micro, "less"),
        row(
            f"calls per second, {NODES} nodes; on uvloop",
            [(done["fast"].interval, done["ours"].interval) for done in many],
            per_second,
            "more",
        ),
        row(
            "latency of a call, one node, p50; on uvloop",
            [(done["fast"].p50, done["ours"].p50) for done in alone],
            milli,
            "shorter",
        ),
    ]


def table_of_nodes(figures: Figures) -> str:
    count = figures.count
    lines = [("", "one by one, p50", "p99", f"{count} at once, p50", "p99", "until all have it")]
    for what, times in figures.times.items():
        lines.append((what, *cells(times)))
    lines.append(("release of a node", *cells(figures.release)))
    return aligned(lines)


def cells(times: Times) -> tuple[str, str, str, str, str]:
    alone, at_once = sorted(times.one_by_one), sorted(times.at_once)
    return (
        milli(median(alone)),
        milli(alone[len(alone) * 99 // 100]),
        milli(median(at_once)),
        milli(at_once[len(at_once) * 99 // 100]),
        plain(median(times.until_all)),
    )


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.toolserver", description=__doc__)
    parser.add_argument("--checkout", type=Path, required=True, metavar="PATH", help="of XAgent")
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="how often each server has its turn (5)")
    parser.add_argument("--seconds", type=float, default=1.5, metavar="S", help="length of each turn (1.5)")
    parser.add_argument("--nodes", type=int, default=50, metavar="N", help="at once, for the second table (50)")
    parser.add_argument("--write-page", action="store_true", help="replace the tables in docs/toolserver.md by these")
    return parser


def main() -> None:
    args = arguments().parse_args()
    check_platform()
    if args.write_page:
        TOOLSERVER_PAGE.around()  # fail now, not after some minutes
    made = compare_calls(args.checkout, args.rounds, args.seconds)
    figures = uvloop.run(measure(args.rounds, args.nodes))
    memory, idle = mib(median(figures.memory)), mib(figures.idle)
    text = (
        f"{table(('XAgent node', 'toolyard'), made)}\n\n"
        f"{table_of_nodes(figures)}\n\n"
        f"Printed by `python -m benchmarks.toolserver --checkout PATH` with Python {platform.python_version()} on "
        f"{os.cpu_count()} cores of {processor()}. Medians of {args.rounds} rounds; a ratio is the median of the "
        f"ratios within a round. CPU is user and system time of the server's processes. XAgent's Manager, through "
        f"which each call of its clients goes, is left out. Each node has a notebook, a shell and files in a sandbox "
        f"of its own. One that has used all of that takes {memory} of memory (PSS), beside {idle} for the server, "
        f"its helpers and the sandboxes that it keeps ready. Of processes, mounts, control groups in use and "
        f"temporary files, this was left after all nodes were released: {', '.join(sorted(set(figures.left)))}."
    )
    print(text)
    if args.write_page:
        TOOLSERVER_PAGE.write(text)


if __name__ == "__main__":
    main()
