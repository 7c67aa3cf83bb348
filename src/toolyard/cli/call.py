"""Ask a server from the shell: what it has, what its tools take, and what they answer."""

from __future__ import annotations

import argparse
import json
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from toolyard.cli._output import complain
from toolyard.cli._parser import no_option, options_of
from toolyard.cli._screen import Screen
from toolyard.cli._typed import UsageError, object_of, pairs_of
from toolyard.client import (
    Client,
    ConnectionLost,
    Environment,
    InfrastructureError,
    RequestRefused,
    Session,
    ToolCallFailed,
)
from toolyard.client.schemas import resolve
from toolyard.core.counting import counted
from toolyard.core.output import JsonObject, cut_text
from toolyard.core.tool import TerminalToolSpec, ToolSpec

HELP = "ask a server: what it has, what its tools take, and what they answer"

EXAMPLES = """\
examples:
  toolyard call http://127.0.0.1:8080                                    what it serves
  toolyard call http://127.0.0.1:8080 maze                               its tools, and the prompt of a task
  toolyard call http://127.0.0.1:8080 maze move direction=north then look_at_map
                                                                         two calls in one session
  toolyard call http://127.0.0.1:8080 arithmetic submit --json '{"answer": "3"}' --split test --index 5

exit codes: 0 all went well, 1 a tool said no, 2 the command makes no sense, 3 the server or the network failed
"""

_TASK_MOST = 2_000
"""Characters of a task that are shown."""
PATIENCE = 1.0
"""Seconds to wait for a server that does not answer: a person is watching."""


@dataclass(frozen=True, slots=True)
class TypedCall:
    """A tool and its arguments: `pairs` as typed, `input` as JSON."""

    tool: str
    pairs: dict[str, str] = field(default_factory=dict)
    input: dict[str, Any] = field(default_factory=dict)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "toolyard call URL [ENVIRONMENT [TOOL key=value … [then TOOL key=value …]]] [options]"
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("url", metavar="URL", help="where the server is, such as http://127.0.0.1:8080")
    parser.set_defaults(print_help=parser.print_help)
    words = parser.add_argument(
        "words",
        nargs=argparse.REMAINDER,
        metavar="ENVIRONMENT TOOL key=value …",
        help="an environment, and calls to make in one session, with `then` between them; "
        "--json '{…}' after a tool gives its input as JSON",
    )
    words.required = False
    add_options(parser)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--split", help="split of the task [train, or else the first that has tasks]")
    parser.add_argument("--index", type=int, help="number of the task in its split [0]")
    parser.add_argument("--task", metavar="JSON", help="the task itself, instead of --split and --index")
    parser.add_argument("--secret", metavar="NAME=VALUE", action="append", help="for the environment (repeatable)")
    parser.add_argument("--api-key", metavar="KEY", help="key of the server [TOOLYARD_API_KEY]")
    parser.add_argument("--raw", action="store_true", help="print JSON, one line per call, for other programs")
    parser.add_argument("--go-on", action="store_true", help="make the calls after one that failed, too")
    parser.add_argument("--images", metavar="FOLDER", type=Path, help="save images there")


def run(args: argparse.Namespace) -> int:
    if {"-h", "--help"} & set(args.words):
        args.print_help()
        return 0
    try:
        environment, calls = read_words(args)
        with connect(args) as client:
            if environment is None:
                show_server(client)
            elif not calls:
                show_environment(known(client, environment), args)
            elif not play(known(client, environment), calls, args):
                return 1
    except ConnectionLost as error:
        return explain(f"there is no answer from {args.url} ({error}). To start a server: toolyard serve", 3)
    except InfrastructureError as error:
        return explain(f"{type(error).__name__}: {error}", 3)
    except RequestRefused as error:
        if error.status == 404 and urlsplit(args.url).path.strip("/"):
            server = urlsplit(args.url)._replace(path="", query="", fragment="").geturl()
            return explain(f"{args.url} is no server ({error}). Is it {server}? What is asked for comes after it", 2)
        return explain(str(error), 2)
    except UsageError as error:
        return explain(str(error), 2)
    return 0


def connect(args: argparse.Namespace) -> Client:
    if args.url.partition(":")[0].endswith(".py"):
        raise UsageError(
            f"{args.url} is a file, and `call` asks a server that runs. Start one with toolyard serve {args.url}, "
            f"or play the file by hand with toolyard play {args.url}"
        )
    try:
        return Client(args.url, api_key=args.api_key, patience=PATIENCE)
    except ValueError as error:
        raise UsageError(str(error)) from None


