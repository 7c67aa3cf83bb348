"""Check environments before training: one line a finding, exit code 1 if something is wrong."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys

from toolyard.cli._typed import UsageError, object_of, pairs_of
from toolyard.loading import load_targets
from toolyard.testing import Finding, check_environment

HELP = "look at environments, play them, and say what is wrong with them"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "targets",
        nargs="*",
        metavar="TARGET",
        help="file.py, file.py:Class, package.module or package.module:Class; none: the built-in examples",
    )
    parser.add_argument(
        "--call",
        action="append",
        default=[],
        metavar="'TOOL JSON'",
        help="play this instead of random calls, for instance --call 'submit {\"answer\": 4}' (repeatable, in order)",
    )
    parser.add_argument("--split", help="play a task of this split (default: a sample of all tasks)")
    parser.add_argument("--index", type=int, metavar="N", help="play the task of this number (default: 0)")
    parser.add_argument("--episodes", type=int, default=10, metavar="N", help="how many to play; 0 calls no tool [10]")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="which random calls to make [0]")
    parser.add_argument(
        "--secret", action="append", default=[], metavar="NAME=VALUE", help="hand this to the environment (repeatable)"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=60,
        metavar="S",
        help="how long to check one environment; a call or a hook is given up after half of this [60]",
    )
    parser.add_argument(
        "--allow-idle-reward",
        action="store_true",
        help="allow rewards for an agent that does nothing, for instance for each step that it survives",
    )
    parser.add_argument("--json", action="store_true", help="for other programs: one object at the end")
    parser.add_argument("--strict", action="store_true", help="fail on warnings as well")


def run(args: argparse.Namespace) -> int:
    calls = [read_call(text) for text in args.call]
    secrets = pairs_of("--secret", args.secret)
    split = args.split
    if args.index is not None and split is None:
        raise UsageError("--index needs --split, to say of which split it is a number")
    if not args.seconds > 0:
        raise UsageError(f"--seconds is {args.seconds:g}; it must be more than 0")
    reports = []
    for environment in load_targets(args.targets).environments:
        if not args.json:
            print(f"{environment.__name__}:", flush=True)
        report = check_environment(
            environment,
            calls=calls,
            split=split,
            index=args.index or 0,
            secrets=secrets,
            episodes=args.episodes if not calls else min(args.episodes, 5),
            seed=args.seed,
            seconds=args.seconds,
            idle_reward=args.allow_idle_reward,
            tell=unheard if args.json else show,
            progress=show_progress if sys.stderr.isatty() else unheard,
        )
        clear_progress()
        if not args.json:
            print(f"{report.summary}\n", flush=True)
        reports.append(report)
    passed = [report.ok and not (args.strict and report.of("warning")) for report in reports]
    if args.json:
        told = [{**dataclasses.asdict(report), "ok": ok} for report, ok in zip(reports, passed, strict=True)]
        print(json.dumps({"ok": all(passed), "environments": told}, indent=2))
    return int(not all(passed))


def show(finding: Finding) -> None:
    clear_progress()
    print(f"  {finding}", flush=True)


def show_progress(doing: str) -> None:
    """One line that the next one replaces."""
    sys.stderr.write(f"\r\x1b[2K  … {doing}")
    sys.stderr.flush()


def clear_progress() -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[2K")
        sys.stderr.flush()


def unheard(_: object) -> None:
    """Nobody is told."""


def read_call(text: str) -> tuple[str, dict[str, object]]:
    """`submit {"answer": 4}`: the name of a tool, and its arguments if it takes any."""
    tool, _, rest = text.strip().partition(" ")
    if not tool:
        raise UsageError("--call is empty; write a tool's name and a JSON object, as in 'submit {\"answer\": 4}'")
    return tool, object_of(f"what follows {tool!r} in --call", rest or "{}")
