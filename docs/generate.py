"""Write docs/reference.md and docs/api.md from the code, and the measurements of docs/train.md from docs/figures.

python docs/generate.py
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

import python_api
import training_run

from toolyard.cli import build_parser, command_names
from toolyard.settings import Settings, flag_of, variable_of

PAGE = Path(__file__).parent / "reference.md"

HEAD = """\
# Reference: commands and settings

<!-- Written by docs/generate.py from the code. Do not edit: run `make docs`. -->

A TARGET is `file.py`, `file.py:Class`, `package.module` or `package.module:Class`. Without a class, every environment
and toolset that the module itself defines is taken. Every command also has `--help`.
"""

SETTINGS_HEAD = """\
## Settings

Each setting is a flag of `toolyard serve` and a variable. The flag wins over the variable, the variable over the
default. In Python they are the fields of `toolyard.settings.Settings`: `Server([Env], settings=Settings(port=9000))`.
Seconds may have decimals. Flags that are yes or no also have a `--no-` form.
"""


def main() -> None:
    PAGE.write_text(reference(), encoding="utf-8")
    python_api.PAGE.write_text(python_api.python_api(), encoding="utf-8")
    training_run.write()


def reference() -> str:
    parts = [HEAD, *(command(name, parser) for name, parser in sorted(commands().items())), SETTINGS_HEAD + settings()]
    return "\n".join(parts)


def commands() -> dict[str, argparse.ArgumentParser]:
    return dict(commands_of(build_parser(command_names()), ()))


def commands_of(parser: argparse.ArgumentParser, above: Sequence[str]) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """The commands of a parser by their whole names, each followed by its own."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, found in action.choices.items():
                yield " ".join([*above, name]), found
                yield from commands_of(found, [*above, name])


def command(name: str, parser: argparse.ArgumentParser) -> str:
    settings = {knob.name for knob in dataclasses.fields(Settings)}
    knobs = settings if settings <= {found.dest for found in parser._actions} else set()
    actions = [found for found in parser._actions if found.dest not in {*knobs, "help"}]
    lines = [f"## `toolyard {name}`", "", f"{capital(parser.description or '').rstrip('.')}.", ""]
    if actions:
        lines += table(("argument", "what it does"), ((spelled(found), found.help or "") for found in actions))
    if knobs:
        lines += ["", "All [settings](#settings) are flags of this command too."]
    return "\n".join([*lines, ""])


def spelled(action: argparse.Action) -> str:
    value = "" if action.nargs == 0 else action.metavar or (action.dest.upper() if not action.choices else "")
    if isinstance(value, tuple):
        value = " ".join(value)
    if action.choices:
        value = "|".join(map(str, action.choices))
    if not action.option_strings:
        return f"`{value} ...`" if action.nargs in ("*", "+") else f"`{value}`"
    return f"`{' '.join([', '.join(action.option_strings), value]).strip()}`"


def settings() -> str:
    kinds = get_type_hints(Settings)
    rows = []
    for knob in dataclasses.fields(Settings):
        shown = "" if knob.default in ("", (), None) else f"`{shown_default(knob.default)}`"
        names = f"`{flag_of(knob.name)}`", f"`{variable_of(knob.name)}`"
        choices = f" ({', '.join(get_args(kinds[knob.name]))})" if get_origin(kinds[knob.name]) is Literal else ""
        rows.append((*names, shown, knob.metadata["help"] + choices))
    return "\n".join(["", *table(("flag", "variable", "default", "what it does"), rows), ""])


def shown_default(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def table(head: Sequence[str], rows: Iterator[Sequence[str]] | Sequence[Sequence[str]]) -> list[str]:
    """In --help, %% means %."""
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(cell.replace('%%', '%').replace('|', chr(92) + '|') for cell in line)} |" for line in lines]


if __name__ == "__main__":
    main()