def known(client: Client, name: str) -> Environment:
    names = client.environments.list()
    if name.lower() not in names:
        raise UsageError(f"there is no environment {name!r} on {client.base_url}; there are {', '.join(names)}")
    return client.environment(name)


def explain(problem: str, code: int) -> int:
    return complain(f"toolyard call: {problem}", code)


# The command line.


def read_words(args: argparse.Namespace) -> tuple[str | None, Sequence[TypedCall]]:
    """Environment and calls. Options may stand anywhere among them, and are put where argparse puts the others."""
    options = argparse.ArgumentParser(prog="toolyard call", add_help=False, allow_abbrev=False)
    add_options(options)
    _, words = options.parse_known_args(["then" if word == "--" else word for word in args.words], args)
    if words and words[0].startswith("-"):
        raise UsageError(no_option(words[0].partition("=")[0], options_of(options)))
    return (words[0] if words else None), list(read_calls(words[1:]))


def read_calls(words: Sequence[str]) -> Iterator[TypedCall]:
    while words:
        length = words.index("then") if "then" in words else len(words)
        if not length:
            raise UsageError("there must be a tool before and after each `then`")
        yield read_call(words[0], list(words[1:length]))
        if length == len(words) - 1:
            raise UsageError("there must be a tool before and after each `then`")
        words = words[length + 1 :]


def read_call(tool: str, words: list[str]) -> TypedCall:
    call = TypedCall(tool)
    while words:
        word = words.pop(0)
        key, equals, value = word.partition("=")
        if key == "--json":
            call.input.update(object_of("--json", value if equals else words.pop(0) if words else ""))
        elif key.startswith("-"):
            raise UsageError(no_option(key, ("--json",)))
        elif not equals:
            meant = "JSON comes after --json" if word.startswith("{") else "another call begins with `then`"
            raise UsageError(f"{word!r} is not of the form key=value; {meant}")
        else:
            call.pairs[key] = value
    return call


def read_pairs(pairs: Mapping[str, str], schema: JsonObject) -> dict[str, Any]:
    """Text where the tool takes text; elsewhere JSON, if it is that."""
    properties = schema.get("properties", {})
    given: dict[str, Any] = {}
    for key, text in pairs.items():
        given[key] = text
        if not takes_text(properties.get(key), schema):
            try:
                given[key] = json.loads(text)
            except ValueError:
                continue  # the tool will say what is wrong with it
    return given


def takes_text(schema: Any, root: JsonObject) -> bool:
    """Whether a text is a value for this schema, which is any JSON value."""
    if not isinstance(schema, Mapping):
        return False
    if isinstance(ref := schema.get("$ref"), str):
        return takes_text(resolve(root, ref), root)
    kinds = schema.get("type")
    options = [option for key in ("anyOf", "oneOf", "allOf") for option in schema.get(key, ())]
    values = [*schema.get("enum", ()), schema.get("const")]
    return (
        "string" in (kinds if isinstance(kinds, list) else [kinds])
        or any(isinstance(value, str) for value in values)
        or any(takes_text(option, root) for option in options)
    )


# What the server has.


def show_server(client: Client) -> None:
    names = client.environments.list()
    print(f"{client.base_url} serves {counted(len(names), 'environment')}")
    for name in names:
        environment = client.environment(name)
        tools = ", ".join(tool.name for tool in environment.list_tools())
        print(f"\n{name}\n  splits  {splits(environment)}\n  tools   {tools or 'depend on the task'}")


def show_environment(environment: Environment, args: argparse.Namespace) -> None:
    """Show its splits, and one task as an agent finds it: the prompt, and the tools of that task."""
    print(f"{environment.name}\n  splits  {splits(environment)}")
    about = about_task(environment, args)
    if about is None:
        show_tools(environment.list_tools(), None)
        print("\n  It has no tasks: give one with --task to see its prompt.")
        return
    with environment.session(**about) as session:
        show_tools(session.list_tools(), session.terminal_tool())
        print(f"\n  task {task_text(environment, about)}")
        print(f"\n  prompt\n{textwrap.indent(Screen(args.images).shown(session.get_prompt()), '  ')}")


def task_text(environment: Environment, about: Mapping[str, Any]) -> str:
    """`train[0]`, and the task as JSON, cut."""
    given = "task" in about
    task = about["task"] if given else environment.get_task(about["split"], about["index"]).task_spec
    name = "given with --task" if given else f"{about['split']}[{about['index']}]"
    return f"{name}\n{textwrap.indent(cut_text(json.dumps(task, ensure_ascii=False), _TASK_MOST), '    ')}"


