"""Run a file or a shell in a sandbox, and say what this host can isolate."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import io
import json
import logging
import os
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO, get_args, get_type_hints

from toolyard.cli._settings import add_knob
from toolyard.core.errors import SandboxError, ToolyardError
from toolyard.sandboxes import BACKENDS, Finished, Level, Profile, Report, Sandbox, profiles
from toolyard.sandboxes.base import at_least
from toolyard.sandboxes.choice import make
from toolyard.sandboxes.installation import Installation
from toolyard.sandboxes.output import ended_by
from toolyard.sandboxes.view import View
from toolyard.server import sandboxes_of
from toolyard.settings import Settings

HELP = "run a file or a shell in a sandbox, or report what this host can isolate"

FLAGS = {
    "sandbox": "--backend",
    "min_isolation": "--min-isolation",
    "sandbox_image": "--image",
    "sandbox_python": "--python",
    "sandbox_seconds": "--seconds",
    "sandbox_memory_bytes": "--memory-bytes",
    "sandbox_processes": "--processes",
    "sandbox_disk_bytes": "--disk-bytes",
    "sandbox_output_bytes": "--output-bytes",
    "sandbox_network": "--network",
}
"""Settings of the server that these commands have too, under shorter names."""

EXIT_CODES = """\
The exit code is that of the program; 128 and the number of the signal that ended it, so 137 if it needed too much
memory; 124 if its time was over;
125 if there is no sandbox to run it in.
"""
_NO_SANDBOX = 125


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    actions = parser.add_subparsers(
        dest="action", metavar="run|shell|report", required=True, help="each of them has --help"
    )
    run_ = actions.add_parser("run", help="run a file", description="Run a file in a sandbox.", epilog=EXIT_CODES)
    run_.add_argument("file", metavar="FILE", type=Path, help="Python if it ends in .py; else what its #! says, or sh")
    run_.add_argument("args", metavar="ARGS", nargs=argparse.REMAINDER, help="handed to it")
    run_.set_defaults(act=run_file)
    shell = actions.add_parser(
        "shell", help="type commands", description="Type commands; directory and variables are kept.", epilog=EXIT_CODES
    )
    shell.set_defaults(act=run_shell)
    report = actions.add_parser(
        "report",
        help="what this host can isolate",
        description="Try every backend: what it isolates here, what is missing and how to get it.",
        epilog="The exit code is 0 if a server could start here, else 1.",
    )
    report.add_argument("--json", action="store_true", help="for other programs")
    report.set_defaults(act=show_report)
    for action, flags in ((run_, FLAGS), (shell, FLAGS), (report, list(FLAGS)[:4])):
        for knob in dataclasses.fields(Settings):
            if knob.name in flags:
                add_knob(action, knob, FLAGS[knob.name])


def run(args: argparse.Namespace) -> int:
    settings = Settings.read(vars(args))
    code: int = args.act(args, settings)
    return code


# toolyard sandbox run


class FileError(ToolyardError):
    """The file cannot be run."""


def run_file(args: argparse.Namespace, settings: Settings) -> int:
    try:
        program = args.file.read_bytes()
    except OSError as error:
        raise FileError(f"{args.file} cannot be read: {error.strerror}") from None
    stdin = b"" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.buffer.read()
    argv = [*interpreter(args.file.name, program), f"./{args.file.name}", *args.args]
    try:
        finished = asyncio.run(run_program(settings, args.file.name, program, argv, stdin))
    except SandboxError as error:
        return explain(str(error))
    return pass_on(finished)


async def run_program(settings: Settings, name: str, program: bytes, argv: Sequence[str], stdin: bytes) -> Finished:
    async with sandboxes_of(settings) as sandboxes, await sandboxes.open() as sandbox:
        await sandbox.write(name, program)
        return await sandbox.run(argv, stdin=stdin)


def interpreter(name: str, program: bytes) -> Sequence[str]:
    """The command that runs the file. A `#!` line is read as the kernel does: a program, and the rest as one
    argument."""
    if name.endswith(".py"):
        return ["python3"]
    if program.startswith(b"#!"):
        return os.fsdecode(program[2:].partition(b"\n")[0]).strip().split(maxsplit=1)
    return ["sh"]


def pass_on(finished: Finished) -> int:
    """Output and exit code as if the program had been started here."""
    for stream, data in ((sys.stdout, finished.stdout), (sys.stderr, finished.stderr)):
        if stream is not None:  # None if it is closed
            write_all(stream, data)
    if finished.killed_by is not None:
        print(f"toolyard sandbox: {ended_by(finished.killed_by, finished.usage.wall_seconds)}", file=sys.stderr)
    return finished.exit_code


def write_all(stream: TextIO, data: bytes) -> None:
    """Write as much as the reader takes: a pager, or `head`, may stop early."""
    with suppress(BrokenPipeError):
        stream.flush()
        while data:
            data = data[os.write(stream.fileno(), data) :]


def explain(problem: str) -> int:
    print(textwrap.fill(f"toolyard sandbox: {problem}", 100, break_on_hyphens=False), file=sys.stderr)
    return _NO_SANDBOX


# toolyard sandbox shell


def run_shell(args: argparse.Namespace, settings: Settings) -> int:
    """The event loop runs only while a command does: in between, the terminal and Ctrl-C are as in any program."""
    sandboxes = sandboxes_of(settings)
    with asyncio.Runner() as runner:
        try:
            report = runner.run(sandboxes.start())
            return type_commands(runner, runner.run(sandboxes.open()), report)
        except SandboxError as error:
            return explain(str(error))
        finally:
            runner.run(sandboxes.close())


def type_commands(runner: asyncio.Runner, sandbox: Sandbox, report: Report) -> int:
    if not isinstance(sys.stdin, io.TextIOWrapper):  # standard input is closed
        return 0
    sys.stdin.reconfigure(errors="surrogateescape")  # pass bytes that are no text to the shell unchanged
    watched = sys.stdin.isatty()
    if watched:
        print(f"A shell in a sandbox ({report.backend}, isolation {report.level}). Leave it with exit or Ctrl-D.")
    code = 0
    while True:
        try:
            command = input("sandbox$ " if watched else "")
            if command.split()[:1] == ["exit"]:
                return exit_code(command.split()[1:], code)
            if command.strip():
                code = pass_on(runner.run(sandbox.shell(command)))
                if watched and code:
                    print(f"[exit code {code}]", file=sys.stderr)
        except EOFError:
            if watched:
                print()
            return code
        except KeyboardInterrupt:
            code = 130
            print()


def exit_code(words: Sequence[str], last: int) -> int:
    """The code of `exit` or `exit 3`."""
    return int(words[0]) & 255 if words and words[0].isdecimal() else last


# toolyard sandbox report


@dataclass(frozen=True, slots=True)
class Tried:
    """A backend, and either what it isolates here or why it does not work."""

    backend: str
    report: Report | None
    problem: str = ""

    def reaches(self, minimum: Level) -> bool:
        return self.report is not None and at_least(self.report.level, minimum)


def show_report(args: argparse.Namespace, settings: Settings) -> int:
    names = list(BACKENDS) if settings.sandbox == "auto" else [settings.sandbox]
    with unheard(logging.getLogger("toolyard.sandbox")):  # it would warn about backends that are only tried
        tried = asyncio.run(try_each(names, settings))
    fit = [one.backend for one in tried if one.reaches(settings.min_isolation) and is_offered(one, settings)]
    if args.json:
        print(json.dumps(as_json(tried, fit, settings), indent=2))
    else:
        print("\n".join(as_text(tried, fit, settings)))
    return int(not fit)


@contextmanager
def unheard(logger: logging.Logger) -> Iterator[None]:
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def is_offered(tried: Tried, settings: Settings) -> bool:
    """Whether a server may use it; a backend without isolation only if it is named."""
    return settings.sandbox != "auto" or tried.report is None or tried.report.level != "L0"


async def try_each(names: Iterable[str], settings: Settings) -> list[Tried]:
    view = View.of(settings.sandbox_python)
    return [await try_one(name, settings.sandbox_image, view) for name in names]


async def try_one(name: str, image: str, view: View) -> Tried:
    backend = make(name, image=image, view=view)
    try:
        report = await backend.start()
    except (SandboxError, OSError) as error:
        return Tried(name, None, str(error))
    await backend.close()
    return Tried(name, report)


def profile_problems(python: Installation) -> dict[str, str]:
    """The profiles of the native backend, and what each still needs."""
    named: Sequence[Profile] = get_args(get_type_hints(profiles.missing)["profile"])
    return {profile: ", ".join(profiles.missing(profile, python)) for profile in named}


def as_json(tried: Sequence[Tried], fit: Sequence[str], settings: Settings) -> dict[str, Any]:
    python = Installation.at(settings.sandbox_python)
    return {
        "backend": fit[0] if fit else None,
        "min_isolation": settings.min_isolation,
        "backends": [
            {
                "backend": one.backend,
                "available": one.report is not None,
                "level": one.report.level if one.report else None,
                "layers": dict(one.report.layers) if one.report else {},
                "missing": [dataclasses.asdict(missing) for missing in one.report.missing] if one.report else [],
                "problem": one.problem,
            }
            for one in tried
        ],
        "python": {"executable": python.executable, "version": python.version},
        "profiles": {
            name: {"available": not missing, "missing": missing} for name, missing in profile_problems(python).items()
        },
    }


def as_text(tried: Sequence[Tried], fit: Sequence[str], settings: Settings) -> Iterator[str]:
    for one in tried:
        yield from backend_lines(one)
        yield ""
    python = Installation.at(settings.sandbox_python)
    yield f"Python in sandboxes, but for those of containers: {python}"
    for name, missing in profile_problems(python).items():
        yield f"  {name:12}" + (f"not available: it needs {missing}, pip install it" if missing else "available")
    yield ""
    if fit:
        yield f"A server on this host uses {fit[0]} (--min-isolation is {settings.min_isolation})."
    else:
        yield f"No sandbox here reaches {settings.min_isolation}: a server that runs untrusted code does not start."


def backend_lines(one: Tried) -> Iterator[str]:
    if one.report is None:
        yield f"{one.backend:14}not available"
        yield from wrapped(one.problem, "  ")
        return
    yield f"{one.backend:14}{one.report.level}"
    width = max(map(len, one.report.layers), default=0) + 2
    for layer, how in one.report.layers.items():
        yield f"  {layer:{width}}{how}"
    for missing in one.report.missing:
        yield from wrapped(f"missing: {missing.feature} ({missing.reason}). To get it: {missing.fix}", "  ")


def wrapped(text: str, indent: str) -> Iterator[str]:
    yield from textwrap.wrap(
        text,
        100,
        initial_indent=indent,
        subsequent_indent=indent + "  ",
        break_on_hyphens=False,
        break_long_words=False,
    )
