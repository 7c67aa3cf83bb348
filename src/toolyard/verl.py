"""`python -m toolyard.verl` takes the place of `python -m verl_tool.servers.serve`: its flags, its banner, its wire.

Two things differ on purpose: without --host it listens on this machine only, and code runs in a sandbox.
"""

from __future__ import annotations

import difflib
import importlib.util
import logging
import os
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, get_type_hints

from uvicorn.logging import DefaultFormatter

from toolyard.adapters import is_toolset, verl_tool
from toolyard.core.environment import Toolset
from toolyard.core.errors import ToolyardError
from toolyard.loading import LoadError, load_targets
from toolyard.logs import TextLines
from toolyard.server import Server
from toolyard.serving import listen_all, tune_process
from toolyard.settings import Settings, is_loopback, variable_of
from toolyard.tools import TOOLS
from toolyard.tools.environment import ordered, toolbox, toolset_named

log = logging.getLogger(__name__)

_MANY_THREADS = 512
_LEVELS = ("debug", "info", "warning", "error", "critical")
_CHATTY = ("httpx2", "httpcore", "httpcore2")
"""Libraries that log every request."""

USAGE = """\
usage: python -m toolyard.verl [--FLAG VALUE | --FLAG=VALUE | --FLAG | --noFLAG] …

The flags of verl-tool's server:

{flags}

  These are accepted and have no meaning here: {unused}.

For all other settings of Toolyard there are variables, for instance TOOLYARD_SANDBOX.
"""


@dataclass(frozen=True, slots=True)
class Flags:
    """The flags that have a meaning. None: not given."""

    tool_type: tuple[str, ...] = ("base",)
    host: str | None = None
    port: int = 5000
    workers_per_tool: int = verl_tool.WORKERS
    max_concurrent_requests: int = 1024
    request_timeout: float | None = None
    thread_pool_size: int | None = None
    log_level: str = "info"
    done_if_invalid: bool | None = None
    enable_hashing: bool | None = None
    data_dir: tuple[str, ...] | None = None


HELP: Mapping[str, str] = {
    "tool_type": "tools, separated by commas; also files with classes written for verl-tool [base]",
    "host": "address to listen on [127.0.0.1]",
    "port": "port to listen on; 0 picks a free one [5000]",
    "workers_per_tool": "num_workers of classes written for verl-tool; raises the number of threads if need be [32]",
    "max_concurrent_requests": "actions that run at once; others wait their turn [1024]",
    "request_timeout": "seconds after which a request is answered 408 [never]",
    "thread_pool_size": "threads, at most [4 for each concurrent request, but at least 512]",
    "log_level": "debug, info, warning, error or critical [info]",
    "done_if_invalid": "end a trajectory whose text calls no tool [False]",
    "enable_hashing": "a repeated request gets the same answer, and nothing runs twice [True]",
    "data_dir": "directories, separated by commas, below which a trainer may name files (repeatable) [none]",
}
UNUSED = ("log_directory", "log_interval", "router_workers", "slient", "use_ray", "use_tqdm", "uvi_workers")


class FlagError(ToolyardError):
    """The command line is malformed."""


