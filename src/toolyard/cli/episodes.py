"""Look at what a server has recorded: list, show, count, search, compare and export episodes."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from toolyard.cli._chosen import add_filters, add_store, filter_of, opened
from toolyard.cli._output import forget_stdout
from toolyard.cli._tables import interval, line_of_json, table, visible
from toolyard.core.output import JsonObject
from toolyard.core.pictures import PICTURES
from toolyard.episodes import bundles, exports, groups
from toolyard.episodes.schema import StoreError
from toolyard.episodes.store import Episode, Filter, Step

HELP = "list, show, count, search, compare and export what a server has recorded"

_LISTED = 20


def arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(
        dest="action", metavar="list|show|stats|search|compare|export|bundle", required=True, help="each has --help"
    )

    def add(name: str, act: object, says: str) -> argparse.ArgumentParser:
        command = actions.add_parser(name, help=says, description=says)
        add_store(command)
        command.set_defaults(act=act)
        return command

    listing = add("list", show_list, "The newest episodes, one a line.")
    add_filters(listing)
    showing = add("show", show_one, "One episode with all of its steps.")
    showing.add_argument("id", metavar="ID", help="its id, or what that begins with")
    showing.add_argument("--images", metavar="DIR", type=Path, help="save its images in this folder")
    counting = add("stats", show_stats, "How many, their mean return with its interval, and how they ended.")
    add_filters(counting)
    counting.add_argument(
        "--by", default="environment", help="count by environment, split, task, run, wire [environment]"
    )
    searching = add("search", search, "Episodes with a step that contains these words.")
    searching.add_argument("words", metavar="WORDS", nargs="+", help="what to look for")
    searching.add_argument("--limit", type=int, default=_LISTED)
    comparing = add("compare", compare, "Two runs, task by task.")
    comparing.add_argument("runs", metavar="RUN", nargs=2, help="two runs, by their names in the list")
    exporting = add("export", export, "Episodes for other programs.")
    exporting.add_argument("out", metavar="OUT", type=Path, help="the file to write")
    exporting.add_argument("--as", dest="shape", choices=exports.SHAPES, default="episodes")
    exporting.add_argument("--format", choices=exports.FORMATS, default="jsonl")
    add_filters(exporting)
    bundling = add("bundle", bundle, "One file of HTML that shows episodes anywhere.")
    bundling.add_argument("ids", metavar="ID", nargs="+", help="ids, or what they begin with")
    bundling.add_argument("out", metavar="OUT.html", type=Path, help="the file to write")
    for command in (listing, showing, counting, searching, comparing):
        command.add_argument("--json", action="store_true", help="one JSON object a line, for other programs")


def run(args: argparse.Namespace) -> int:
    try:
        code: int = args.act(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # its reader, such as `head`, has seen enough
        forget_stdout()
        return 0
    except OSError as error:  # what was to be written cannot be
        raise StoreError(f"{str(error.filename)!r} cannot be written: {error.strerror}") from error


def say(lines: Iterable[str]) -> None:
    for line in lines:
        sys.stdout.write(f"{line}\n")


def show_list(args: argparse.Namespace) -> int:
    with opened(args) as store:
        limit = args.limit if args.limit > 0 or args.json else _LISTED
        found = store.episodes(filter_of(args), limit=limit, newest=not args.json)
        if args.json:
            say(line_of_json(one.as_json()) for one in found)
        else:
            header = ("id", "opened", "environment", "task", "run", "steps", "return", "ended")
            say(table(header, map(listed, found)))
    return 0


def listed(one: Episode) -> tuple[object, ...]:
    ended = one.outcome if one.complete or one.outcome == "open" else f"{one.outcome}, not complete"
    opened_at = one.opened[:19].replace("T", " ")
    return one.id, opened_at, one.environment, groups.shown_task(one), one.run, one.steps, one.total, ended


def show_one(args: argparse.Namespace) -> int:
    with opened(args) as store:
        one = store.find(args.id)
        steps, prompt = store.steps(one), store.prompt(one)
        if args.json:
            say([line_of_json({**one.whole(steps), "prompt": prompt, "scores": store.scores(one)})])
        else:
            say(told(one, prompt or [], steps))
        if args.images:
            save_images(args.images, one, steps)
    return 0


def told(one: Episode, prompt: Iterable[JsonObject], steps: Iterable[Step]) -> Iterator[str]:
    run = f", run {one.run}" if one.run else ""
    yield visible(f"{one.id}  {one.environment}, {groups.shown_task(one)}  ({one.wire}{run})")
    total = "no reward" if one.total is None else f"return {one.total:g}"
    yield f"{one.opened}  {one.outcome}, {total}{'' if one.complete else ', not complete'}"
    yield from map(indented, prompt)
    for step in steps:
        ran = "" if step.ran_seconds is None else f"  {step.ran_seconds:.3f} s"
        reward = "" if step.reward is None else f"  reward {step.reward:g}"
        yield f"\n{step.number}. {visible(step.tool)} {visible(json.dumps(step.arguments, ensure_ascii=False))}"
        if step.said:
            yield indented({"type": "text", "text": f"(written: {step.said})"})
        yield f"   {step.outcome}{reward}{'  the end' if step.finished else ''}{ran}"
        yield from map(indented, step.blocks)


def indented(block: JsonObject) -> str:
    text = block["text"] if block["type"] == "text" else f"[an image: {block['mimeType']}]"
    return "\n".join(f"   | {line}" for line in visible(text).splitlines())


def save_images(folder: Path, one: Episode, steps: Iterable[Step]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for step in steps:
        for number, block in enumerate(block for block in step.blocks if block["type"] == "image"):
            ending = PICTURES.get(block["mimeType"], "bin")
            path = folder / f"{one.file_name}-{step.number}-{number}.{ending}"
            path.write_bytes(exports.picture(block) or block["data"].encode(errors="replace"))


def show_stats(args: argparse.Namespace) -> int:
    by = args.by.split(",")
    if unknown := set(by) - set(groups.BY):
        raise StoreError(f"--by says {min(unknown)!r}; it may say {', '.join(groups.BY)}")
    with opened(args) as store:
        found = [(names, group.as_json()) for names, group in groups.grouped(store.episodes(filter_of(args)), by)]
    if args.json:
        say(line_of_json({**names, **counted}) for names, counted in found)
        return 0
    header = (*by, "n", "mean return", "95 %", "pass@1", "steps", "ended")
    rows = [
        (
            *(names[name] for name in by),
            *(
                counted["n"],
                counted["mean_return"],
                interval(counted["ci95"]),
                counted["pass@1"],
                counted["mean_steps"],
            ),
            ", ".join(f"{count} {outcome}" for outcome, count in counted["outcomes"].items()),
        )
        for names, counted in found
    ]
    say(table(header, rows))
    return 0


def search(args: argparse.Namespace) -> int:
    with opened(args) as store:
        for one, step, excerpt in store.search(" ".join(args.words), limit=args.limit):
            if args.json:
                say([line_of_json({**one.as_json(), "step": step, "excerpt": excerpt})])
            else:
                say([visible(f"{one.id} {step:>4}  {one.environment}, {groups.shown_task(one)}: {excerpt}")])
    return 0


def compare(args: argparse.Namespace) -> int:
    with opened(args) as store:
        first, second = (store.episodes(Filter(run=name)) for name in args.runs)
        pairs, told = groups.compared(first, second)
    if args.json:
        say(
            [*(line_of_json({"task": p.task, "first": p.first, "second": p.second}) for p in pairs), line_of_json(told)]
        )
        return 0
    if not pairs:
        raise StoreError(f"the runs {args.runs[0]!r} and {args.runs[1]!r} have no scored task in common")
    say(table(("task", *args.runs, "difference"), [(p.task, p.first, p.second, p.second - p.first) for p in pairs]))
    say(
        [
            f"\n{told['tasks']} tasks: {told['better']} better, {told['same']} the same, {told['worse']} worse in "
            f"{args.runs[1]}; mean difference {told['difference']:.4g} (95 %: {interval(told['ci95'])})"
        ]
    )
    return 0


def export(args: argparse.Namespace) -> int:
    with opened(args) as store:
        found = store.episodes(filter_of(args), limit=args.limit)
        images = args.out.with_name(f"{args.out.stem}-images")
        count = exports.write(exports.rows(store, found, args.shape, images), args.out, args.format)
    sys.stderr.write(f"{count} written to {args.out}\n")
    return 0


def bundle(args: argparse.Namespace) -> int:
    with opened(args) as store:
        found = [store.find(wanted) for wanted in args.ids]
        with args.out.open("w", encoding="utf-8") as file:
            file.writelines(bundles.page(store, found))
    return 0
