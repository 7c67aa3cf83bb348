"""The flags by which commands choose episodes of a store."""

from __future__ import annotations

import argparse
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from toolyard.cli._typed import pairs_of
from toolyard.episodes.schema import StoreError
from toolyard.episodes.store import OUTCOMES, Filter, Store

_AN_ID = re.compile(r"(?=.*[0-9])[0-9a-f]{6,}")


def add_store(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--store",
        metavar="FILE",
        type=Path,
        action="append",
        required=True,
        help="a file that a server has recorded into",
    )


def environment_of(args: argparse.Namespace) -> str:
    """The target that an environment is loaded from; it comes before the ids, and is easily forgotten."""
    target: str = args.target
    if _AN_ID.fullmatch(target):
        raise StoreError(
            f"{target!r} looks like the id of an episode. Name the file of its environment first: "
            f"toolyard {args.command} FILE.py {' '.join([target, *args.ids])} --store {args.store[0]}"
        )
    return target


def add_filters(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--environment", help="only of this environment")
    parser.add_argument("--split", help="only of this split")
    parser.add_argument("--index", type=int, help="only of the task with this number in its split")
    parser.add_argument("--run", dest="of_run", help="only of this run, as its client called it")
    parser.add_argument("--wire", help="only of sessions that were opened over this protocol")
    parser.add_argument("--outcome", choices=OUTCOMES, help="only those that ended so")
    parser.add_argument("--reward", metavar="TEST", help="only those whose return passes: '<0.5', '>=0.2,<1', 'null'")
    parser.add_argument("--label", metavar="NAME=VALUE", action="append", default=[], help="only with this label")
    parser.add_argument("--limit", type=int, default=-1, help="so many at most")


def filter_of(args: argparse.Namespace) -> Filter:
    labels = pairs_of("--label", args.label)
    ids = tuple(getattr(args, "ids", ()))
    chosen = ("environment", "split", "index", "wire", "outcome", "reward")
    return Filter(**{name: getattr(args, name) for name in chosen}, run=args.of_run, labels=labels, ids=ids)


@contextmanager
def opened(args: argparse.Namespace) -> Iterator[Store]:
    """Raises `StoreError` if a file cannot be read, or breaks off while it is read."""
    if getattr(args, "limit", 1) == 0:
        raise StoreError("--limit is 0; it must be more")
    try:
        with Store(args.store) as store:
            yield store
    except sqlite3.Error as error:
        raise StoreError(f"{', '.join(map(str, args.store))} cannot be read: {error}") from error
