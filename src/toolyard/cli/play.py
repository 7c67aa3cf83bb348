"""Play a session by hand: read the prompt, call tools by name, see rewards. Reads lines, from a terminal or a pipe."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from toolyard import logs
from toolyard.cli._output import complain
from toolyard.cli._screen import Screen
from toolyard.cli._settings import add_settings
from toolyard.cli._typed import UsageError, object_of
from toolyard.cli.call import about_task, known, read_pairs, show_tools, task_text
from toolyard.client import (
    Client,
    ConnectionLost,
    Environment,
    InfrastructureError,
    RequestRefused,
    Session,
    ToolCallFailed,
    ToolLost,
)
from toolyard.core.nearness import did_you_mean
from toolyard.core.output import JsonObject, ToolOutput
from toolyard.loading import load_targets
from toolyard.sandboxes.installation import Installation, use
from toolyard.settings import Settings
from toolyard.testing import running

HELP = "play a session by hand: read the prompt, call tools, see rewards"

EXAMPLES = """\
examples:
  toolyard play examples/maze.py                     serves the file for as long as you play
  toolyard play http://127.0.0.1:8080 maze           plays on a server that runs
  printf 'submit answer=7\\n' | toolyard play examples/arithmetic.py --index 3

Type `help` for what can be typed. The exit codes are those of `toolyard call`.
"""

TYPED = """\
  TOOL key=value …     call a tool; values are read as `toolyard call` reads them
  TOOL {"key": …}      call a tool with this JSON
  say TEXT             hand in the agent's last message, where a tool takes one
  tools, prompt, task  show them again
  fork                 go on in a copy of the session; `back` returns to where it was made
  restart              begin the task anew
  quit                 end the session; so does the end of the input
A tool that is called like one of these words is called with a colon before its name, as `:fork`."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "target", metavar="TARGET", help="file.py, file.py:Class, package.module, or the URL of a server that runs"
    )
    parser.add_argument("environment", nargs="?", metavar="ENVIRONMENT", help="which, if there are several")
    parser.add_argument("--split", help="split of the task [train, or else the first that has tasks]")
    parser.add_argument("--index", type=int, help="number of the task in its split [0]")
    parser.add_argument("--task", metavar="JSON", help="the task itself, instead of --split and --index")
    parser.add_argument("--secret", metavar="NAME=VALUE", action="append", help="for the environment (repeatable)")
    parser.add_argument("--images", metavar="FOLDER", type=Path, help="save images there")
    add_settings(parser)


def run(args: argparse.Namespace) -> int:
    try:
        with reached(args) as client:
            environment = chosen(client, args.environment)
            about = about_task(environment, args)
            if about is None:
                raise UsageError(f"{environment.name!r} has no tasks; say which with --task")
            Play(environment, about, Screen(args.images)).until_the_end()
    except ConnectionLost as error:
        return complain(
            f"toolyard play: there is no answer from {args.target} ({error}). To start a server: toolyard serve", 3
        )
    except InfrastructureError as error:
        return complain(f"toolyard play: {type(error).__name__}: {error}", 3)
    return 0


@contextmanager
def reached(args: argparse.Namespace) -> Iterator[Client]:
    """A client of the server that the target names, or of one that serves the target meanwhile."""
    if "://" in args.target:
        with Client(args.target, api_key=args.api_key) as client:
            yield client
        return
    settings = dataclasses.replace(Settings.read(vars(args)), gateways=1)
    logs.configure(settings.log_format, settings.log_level if args.log_level else "warning")
    use(Installation.at(settings.sandbox_python))
    loaded = load_targets([args.target])
    knobs = {knob.name: getattr(settings, knob.name) for knob in dataclasses.fields(Settings)}
    with (
        running(loaded.environments, toolsets=loaded.toolsets, **knobs) as server,
        Client(server.url, api_key=settings.api_key or None) as client,
    ):
        yield client


def chosen(client: Client, name: str | None) -> Environment:
    if name is not None:
        return known(client, name)
    names = client.environments.list()
    if len(names) > 1:
        raise UsageError(f"name the environment to play after the target; there are {', '.join(names)}")
    return client.environment(names[0])