def main(argv: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if argv is None else argv
    if {"--help", "-h", "help"} & set(given):
        sys.stdout.write(usage())
        return 0
    try:
        flags, unused = read_flags(given)
        serve(flags, unused)
    except ToolyardError as error:
        sys.stderr.write(textwrap.fill(f"toolyard.verl: {error}", 100, break_on_hyphens=False) + "\n")
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def serve(flags: Flags, unused: Sequence[str]) -> None:
    configure_logs(flags.log_level)
    if unused:
        log.info("These flags are accepted and have no meaning here: %s", ", ".join(unused))
    toolsets = initialized(flags)
    names = [name for toolset in toolsets for name in tool_names(toolset)]
    for name in dict.fromkeys([*TOOLS, *names]):
        log.info("  - %s: %s", name, "active 🟢" if name in (*names, "finish") else "inactive ⚪")
    # Without any tool, trajectories can still be finished, and every text is invalid.
    environment = toolbox(toolsets or [toolset_named("finish")], block_lists=True)
    settings = settings_of(flags)
    settings.check_sandbox_network()
    server = Server([environment], settings=settings)
    sockets = listen_all(server.settings.host, server.settings.port, server.settings.gateways)
    where = f"{server.settings.host}:{sockets[0].getsockname()[1]}"
    log.info("Starting async server on %s", where)
    log.info("Server configured for up to %d concurrent requests", server.settings.max_concurrent_calls)
    if not (is_loopback(server.settings.host) or server.settings.api_key):
        log.warning("%s can be reached from other machines, and no key is asked for", server.settings.host)
    tune_process()
    told = logging.getLogger("uvicorn.error")
    server.serve(
        *sockets, on_start=lambda: told.info("Uvicorn running on http://%s (Press CTRL+C to quit)", reachable(where))
    )


def settings_of(flags: Flags) -> Settings:
    most = flags.max_concurrent_requests
    threads = flags.thread_pool_size or max(4 * most, _MANY_THREADS)
    return Settings.read(
        {
            "host": flags.host,
            "port": flags.port,
            "protocol": ("verl",),
            "tools": "",
            "data_dir": flags.data_dir,
            "max_concurrent_calls": most,
            "threads": max(threads, flags.workers_per_tool * len(flags.tool_type)),
            "verl_request_seconds": flags.request_timeout,
            "verl_done_if_invalid": flags.done_if_invalid,
            "verl_repeat_seconds": 0.0 if flags.enable_hashing is False else None,
        },
        {variable_of("verl_explain_invalid"): "yes", **os.environ},  # as in verl-tool, unless a variable says no
    )


def reachable(where: str) -> str:
    host, _, port = where.rpartition(":")
    return f"[{host}]:{port}" if ":" in host else where


# The tools.


def initialized(flags: Flags) -> list[type[Toolset]]:
    """The tools that can be used. Logs what is wrong with the others, and leaves them out."""
    wanted = [name for name in ordered(flags.tool_type) if name != "finish"]
    log.info("Initializing tools: %s", tuple(wanted))
    toolsets: list[type[Toolset]] = []
    for name in wanted:
        try:
            toolsets += toolsets_named(name, flags.workers_per_tool)
        except (ToolyardError, ImportError) as error:
            log.error("Failed to initialize tool %s: %s", name, error)
        else:
            log.info("Initialized tool: %s", name)
    log.info("Available Tools:")
    return toolsets


def toolsets_named(name: str, workers: int) -> Sequence[type[Toolset]]:
    """A tool of Toolyard, another one of verl-tool, or the tools of a file."""
    if name in TOOLS or not (target := _target(name)):
        return [toolset_named(name)]
    found = load_targets([target])
    tools = [verl_tool.adapt(cls, workers) for cls in found.environments if verl_tool.is_tool(cls)]
    tools += [cls for cls in found.toolsets if is_toolset(cls)]
    if not tools:
        raise LoadError(f"there is no tool in {name}")
    return tools


def tool_names(toolset: type[Toolset]) -> Sequence[str]:
    return list(toolbox([toolset])._definition.tools)


def _target(name: str) -> str:
    """What to load for a name that Toolyard does not know: a file, a module, or a tool added to verl-tool."""
    if name.partition(":")[0].endswith(".py") or "." in name:
        return name
    module = f"{verl_tool.PACKAGE}.{name}"
    try:
        return module if importlib.util.find_spec(module) is not None else ""
    except ModuleNotFoundError:  # verl-tool is not installed
        return ""


# The command line, as python-fire reads it.


def read_flags(argv: Sequence[str]) -> tuple[Flags, Sequence[str]]:
    """The flags, and the names of those without a meaning here."""
    kinds = get_type_hints(Flags)
    values: dict[str, Any] = {}
    unused: list[str] = []
    left = list(argv)
    while left:
        name, text = _next_flag(left)
        if name in UNUSED:
            unused.append(name)
        elif text not in ("None", "''", '""'):
            value = _value(name, text, kinds[name])
            values[name] = values.get(name, ()) + value if name == "data_dir" else value
    return Flags(**values), unused


def _next_flag(left: list[str]) -> tuple[str, str]:
    """Take one flag and its value off the front. A flag without a value is True; with `no` before it, False."""
    word = left.pop(0)
    if not word.startswith("-"):
        raise FlagError(f"what is {word!r}? Write --flag value; several tools are one value: --tool_type a,b")
    written, equals, text = word.partition("=")
    name = written.lstrip("-").replace("-", "_")
    if name not in HELP and name not in UNUSED:
        if not equals and name.removeprefix("no").lstrip("_") in (*HELP, *UNUSED):
            return name.removeprefix("no").lstrip("_"), "False"
        raise _unknown(written)
    if not equals:
        text = left.pop(0) if left and not re.match(r"--?[A-Za-z]", left[0]) else "True"
    return name, text


def _unknown(written: str) -> FlagError:
    close = difflib.get_close_matches(written.lstrip("-").replace("-", "_"), (*HELP, *UNUSED), n=3)
    known = close or sorted((*HELP, *UNUSED))
    return FlagError(f"there is no flag {written}; {'did you mean' if close else 'there are'} --{', --'.join(known)}")


def _value(name: str, text: str, kind: Any) -> object:
    """`a,b`, `('a','b')` and `["a", "b"]` are all the same to python-fire."""
    if name == "tool_type":
        return tuple(re.findall(r"[^\s,()\[\]'\"]+", text)) or _wrong(name, text, "names of tools, separated by commas")
    if name == "data_dir":
        folders = [folder.strip(" '\"") for folder in text.strip("()[]").split(",")]
        return tuple(filter(None, folders)) or _wrong(name, text, "directories, separated by commas")
    text = text.strip("'\"")
    if name == "log_level":
        return text.lower() if text.lower() in _LEVELS else _wrong(name, text, f"one of {', '.join(_LEVELS)}")
    if kind in (bool, bool | None):
        found = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}.get(text.lower())
        return found if found is not None else _wrong(name, text, "True or False")
    if kind in (str, str | None):
        return text
    whole = kind in (int, int | None)
    try:
        return int(text) if whole else float(text)
    except ValueError:
        return _wrong(name, text, "a whole number" if whole else "a number")


def _wrong(name: str, text: str, wanted: str) -> object:
    raise FlagError(f"--{name} is {text!r}; it must be {wanted}")


def usage() -> str:
    width = max(map(len, HELP)) + 2
    shown = "\n".join(f"  --{flag.name:{width}}{HELP[flag.name]}" for flag in fields(Flags))
    return USAGE.format(flags=shown, unused=", ".join(UNUSED))


def configure_logs(level: str) -> None:
    """Format the log as verl-tool does, for people and scripts that read it."""
    lines = logging.StreamHandler(sys.stderr)
    lines.setFormatter(TextLines("%(asctime)s - %(name)s - %(levelname)s - %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[lines])
    for name in _CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
    uvicorns = logging.getLogger("uvicorn")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(DefaultFormatter("%(levelprefix)s %(message)s", use_colors=False))
    uvicorns.handlers = [handler]
    uvicorns.propagate = False


if __name__ == "__main__":
    sys.exit(main())
