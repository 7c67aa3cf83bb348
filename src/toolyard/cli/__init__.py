"""The command `toolyard`. Each module beside this one is a command of that name: HELP, arguments(parser), run(args).

A module whose name starts with an underscore is no command.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from argparse import Namespace
from collections.abc import Sequence

from toolyard.cli._output import complain, forget_stdout
from toolyard.cli._parser import Parser
from toolyard.core.errors import ToolyardError
from toolyard.core.nearness import did_you_mean
from toolyard.version import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; an expected error is a paragraph on the terminal, not a traceback."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv:
        return complain(f"toolyard: name a command: {', '.join(command_names())}. See toolyard --help")
    if not argv[0].startswith("-") and argv[0] not in command_names():
        meant = did_you_mean(argv[0], command_names()) or f"; there are {', '.join(command_names())}."
        return complain(f"toolyard: there is no command {argv[0]!r}{meant} See toolyard --help")
    # Import only the module of this command: the others would cost time, and memory that a server keeps.
    asked = [name for name in command_names() if name in argv[:1]]
    args = Namespace(command=argv[0])
    try:
        parser = build_parser([] if argv[0] == "--version" else asked or command_names())
        args, more = parser.parse_known_args(argv)
        if more:
            parser.refuse(more, args)
        code: int = args.run(args)
        if sys.stdout is not None:  # None if the process began without one
            sys.stdout.flush()  # here, where a reader that has gone can still be noticed
        return code
    except ToolyardError as error:
        return complain(f"toolyard {args.command}: {error}")
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader has enough, such as `| head -1`
        forget_stdout()
        return 141


def build_parser(names: Sequence[str]) -> Parser:
    parser = Parser(prog="toolyard", description="Agent tools and RL environments, served.")
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