class Play:
    """One session after another of the same task, or copies of one; the innermost is played."""

    def __init__(self, environment: Environment, about: Mapping[str, Any], screen: Screen) -> None:
        self._environment = environment
        self._about = about
        self._screen = screen
        self._sessions: list[Session] = []
        self._totals: list[tuple[int, float | None]] = []
        """Calls and return of each of them."""
        self._words: Mapping[str, Callable[[str], None]] = {
            "help": lambda _: print(TYPED),
            "tools": self._show_tools,
            "prompt": self._show_prompt,
            "task": lambda _: print(f"  task {task_text(environment, about)}"),
            "say": self._say,
            "fork": self._fork,
            "back": self._back,
            "restart": self._restart,
        }

    @property
    def _session(self) -> Session:
        return self._sessions[-1]

    def until_the_end(self) -> None:
        """Read and obey lines until there are no more, or until one says to quit."""
        try:
            self._open()
            for line in lines():
                if line in ("quit", "exit"):
                    break
                self._obey(line)
            self._sum_up()
        finally:
            while self._sessions:
                self._sessions.pop().close()

    def _open(self) -> None:
        session = self._environment.session(**self._about)
        session.__enter__()
        self._sessions, self._totals = [session], [(0, None)]
        self._show_prompt("")
        names = [tool.name for tool in session.list_tools()]
        if (terminal := session.terminal_tool()) is not None:
            names.append(f"say (for {terminal.name})")
        print(f"\n  tools: {', '.join(names) or 'none'}; `help` says what else can be typed", flush=True)

    def _obey(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        try:
            if word in self._words:
                self._words[word](rest.strip())
            else:
                self._call(word.removeprefix(":"), rest.strip())
        except ToolCallFailed as error:
            print(f"  no, {error.reason}: {error}")
        except ToolLost as error:
            print(f"  lost, through no fault of the agent: {error}")
        except (UsageError, RequestRefused) as error:
            print(f"  {error}")
        sys.stdout.flush()

    def _call(self, name: str, rest: str) -> None:
        tools = {tool.name: tool for tool in self._session.list_tools()}
        if name not in tools and (meant := did_you_mean(name, self._words)):
            print(f"  {name!r} is no tool, and no word that is known here{meant}")
            return
        schema = tools[name].input_schema if name in tools else None
        self._made(self._session.call_tool(name, typed_input(rest, schema or {})))

    def _made(self, output: ToolOutput) -> None:
        calls, total = self._totals[-1]
        self._totals[-1] = calls + 1, total if output.reward is None else (total or 0.0) + output.reward
        self._screen.show_output(output)
        if output.finished:
            self._sum_up()
            print("  `restart` begins the task anew, `quit` ends")

    # Words.

    def _show_tools(self, _: str) -> None:
        show_tools(self._session.list_tools(), self._session.terminal_tool())

    def _show_prompt(self, _: str) -> None:
        print(self._screen.shown(self._session.get_prompt()))

    def _say(self, text: str) -> None:
        self._made(self._session.call_terminal_tool(text))

    def _fork(self, _: str) -> None:
        try:
            (fork,) = self._session.fork()
        except RequestRefused as error:
            raise UsageError(f"{error}. A server with --placement process can copy every session") from None
        self._sessions.append(fork)
        self._totals.append(self._totals[-1])
        print(f"  this is copy {len(self._sessions) - 1} now; `back` returns to where it was made")

    def _back(self, _: str) -> None:
        if len(self._sessions) == 1:
            print("  this is the first session; `fork` makes a copy to come back from")
            return
        self._sessions.pop().close()
        self._totals.pop()
        print("  back where the copy was made")

    def _restart(self, _: str) -> None:
        while self._sessions:
            self._sessions.pop().close()
        self._open()

    def _sum_up(self) -> None:
        calls, total = self._totals[-1]
        print(f"  {calls} call{'s' * (calls != 1)}, {'no reward' if total is None else f'return {total:g}'}")


def lines() -> Iterator[str]:
    """What is typed, line by line, without empty lines. A pipe sees no prompt."""
    while True:
        try:
            line = input("\n> ") if sys.stdin.isatty() else next(sys.stdin, None)
        except EOFError:
            print()
            return
        if line is None:
            return
        if line := line.strip():
            if not sys.stdin.isatty():
                print(f"\n> {line}")
            yield line


def typed_input(text: str, schema: JsonObject) -> JsonObject:
    """`key=value` pairs, or one JSON object."""
    if text.startswith("{"):
        return object_of("the input of a tool", text)
    try:
        words: Sequence[str] = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{text!r} cannot be read: {error}") from None
    pairs: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise UsageError(f"{word!r} is not of the form key=value, nor JSON, which begins with {{")
        pairs[key] = value
    return read_pairs(pairs, schema)
