"""Check whether any server keeps to the protocols that it speaks: one line for each case."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import aiohttp
from yarl import URL

from toolyard.cli._typed import UsageError, object_of
from toolyard.settings import variable_of
from toolyard.testing.conformance import KITS, Case, Kit, Result, Target, Verdict, conform, detect, reach

HELP = "try numbered cases of its protocols on a server, and say which of them fail"

EXAMPLES = """\
examples:
  toolyard conform http://127.0.0.1:8080
  toolyard conform http://127.0.0.1:8080 --protocol ors --tool submit --arguments '{"answer": "4"}'
  toolyard conform http://127.0.0.1:8080/mcp --only F20 --only F31h
  toolyard conform --list --protocol verl

exit codes: 0 no case failed, 1 one did, 2 the command makes no sense or no server answers
"""
_WIDTH = 110
_SHOWN: Mapping[Verdict, str] = {"pass": "pass", "fail": "FAIL", "skip": "skip"}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("url", nargs="?", metavar="URL", help="where the server is, such as http://127.0.0.1:8080")
    parser.add_argument(
        "--protocol",
        action="append",
        choices=list(KITS),
        default=[],
        help="try this one (repeatable) [all that the server speaks]",
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="CASE", help="try the case of this number (repeatable) [all]"
    )
    parser.add_argument("--environment", default="", metavar="NAME", help="play this one [the first that is listed]")
    parser.add_argument("--split", default="", metavar="NAME", help="play a task of this split [the first with a task]")
    parser.add_argument("--index", type=int, default=0, metavar="N", help="play the task of this number [0]")
    parser.add_argument(
        "--tool", default="", metavar="NAME", help="a tool whose call succeeds [one is looked for, among eight at most]"
    )
    parser.add_argument("--arguments", default="", metavar="JSON", help="the arguments with which it succeeds [{}]")
    parser.add_argument("--action", default="", metavar="TEXT", help="for verl-tool: a text that calls a tool")
    parser.add_argument("--api-key", metavar="KEY", help=f"key of the server [{variable_of('api_key')}]")
    parser.add_argument(
        "--timeout", type=float, default=10.0, metavar="SECONDS", help="how long one answer may take [10]"
    )
    parser.add_argument("--json", action="store_true", help="for other programs: one object, when all is done")
    parser.add_argument("--list", action="store_true", help="list the cases, and try none")


def run(args: argparse.Namespace) -> int:
    kits = [KITS[name] for name in args.protocol]
    check_numbers(args.only, kits or list(KITS.values()))
    if args.list:
        show_list(kits or list(KITS.values()), args.only)
        return 0
    target = target_of(args)
    try:
        results = asyncio.run(tried(target, kits, args))
    except aiohttp.ClientError as error:
        raise UsageError(f"there is no answer from {target.url} ({error}). To start a server: toolyard serve") from None
    except TimeoutError:
        raise UsageError(f"there is no answer from {target.url} within {target.seconds:g} s") from None
    if args.json:
        print(json.dumps(as_json(target, results), indent=2))
    return int(any(result.verdict == "fail" for result in results))


def check_numbers(only: Sequence[str], kits: Sequence[Kit[Any]]) -> None:
    numbers = {case.number for kit in kits for case in kit.cases}
    if unknown := sorted(set(only) - numbers):
        protocols = ", ".join(kit.protocol for kit in kits)
        raise UsageError(f"{unknown[0]!r} is no case of {protocols}; --list tells what there is")


def target_of(args: argparse.Namespace) -> Target:
    if args.url is None:
        raise UsageError("say which server, for instance http://127.0.0.1:8080; --list tells what can be tried")
    if not args.timeout > 0:
        raise UsageError(f"--timeout is {args.timeout:g}; it must be more than 0")
    if args.arguments and not args.tool:
        raise UsageError("--arguments needs --tool, to say of which tool they are")
    return Target(
        url=address(args.url),
        environment=args.environment,
        split=args.split,
        index=args.index,
        tool=args.tool,
        arguments=object_of("--arguments", args.arguments or "{}"),
        action=args.action,
        api_key=args.api_key or os.environ.get(variable_of("api_key"), ""),
        seconds=args.timeout,
    )


def address(text: str) -> str:
    try:
        url = URL(text)
    except ValueError:
        url = URL()
    if url.scheme not in ("http", "https") or not url.host:
        raise UsageError(f"{text!r} is no address of a server; one looks like http://127.0.0.1:8080")
    return text


async def tried(target: Target, kits: Sequence[Kit[Any]], args: argparse.Namespace) -> list[Result]:
    if await reach(target) == HTTPStatus.UNAUTHORIZED:
        refused = "does not take this key" if target.api_key else "asks for a key"
        raise UsageError(f"{target.url} {refused}; it is given with --api-key or {variable_of('api_key')}")
    if not kits:
        kits = await detect(target, list(KITS.values()))
        if not kits:
            raise UsageError(f"{target.url} speaks none of {', '.join(KITS)}, as far as can be told by asking")
        kits = [kit for kit in kits if not args.only or any(case.number in args.only for case in kit.cases)]
        if not args.json:
            print(f"{target.url} speaks {', '.join(kit.protocol for kit in kits)}\n", flush=True)
    results = []
    for kit in kits:
        results += await conform(target, [kit], only=args.only, tell=(lambda result: None) if args.json else show)
        if not args.json:
            print(f"\n{summary(kit.protocol, results)}\n", flush=True)
    return results


# For people.


def show(result: Result) -> None:
    for line in lines(result):
        print(line, flush=True)


def lines(result: Result) -> Iterator[str]:
    case = result.case
    known = f" (known difference {case.difference})" if result.verdict == "fail" and case.difference else ""
    head = f"  {_SHOWN[result.verdict]}  {case.protocol:10} {case.number:5} "
    yield from folded(head, f"{case.title}{known}")
    if result.verdict == "fail":
        yield from folded(" " * len(head) + "expected: ", case.expected)
        yield from folded(" " * len(head) + "came:     ", result.why)
    elif result.verdict == "skip":
        yield from folded(" " * len(head), result.why)


def folded(head: str, text: str) -> list[str]:
    indent = " " * len(head)
    return textwrap.wrap(text, _WIDTH, initial_indent=head, subsequent_indent=indent, break_on_hyphens=False)


def summary(protocol: str, results: Sequence[Result]) -> str:
    counts = counted([result for result in results if result.case.protocol == protocol])
    return f"{protocol}: {counts['pass']} passed, {counts['fail']} failed, {counts['skip']} skipped"


def show_list(kits: Sequence[Kit[Any]], only: Sequence[str]) -> None:
    for case in (case for kit in kits for case in kit.cases):
        if not only or case.number in only:
            head = f"  {case.protocol:10} {case.number:5} "
            for line in (*folded(head, case.title), *folded(" " * len(head) + "-> ", case.expected)):
                print(line)


# For programs.


def counted(results: Sequence[Result]) -> dict[Verdict, int]:
    counts: dict[Verdict, int] = {"pass": 0, "fail": 0, "skip": 0}
    for result in results:
        counts[result.verdict] += 1
    return counts


def as_json(target: Target, results: Sequence[Result]) -> dict[str, Any]:
    protocols = list(dict.fromkeys(result.case.protocol for result in results))
    told = [{**about(result.case), "verdict": result.verdict, "why": result.why} for result in results]
    return {"url": target.url, "protocols": protocols, "counts": counted(results), "cases": told}


def about(case: Case[Any]) -> dict[str, str]:
    names = ("protocol", "number", "title", "expected", "difference")
    return {name: getattr(case, name) for name in names}
