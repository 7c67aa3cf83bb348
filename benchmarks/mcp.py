"""Toolyard against the servers of MCP's own SDK and of FastMCP: `python -m benchmarks.mcp`.

All servers are up at once and take turns under the same load: calls of a tool that returns its argument, in both eras
of MCP. Both peers answer with JSON, which is cheaper for them than the events of their defaults. A second table adds
Toolyard's other doors, in the same turns. A ratio is the median over rounds of the ratio within one round.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import platform
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from benchmarks import ors
from benchmarks.cache import cache, load_generator
from benchmarks.load import SESSION, Load, Step, drive
from benchmarks.report import MCP_PAGE, Row, check_platform, command_of, micro, processor, progress, table
from benchmarks.servers import Contender, Started, running, serving, venvs, versions
from benchmarks.turns import in_turns, row

CONNECTIONS = 32
ENVIRONMENT = "benchmarks/environment.py"
TEXT = "hello world"

Era: TypeAlias = Literal["2025-11-25", "2026-07-28"]
Turns: TypeAlias = Sequence[Mapping[str, Load]]

_META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "benchmark", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
_INITIALIZE = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "benchmark", "version": "1"},
}
_TYPES = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}

# As their documentation starts them, but explicitly with uvicorn's faster loop and parser.
_RUN = """
uvicorn.run(app, port=int(sys.argv[1]), loop="uvloop", http="httptools", access_log=False, timeout_keep_alive=60)
"""
_SDK = """
import sys, uvicorn
from mcp.server.lowlevel import Server
from mcp.types import CallToolResult, ListToolsResult, TextContent, Tool

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}

async def list_tools(context, params):
    return ListToolsResult(tools=[Tool(name="echo", description="Say the text back.", inputSchema=SCHEMA)])

async def call_tool(context, params):
    return CallToolResult(content=[TextContent(type="text", text=params.arguments["text"])])

server = Server("echo", on_list_tools=list_tools, on_call_tool=call_tool)
app = server.streamable_http_app(json_response=True)
"""
_FASTMCP = """
import sys, uvicorn
from fastmcp import FastMCP

server = FastMCP("echo")

@server.tool
async def echo(text: str) -> str:
    "Say the text back."
    return text

app = server.http_app(json_response=True)
"""


@dataclass(frozen=True)
class Peer:
    name: str
    """Of its distribution."""
    title: str
    program: str
    target: str


PEERS = (
    Peer("mcp", "the SDK's server", _SDK, "5x less"),
    Peer("fastmcp", "FastMCP", _FASTMCP, "8x less"),
)


def contender(peer: Peer) -> Contender:
    """A peer in the virtual environment of both, which this makes the first time."""
    python = venvs.interpreter(venvs.MCP_FAST)
    folder = cache() / "mcp"  # not here, where `import mcp` would find this file
    folder.mkdir(exist_ok=True)
    return Contender(peer.name, peer.name, python, [str(python), "-c", peer.program + _RUN], folder)


def call(era: Era) -> str:
    params: dict[str, Any] = {"name": "echo", "arguments": {"text": TEXT}}
    if era == "2026-07-28":
        params["_meta"] = _META
    asked = {"jsonrpc": "2.0", "id": SESSION, "method": "tools/call", "params": params}  # each connection its own id
    return json.dumps(asked, separators=(",", ":"))


def said(era: Era) -> Mapping[str, str]:
    """The headers of a call."""
    if era == "2026-07-28":
        return {"MCP-Protocol-Version": era, "Mcp-Method": "tools/call", "Mcp-Name": "echo"}
    return {"MCP-Protocol-Version": era}


def calls(path: str, era: Era, session_id: str = "") -> Step:
    headers = {**said(era), **({"Mcp-Session-Id": session_id} if session_id else {})}
    return Step("loop", "POST", path, call(era), _TYPES["Accept"], session="unsaid", headers=headers)


def shaken(server: Started) -> str:
    """The session of a peer for all calls with a handshake."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": _INITIALIZE}
    connection.request("POST", "/mcp", json.dumps(body), _TYPES)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    session_id = answer.headers["mcp-session-id"]
    if answer.status != 200 or not session_id:
        raise SystemExit(f"A server did not shake hands: {answer.status} {text}")
    return str(session_id)


def check(server: Started, step: Step) -> None:
    """Check that the server does the work to be measured."""
    answer = json.loads(server.ask(step.method, step.path, step.body, {**_TYPES, **step.headers}))
    blocks = answer["result"]["content"] if "result" in answer else answer["blocks"]
    assert blocks[0]["text"] == TEXT, answer


