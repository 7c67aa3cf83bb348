"""The command `toolyard`. Each module beside this one is a command of that name: HELP, arguments(parser), run(args).

A module whose name starts with an underscore is no command.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
import textwrap
from collections.abc import Sequence

from toolyard.core.errors import ToolyardError
from toolyard.version import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; an expected error is a paragraph on the terminal, not a traceback."""
    argv = sys.argv[1:] if argv is None else argv
    # Import only the module of this command: the others would cost time, and memory that a server keeps.
    asked = [name for name in command_names() if name in argv[:1]]
    args = build_parser(asked or command_names()).parse_args(argv)
    try:
        code: int = args.run(args)
        return code
    except ToolyardError as error:
        print(textwrap.fill(f"toolyard {args.command}: {error}", 100, break_on_hyphens=False), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def build_parser(names: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="toolyard", description="Agent tools and RL environments, served.")
    parser.add_argument("--version", action="version", version=f"toolyard {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in names:
        module = importlib.import_module(f"{__name__}.{name}")
        command = commands.add_parser(name, help=module.HELP, description=module.HELP)
        module.arguments(command)
        command.set_defaults(run=module.run)
    return parser


def command_names() -> list[str]:
    return sorted(found.name for found in pkgutil.iter_modules(__path__) if not found.name.startswith("_"))
