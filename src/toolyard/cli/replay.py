"""Repeat the calls of recorded episodes, and report results that differ."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import sys
from collections import Counter

from toolyard.cli._chosen import add_filters, add_store, environment_of, filter_of, opened
from toolyard.cli._settings import add_settings
from toolyard.cli._tables import line_of_json, table, visible
from toolyard.episodes.replay import Replay, Replayed
from toolyard.loading import load_targets
from toolyard.sandboxes.installation import Installation, use
from toolyard.server import Server
from toolyard.settings import Settings

HELP = "make the calls of recorded episodes again, and compare what comes back"

EPILOG = """\
same: everything came back as it had. differs: something did not; the first difference is shown. cannot: the calls
cannot be made again, and why.

exit codes: 0 all are the same, 1 something differs or cannot be replayed, 2 the command makes no sense
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "target", metavar="TARGET", help="file.py, file.py:Class, package.module or package.module:Class"
    )
    parser.add_argument("ids", metavar="ID", nargs="*", help="only these, or those whose ids begin so")
    add_store(parser)
    add_filters(parser)
    parser.add_argument(
        "--rewards", action="store_true", help="compare only rewards: what would a new reward have given"
    )
    parser.add_argument("--at-once", metavar="N", type=int, default=8, help="episodes at the same time [8]")
    parser.add_argument("--json", action="store_true", help="one JSON object a line, for other programs")
    add_settings(parser)


def run(args: argparse.Namespace) -> int:
    settings = dataclasses.replace(Settings.read(vars(args)), record="", gateways=1)
    use(Installation.at(settings.sandbox_python))
    loaded = load_targets([environment_of(args)])
    server = Server(loaded.environments, toolsets=loaded.toolsets, settings=settings)
    counts = asyncio.run(replayed(args, server))
    if args.json:
        print(line_of_json({name: counts[name] for name in ("same", "differs", "cannot")}))
    else:
        counted = ", ".join(f"{counts[name]} {name}" for name in ("same", "differs", "cannot"))
        print(f"{counts.total()} episodes: {counted}")
    return 0 if counts.total() == counts["same"] else 1


async def replayed(args: argparse.Namespace, server: Server) -> Counter[str]:
    counts: Counter[str] = Counter()
    returns: list[Replayed] = []
    with opened(args) as store:
        async with server.living() as runtime:
            replay = Replay(runtime, store, rewards_only=args.rewards)
            found = store.episodes(filter_of(args), limit=args.limit)
            async for one in replay.all(found, max(args.at_once, 1)):
                counts[one.result] += 1
                if args.rewards:
                    returns.append(one)
                if args.json:
                    print(line_of_json(one.as_json()), flush=True)
                elif one.result != "same":
                    tell(one)
                progress(counts)
    if args.rewards and not args.json:
        rows = [(one.id, one.result, one.old_return, one.new_return) for one in returns]
        print(*table(("id", "result", "old return", "new return"), rows), sep="\n")
    return counts


def tell(one: Replayed) -> None:
    where = f" at step {one.step}" if one.step else ""
    print(f"{one.id} {one.result}{where}")
    print("\n".join(f"   {line}" for line in visible(one.difference or "").splitlines()))


def progress(counts: Counter[str]) -> None:
    if sys.stderr.isatty():
        sys.stderr.write(f"\r{counts.total()} episodes, {counts['same']} the same ")