def peers_plans(peer: str, server: Started) -> Mapping[str, Sequence[Step]]:
    ways: Mapping[Era, Step] = {
        "2025-11-25": calls("/mcp", "2025-11-25", shaken(server)),
        "2026-07-28": calls("/mcp", "2026-07-28"),
    }
    for step in ways.values():
        check(server, step)
    return {f"{peer} {era}": [step] for era, step in ways.items()}


def our_plans(server: Started) -> Mapping[str, Sequence[Step]]:
    """A session for each connection; and one whose agent has all connections."""
    created = Step("setup", "POST", "/create", ors.CREATE, session="new")
    deleted = Step("teardown", "POST", "/delete")
    named = {"X-Session-ID": "99999999-2222-4333-8444-555555555555"}
    server.ask("POST", "/create", ors.CREATE, named)
    agent = "/agent/" + json.loads(server.ask("POST", "/echo/agent", "", named))["token"]
    plain = Step("loop", "POST", f"{agent}/call", ors.SMALL_CALL, session="unsaid")
    doors = {f"agent {era}": calls(f"{agent}/mcp", era) for era in get_args(Era)}
    for step in (plain, *doors.values()):
        check(server, step)
    return {
        "ors": ors.calls(ors.SMALL_CALL),
        **{f"ours {era}": [created, calls(f"/mcp/s/{SESSION}", era), deleted] for era in get_args(Era)},
        **{name: [step] for name, step in doors.items()},
        "agent plain": [plain],
    }


def measure(count: int, seconds: float) -> Turns:
    generator = load_generator()
    with ExitStack() as stack:
        ours = stack.enter_context(running(serving(ENVIRONMENT)))
        plans = {name: (ours, steps) for name, steps in our_plans(ours).items()}
        for peer in PEERS:
            server = stack.enter_context(running(contender(peer)))
            plans |= {name: (server, steps) for name, steps in peers_plans(peer.name, server).items()}

        def turn(name: str, lasting: float) -> Load:
            server, steps = plans[name]
            return drive(generator, server, steps, connections=CONNECTIONS, seconds=lasting)

        progress(f"{count} rounds of {len(plans)} turns")
        return in_turns(list(plans), turn, count=count, seconds=seconds)


def beside_peers(done: Turns) -> Sequence[Row]:
    return [
        row(
            f"{peer.title}, {era}",
            [(turns[f"{peer.name} {era}"].cpu, turns[f"ours {era}"].cpu) for turns in done],
            micro,
            "less",
            peer.target,
        )
        for peer in PEERS
        for era in get_args(Era)
    ]


OWN = {
    "ours 2025-11-25": "MCP 2025-11-25, `/mcp/s/{sid}`",
    "ours 2026-07-28": "MCP 2026-07-28, `/mcp/s/{sid}`",
    "agent 2025-11-25": "MCP 2025-11-25, `/agent/{token}/mcp`",
    "agent 2026-07-28": "MCP 2026-07-28, `/agent/{token}/mcp`",
    "agent plain": "plain JSON, `/agent/{token}/call`",
}


def beside_ors(done: Turns) -> Sequence[Row]:
    return [
        row(title, [(turns[name].cpu, turns["ors"].cpu) for turns in done], micro, "of it", "at most 1.5x")
        for name, title in OWN.items()
    ]


def conditions(command: str, done: Turns) -> str:
    """How the figures were measured, for readers who want to repeat or doubt them."""
    busy = max(load.generator_busy for turns in done for load in turns.values())
    contenders = (*map(contender, PEERS), serving(ENVIRONMENT))
    builds = ["; ".join(f"{name} {number}" for name, number in versions(one).items()) for one in contenders]
    return (
        f"Printed by `{command}` with Python {platform.python_version()} on {os.cpu_count()} cores of {processor()}. "
        f"CPU per `tools/call`: user and system time of the server's processes, {CONNECTIONS} connections, medians of "
        f"{len(done)} rounds; a ratio is the median of the ratios within a round. Both peers answer with JSON. The "
        f"load generator used at most {busy:.0%} of a core. Versions: {', '.join(builds[:-1])} against {builds[-1]}."
    )


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mcp", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="how often each server has its turn (5)")
    parser.add_argument("--seconds", type=float, default=1.5, metavar="S", help="length of each turn (1.5)")
    parser.add_argument("--write-page", action="store_true", help="replace the tables in docs/mcp.md by these")
    return parser


def main() -> None:
    args = arguments().parse_args()
    check_platform()
    if args.write_page:
        MCP_PAGE.around()  # fail now, not after some minutes
    done = measure(args.rounds, args.seconds)
    text = "\n\n".join(
        [
            table(("peer", "toolyard"), beside_peers(done)),
            table(("here", "ORS call"), beside_ors(done)),
            conditions(command_of(arguments(), args, usual="make bench-mcp"), done),
        ]
    )
    print(text)
    if args.write_page:
        MCP_PAGE.write(text)


if __name__ == "__main__":
    main()
