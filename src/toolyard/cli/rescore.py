"""Grade recorded episodes anew, with the environment's own `score()`, without making any call."""

from __future__ import annotations

import argparse

from toolyard.adapters import adapt
from toolyard.cli._chosen import add_filters, add_store, environment_of, filter_of, opened
from toolyard.cli._tables import line_of_json, table
from toolyard.core.errors import describe
from toolyard.core.output import JsonObject
from toolyard.episodes.rescore import scored, scorer_of
from toolyard.episodes.writer import source_hash
from toolyard.loading import load_targets
from toolyard.runtime.runtime import by_name

HELP = "grade recorded episodes anew, with an environment's score(), without making any call"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "The new scores are kept beside the old ones. exit codes: 0 all were graded, 1 some could not be"
    parser.add_argument(
        "target", metavar="TARGET", help="file.py, file.py:Class, package.module or package.module:Class"
    )
    parser.add_argument("ids", metavar="ID", nargs="*", help="only these, or those whose ids begin so")
    add_store(parser)
    add_filters(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object a line, for other programs")


def run(args: argparse.Namespace) -> int:
    environments = by_name([adapt(one) for one in load_targets([environment_of(args)]).environments])
    scorers = {name: scorer_of(environment) for name, environment in environments.items()}
    failed = 0
    rows = []
    with opened(args) as store:
        for one in list(store.episodes(filter_of(args), limit=args.limit)):
            if (score := scorers.get(one.environment)) is None:
                continue
            found: JsonObject | None = None
            problem = None
            try:
                found = scored(score, one, store.prompt(one), store.steps(one))
            except Exception as error:  # the author's score()
                problem = describe(error)
                failed += 1
            if found:
                store.add_score(one, source_hash(environments[one.environment]), found)  # type: ignore[arg-type]
            if args.json:
                print(line_of_json({"id": one.id, "return": one.total, "scores": found, "problem": problem}))
            rows.append((one.id, one.total, problem or shown(found)))
    if not args.json:
        print(*table(("id", "return", "new scores"), rows), sep="\n")
    return 1 if failed else 0


def shown(scores: JsonObject | None) -> str:
    return "none" if not scores else ", ".join(f"{name} {value:.4g}" for name, value in scores.items())
