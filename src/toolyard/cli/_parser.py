"""The parser of the command line. What is wrong with a line is one line too: what was typed, and what may be meant."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NoReturn

from toolyard.core.nearness import did_you_mean, nearest

_OPTIONS_MOST = 8
"""The most options that the usage lists."""
_REQUIRED = re.compile(r"the following arguments are required: (.*)", re.DOTALL)
_CHOICE = re.compile(r"argument (\S+): invalid choice: '(.*)' \(choose from (.*)\)", re.DOTALL)


class Parser(argparse.ArgumentParser):
    """Takes options by their whole names: an abbreviation may be the beginning of another option tomorrow."""

    def __init__(self, *args: object, **more: object) -> None:
        super().__init__(*args, **{**more, "allow_abbrev": False})  # type: ignore[arg-type]  # handed on

    def format_help(self) -> str:
        """The help, in whose first lines a long list of options is one word: each has its line further below."""
        if self.usage is None and len(self._option_string_actions) > _OPTIONS_MOST:
            positional = [_in_usage(action) for action in self._actions if not action.option_strings]
            self.usage = " ".join([self.prog, "[options]", *positional])
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Say it in one line, and where the rest is."""
        if found := _CHOICE.fullmatch(message):
            what, given, known = found.groups()
            names = re.findall(r"[^\s,']+", known)
            meant = did_you_mean(given, names)
            if any(what == action.metavar for action in self._actions if _is_choice_of_commands(action)):
                message = f"there is no {given!r}{meant or '; there are ' + ', '.join(names)}"
            else:
                message = f"{what} is {given!r}; it must be one of {', '.join(names)}{meant}"
        if found := _REQUIRED.fullmatch(message):
            # argparse names arguments that may be left out (nargs="*") among them.
            optional = {action.metavar for action in self._actions if action.nargs == "*"}
            missing = [name for name in found[1].split(", ") if name not in optional]
            message = "; ".join(_missing(self, name) for name in missing)
        end = "" if message.endswith(("?", ".")) else "."
        self.exit(2, f"{self.prog}: {message}{end} See {self.prog} --help\n")

    def refuse(self, words: Sequence[str], args: argparse.Namespace) -> NoReturn:
        """Refuse what the command that was called does not take."""
        parser = _called(self, args)
        word = next((word for word in words if word.startswith("-")), words[0])
        name = word.partition("=")[0]
        if name.startswith("-"):
            parser.error(no_option(name, options_of(parser)))
        parser.error(f"{word!r} is too much")


def _missing(parser: argparse.ArgumentParser, name: str) -> str:
    """What to add, with its help: `--store FILE is missing: a file that a server has recorded into`."""
    for action in parser._actions:  # the only list of arguments that argparse has
        if name in ("/".join(action.option_strings), action.metavar, action.dest):
            if _is_choice_of_commands(action):
                return f"name one of {', '.join(action.choices or ())}"
            value = f" {action.metavar}" if action.option_strings and action.metavar else ""
            says = f": {action.help}" if action.help and "%" not in action.help else ""
            return f"{name}{value} is missing{says}"
    return f"{name} is missing"


def _is_choice_of_commands(action: argparse.Action) -> bool:
    return isinstance(action, argparse._SubParsersAction)  # argparse has no public name for it


def _in_usage(action: argparse.Action) -> str:
    name = str(action.metavar or action.dest)
    match action.nargs:
        case "?":
            return f"[{name}]"
        case "*":
            return f"[{name} ...]"
        case "+":
            return f"{name} [{name} ...]"
        case argparse.REMAINDER:
            return f"{name} ..."
        case int(times):
            return " ".join([name] * times)
        case _:
            return name


def options_of(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:  # the only list of options that argparse has
        yield from action.option_strings


def no_option(name: str, known: Iterable[str]) -> str:
    """The sentence about an option that does not exist. Somebody who types a beginning means one that begins so."""
    options = list(known)
    longer = [option for option in options if len(name) > 3 and option.startswith(name)]
    meant = list(dict.fromkeys([*longer[:2], *nearest(name, options, 2 if longer else 1)]))[:2]
    return f"there is no option {name}" + (f"; did you mean {' or '.join(meant)}?" if meant else "")


def _called(parser: Parser, args: argparse.Namespace) -> Parser:
    """The parser of the command, and of the command within that."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found: Parser | None = action.choices.get(str(getattr(args, action.dest, None)))
            return parser if found is None else _called(found, args)
    return parser