def show_tools(tools: Sequence[ToolSpec], terminal: TerminalToolSpec | None) -> None:
    for tool in tools:
        print(f"\n  {tool.name}")
        if tool.description:
            print(textwrap.indent(tool.description, "    "))
        show_parameters(tool.input_schema or {})
    if terminal is not None:
        takes = f", as {terminal.arg}" if terminal.arg else ""
        print(f"\n  {terminal.name}\n    Terminal: it takes the agent's last message{takes}.")
        if terminal.description:
            print(textwrap.indent(terminal.description, "    "))


def show_parameters(schema: JsonObject) -> None:
    properties = schema.get("properties", {})
    width = max(map(len, properties), default=0) + 2
    for name, described in properties.items():
        need = "required" if name in schema.get("required", ()) else f"default {json.dumps(described.get('default'))}"
        about = f"  {described['description']}" if "description" in described else ""
        print(f"      {name:{width}}{kind(described, schema)}, {need}{about}")


def splits(environment: Environment) -> str:
    sizes = {split: counted(environment.num_tasks(split), "task") for split in environment.list_splits()}
    return ", ".join(f"{split} ({size})" for split, size in sizes.items())


def kind(schema: Any, root: JsonObject) -> str:
    """A schema in a few words. It is any JSON value."""
    if not isinstance(schema, Mapping):
        return "anything"
    if isinstance(ref := schema.get("$ref"), str):
        target = resolve(root, ref)
        return kind(target, root) if "enum" in target else ref.rpartition("/")[2]
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema:
            return " | ".join(kind(option, root) for option in schema[key])
    if "enum" in schema or "const" in schema:
        return " | ".join(json.dumps(value) for value in schema.get("enum", [schema.get("const")]))
    match schema.get("type"):
        case "array":
            return f"list of {kind(schema.get('items'), root)}"
        case list() as kinds:
            return " | ".join(map(str, kinds))
        case one:
            return str(one or "anything")


# What the tools answer.


def play(environment: Environment, calls: Sequence[TypedCall], args: argparse.Namespace) -> bool:
    """All calls in one session; the first that fails is the last, unless --go-on says otherwise. Whether none did."""
    about = about_task(environment, args)
    if about is None:
        raise UsageError(f"{environment.name!r} has no tasks; say which with --task")
    screen = Screen(args.images)
    with environment.session(**about) as session:
        prompt = session.get_prompt()
        if args.raw:
            print(json.dumps({"prompt": [block.model_dump() for block in prompt]}))
        else:
            print(screen.shown(prompt))
        tools = {tool.name: tool for tool in session.list_tools()}
        failed = False
        for number, call in enumerate(calls, start=1):
            if make(session, call, tools.get(call.tool), screen, raw=args.raw):
                continue
            failed = True
            if not args.go_on:
                if dropped := calls[number:]:
                    names = ", ".join(one.tool for one in dropped)
                    explain(f"not called after this failure: {names}. --go-on would call them", 1)
                break
    return not failed


def about_task(environment: Environment, args: argparse.Namespace) -> dict[str, Any] | None:
    """What a session is about, as `environment.session` takes it. None if no task is named, and there is none."""
    about: dict[str, Any] = {"secrets": pairs_of("--secret", args.secret or ())}
    if args.task is not None:
        if args.split is not None or args.index is not None:
            raise UsageError("a session is about either --task, or --split and --index")
        return {**about, "task": object_of("--task", args.task)}
    split = args.split or first_split(environment)
    return None if split is None else {**about, "split": split, "index": args.index or 0}


def first_split(environment: Environment) -> str | None:
    """The split `train`, or else the first with tasks."""
    names = sorted(environment.list_splits(), key=lambda name: name != "train")
    return next((name for name in names if environment.num_tasks(name)), None)


def make(session: Session, call: TypedCall, tool: ToolSpec | None, screen: Screen, *, raw: bool) -> bool:
    """Make one call, and show what came of it. Whether it went well."""
    schema: JsonObject = (tool and tool.input_schema) or {}
    input = {**read_pairs(call.pairs, schema), **call.input}
    if not raw:
        print(f"\n> {call.tool} {json.dumps(input, ensure_ascii=False)}", flush=True)
    try:
        output = session.call_tool(call.tool, input)
    except ToolCallFailed as error:
        failed = {"ok": False, "reason": error.reason, "error": error.message}
        text = textwrap.indent(f"no, {error.reason}: {error}", "  ")
        print(json.dumps({"tool": call.tool, "input": input, **failed}) if raw else text)
        return False
    if raw:
        print(json.dumps({"tool": call.tool, "input": input, "ok": True, "output": output.model_dump()}))
    else:
        screen.show_output(output)
    return True
