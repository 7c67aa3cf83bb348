"""Serve environments until interrupted."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import shlex
import textwrap
from collections.abc import Callable, Sequence
from functools import partial

from toolyard import logs
from toolyard.cli._output import forget_stdout
from toolyard.cli._settings import add_settings
from toolyard.core.errors import SandboxUnavailable, ToolyardError
from toolyard.loading import WORKSPACE, Loaded, LoadError, folders_of, load_targets
from toolyard.sandboxes.installation import Installation, use
from toolyard.server import Server
from toolyard.serving import listen_all, tune_process
from toolyard.settings import Settings
from toolyard.tools.offered import left_out
from toolyard.version import __version__

try:
    import watchfiles
except ImportError:  # an extra
    watchfiles = None  # type: ignore[assignment]

log = logging.getLogger("toolyard.server")

HELP = "serve environments over every protocol"

_ALL_ADDRESSES = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}
"""Hosts that mean every address of the machine, with the address to try for each."""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "targets",
        nargs="*",
        metavar="TARGET",
        help="file.py, file.py:Class, package.module or package.module:Class; none: the examples and the workspace",
    )
    parser.add_argument("--reload", action="store_true", help="start again whenever a file beside a target changes")
    add_settings(parser)


def run(args: argparse.Namespace) -> int:
    settings = Settings.read(vars(args))
    settings.check_exposure()
    settings.check_sandbox_network()
    if not args.reload:
        serve(args.targets, settings)
        return 0
    if watchfiles is None:
        raise LoadError("--reload needs the package watchfiles: pip install 'toolyard[reload]'")
    logging.getLogger("watchfiles").setLevel(logging.ERROR)  # it warns of Ctrl-C
    watchfiles.run_process(*folders_of(args.targets), target=serve_again, args=(args.targets, settings))
    return 0


def serve(targets: Sequence[str], settings: Settings) -> None:
    logs.configure(settings.log_format, settings.log_level)
    use(Installation.at(settings.sandbox_python))  # some targets have more tools if it has more packages
    if targets or settings.tools or settings.apis:
        serve_loaded(load_targets(targets) if targets else Loaded([], []), settings)
        return
    settings = dataclasses.replace(settings, allow_visible_source=True)  # the examples are public
    examples, workspace = load_targets([]).environments, load_targets([WORKSPACE]).environments
    try:
        serve_loaded(Loaded([*examples, *workspace], []), settings)
    except SandboxUnavailable:  # it was not asked for by name, and the rest works without it
        wanted = settings.min_isolation
        log.warning(
            "The workspace is not served: nothing here isolates programs as well as %s asks for. "
            "`toolyard sandbox report` says what this host lacks, and how to get it.",
            wanted,
        )
        serve_loaded(Loaded(examples, []), settings)


def serve_loaded(loaded: Loaded, settings: Settings) -> None:
    server = Server(loaded.environments, toolsets=loaded.toolsets, settings=settings)
    sockets = listen_all(settings.host, settings.port, settings.gateways)
    shown = partial(banner, server, sockets[0].getsockname()[1])
    tune_process()
    try:
        server.serve(*sockets, on_start=partial(announce, server, shown))
    finally:
        for socket in sockets:
            socket.close()


def announce(server: Server, shown: Callable[[], str]) -> None:
    """Show the banner to people. Who reads JSON lines gets one of those instead."""
    if server.settings.log_format == "json":
        names = list(server.runtime.environments)
        log.info("serving %s", ", ".join(names), extra={"about": {"url": shown().partition(" on ")[2].split()[0]}})
        return
    try:
        print(shown(), flush=True)
    except BrokenPipeError:  # `toolyard serve | head -1`: the server goes on
        forget_stdout()


def serve_again(targets: Sequence[str], settings: Settings) -> None:
    """Runs in the process that --reload starts: reports a broken file, and waits for the next change."""
    try:
        serve(targets, settings)
    except (ToolyardError, KeyboardInterrupt) as error:
        print(f"toolyard serve: {str(error) or 'stopped'}", flush=True)


def banner(server: Server, port: int) -> str:
    """What the server serves, where, over which protocols, and what to try next."""
    url = f"http://{reachable(server.settings.host)}:{port}"
    names = list(server.runtime.environments)
    width = max(len(name) for name in names) + 2
    more = " and every other address of this machine" if server.settings.host in _ALL_ADDRESSES else ""
    lines = [f"Toolyard {__version__} is serving {len(names)} environment{'s' * (len(names) > 1)} on {url}{more}", ""]
    for name, environment in server.runtime.environments.items():
        tools = ", ".join(environment._definition.tools) or "tools that depend on the task"
        lines += textwrap.wrap(f"  {name:{width}}{tools}", 100, subsequent_indent=" " * (width + 2))
    lines += left_out_lines(server)
    asked = bool(server.settings.api_key)  # the key itself is not for a screen or a log
    lines += [
        "",
        *studio_lines(server, url),
        f"  protocols: {', '.join(server.protocols)}" + "   (a key is required)" * asked,
        *sandbox_lines(server),
        *gateway_lines(server),
        *agent_lines(server),
        *record_lines(server),
        "",
        "Try it from another terminal:",
        "",
        "  curl " + '-H "X-API-Key: …" ' * asked + f"{url}/{names[0]}/tools",
        "",
        "or from Python:",
        "",
        "  from toolyard import Client",
        "",
        f'  client = Client("{url}"' + ', api_key="…"' * asked + ")",
        f'  environment = client.environments.get("{names[0]}")',
        "  split = environment.list_splits()[0]",
        "  with environment.session(split=split, index=0) as session:",
        "      print(session.get_prompt()[0].text)",
        "      print([tool.name for tool in session.list_tools()])",
        "",
        "Stop with Ctrl-C.",
    ]
    return "\n".join(lines)


def studio_lines(server: Server, url: str) -> Sequence[str]:
    return (f"  studio: {url}/studio/, to look at it in a browser",) if server.settings.studio else ()


def left_out_lines(server: Server) -> Sequence[str]:
    """The tools that cannot work here, with what would bring them."""
    why: dict[str, list[str]] = {}
    for environment in server.environments:
        for tools, reason in left_out(environment).items():
            why.setdefault(f"not offered here: {tools}: {reason}", []).append(environment.name().lower())
    lines = [f"  {text} ({', '.join(names)})" for text, names in why.items()]
    wrapped = [line for text in lines for line in textwrap.wrap(text, 100, subsequent_indent=" " * 4)]
    return ["", *wrapped] if wrapped else ()


def sandbox_lines(server: Server) -> Sequence[str]:
    if (report := server.sandboxes.report) is None:
        return ()
    missing = ", ".join(one.feature for one in report.missing)
    without = f", without {missing} (see `toolyard sandbox report`)" * bool(missing)
    view = server.sandboxes.view
    python = "" if view.is_own else f", Python {view.python}"
    hides = ", sources are visible" * bool(view.hidden) if report.level == "L0" else view.words
    return (f"  sandboxes: {report.backend}, isolation {report.level}{hides}{python}{without}",)


def gateway_lines(server: Server) -> Sequence[str]:
    count = server.settings.gateways
    return (f"  gateways: {count} processes share the port",) if count > 1 else ()


def agent_lines(server: Server) -> Sequence[str]:
    if server.agent_port is None:
        return ()
    host = reachable(server.settings.agent_host or server.settings.host)
    return (f"  agents: http://{host}:{server.agent_port}, which has /agent/ and nothing else",)


def record_lines(server: Server) -> Sequence[str]:
    path = shlex.quote(server.settings.record)
    return (f"  episodes: kept, see `toolyard episodes list --store {path}`",) if server.recorder is not None else ()


def reachable(host: str) -> str:
    """The host as a URL names it: one can listen on all addresses, but not connect to all of them."""
    host = _ALL_ADDRESSES.get(host, host)
    return f"[{host}]" if ":" in host else host
