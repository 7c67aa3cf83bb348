"""Toolyard against OpenEnv's own server: `python -m benchmarks.openenv`.

All servers are up at once and take turns under the same load. A step calls a tool that returns its argument. OpenEnv's
server runs on the same loop and parser, with an environment that calls its tool itself, and with one whose tools are
FastMCP's. Then each server holds many sockets, which shows the memory of a socket."""

from __future__ import annotations

import argparse
import asyncio
import os
import platform
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import uvloop

from benchmarks.openenv_peer import WAYS, openenv
from benchmarks.report import (
    OPENENV_PAGE,
    Row,
    check_platform,
    kib,
    micro,
    per_second,
    processor,
    progress,
    table,
)
from benchmarks.servers import Contender, Started, running, serving, versions
from benchmarks.sockets import Measured, Socket, SocketLoad, data_of, message, sockets
from benchmarks.turns import in_turns, row

SOCKETS = 32
STEPS = 8
"""In an episode."""
TEXT = "hello world"
RESET = message("reset")
STEP = message("step", type="call_tool", tool_name="echo", arguments={"text": TEXT})
OURS_PATH, THEIR_PATH = "/openenv/echo/ws", "/ws"
OURS = serving("benchmarks/environment.py")


class Player:
    """Plays on one server."""

    def __init__(self, name: str, server: Started) -> None:
        self._path = OURS_PATH if name == "ours" else THEIR_PATH
        self._server = server

    async def check(self) -> None:
        """Check that the server does the work to be measured."""
        async with sockets(self._server.port, self._path, 1) as (socket,):
            reset = data_of(await socket.ask(RESET))
            assert (reset["reward"], reset["done"]) == (None, False), reset
            step = data_of(await socket.ask(STEP))
            assert step["observation"]["result"]["data"] == TEXT, step
            assert (step["reward"], step["done"]) in ((0.0, False), (None, False)), (
                step
            )  # FastMCP's tools have no reward

    async def steps(self, count: int, seconds: float) -> SocketLoad:
        """Steps on so many sockets, each in the session of one reset."""
        async with sockets(self._server.port, self._path, count) as opened:
            await asyncio.gather(*(socket.ask(RESET) for socket in opened))
            measured, until = Measured(self._server.pid), time.perf_counter() + seconds
            await asyncio.gather(*(_steps(socket, measured, until) for socket in opened))
            return measured.load()

    async def episodes(self, at_once: int, seconds: float) -> SocketLoad:
        """Episodes from the connection to its close. Their steps count."""
        measured, until = Measured(self._server.pid), time.perf_counter() + seconds
        await asyncio.gather(*(self._episodes(measured, until) for _ in range(at_once)))
        return measured.load()

    async def _episodes(self, measured: Measured, until: float) -> None:
        while time.perf_counter() < until:
            socket = await Socket.opened(self._server.port, self._path)
            data_of(await socket.ask(RESET))
            for _ in range(STEPS):
                _check(await socket.ask(STEP))
            await socket.close()
            measured.steps += STEPS

    async def memory_per_socket(self, count: int) -> float:
        """Bytes of a socket with the session of one reset, after a few that load what any number needs."""
        async with sockets(self._server.port, self._path, 50) as first:
            for socket in first:
                await socket.ask(RESET)
            before = self._server.memory()
            async with sockets(self._server.port, self._path, count) as opened:
                for socket in opened:
                    data_of(await socket.ask(RESET))
                return (self._server.memory() - before) / count


async def _steps(socket: Socket, measured: Measured, until: float) -> None:
    while time.perf_counter() < until:
        _check(await socket.ask(STEP))
        measured.steps += 1


def _check(answer: bytes) -> None:
    if TEXT.encode() not in answer:
        raise SystemExit(f"a step was answered {answer.decode()[:500]!r}")


def contenders() -> Mapping[str, Contender]:
    return {**{way: openenv(way) for way in WAYS}, "ours": OURS}


def measure(count: int, seconds: float) -> Sequence[Row]:
    with ExitStack() as stack:
        servers = {name: stack.enter_context(running(contender)) for name, contender in contenders().items()}
        players = {name: Player(name, server) for name, server in servers.items()}
        for player in players.values():
            uvloop.run(player.check())

        def steps(connections: int) -> Sequence[Mapping[str, SocketLoad]]:
            progress(f"steps on {connections} sockets")

            def turn(name: str, lasting: float) -> SocketLoad:
                return uvloop.run(players[name].steps(connections, lasting))

            return in_turns(list(players), turn, count=count, seconds=seconds)

        def episode(name: str, lasting: float) -> SocketLoad:
            return uvloop.run(players[name].episodes(SOCKETS, lasting))

        alone, many = steps(1), steps(SOCKETS)
        progress("episodes")
        return rows(alone, many, in_turns(list(players), episode, count=count, seconds=seconds))


def rows(
    alone: Sequence[Mapping[str, SocketLoad]],
    many: Sequence[Mapping[str, SocketLoad]],
    episodes: Sequence[Mapping[str, SocketLoad]],
) -> Sequence[Row]:
    def cpu(rounds: Sequence[Mapping[str, SocketLoad]], way: str, steps: int = 1) -> Sequence[tuple[float, float]]:
        return [(done[way].cpu * steps, done["ours"].cpu * steps) for done in rounds]

    rates = [(done["lean"].interval, done["ours"].interval) for done in many]
    return [
        row("CPU per step, one socket; its tool called by hand", cpu(alone, "lean"), micro, "less"),
        row("CPU per step, one socket; tools of FastMCP", cpu(alone, "fastmcp"), micro, "less", "5x less"),
        row(f"CPU per step, {SOCKETS} sockets; by hand", cpu(many, "lean"), micro, "less"),
        row(f"CPU per step, {SOCKETS} sockets; FastMCP", cpu(many, "fastmcp"), micro, "less", "5x less"),
        row(f"CPU per episode of {STEPS} steps; by hand", cpu(episodes, "lean", STEPS), micro, "less"),
        row(f"CPU per episode of {STEPS} steps; FastMCP", cpu(episodes, "fastmcp", STEPS), micro, "less", "5x less"),
        row(f"steps per second, {SOCKETS} sockets; by hand", rates, per_second, "more"),
    ]


def memory(count: int) -> Sequence[Row]:
    """Each on a fresh server, one after the other, so that the memory of one does not affect the next."""
    found: dict[str, float] = {}
    for name, contender in contenders().items():
        progress(f"memory of {count} sockets, {name}")
        with running(contender) as server:
            found[name] = uvloop.run(Player(name, server).memory_per_socket(count))
    what = f"memory per socket, {count} sockets with a session each"
    return [
        row(f"{what}; by hand", [(found["lean"], found["ours"])], kib, "less"),
        row(f"{what}; FastMCP", [(found["fastmcp"], found["ours"])], kib, "less"),
    ]


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.openenv", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, metavar="N", help="how often each server has its turn (5)")
    parser.add_argument("--seconds", type=float, default=1.5, metavar="S", help="length of each turn (1.5)")
    parser.add_argument("--sockets", type=int, default=1000, metavar="N", help="opened to measure memory (1000)")
    parser.add_argument("--write-page", action="store_true", help="replace the table in docs/openenv.md by this one")
    return parser


def main() -> None:
    args = arguments().parse_args()
    check_platform()
    if args.write_page:
        OPENENV_PAGE.around()  # fail now, not after some minutes
    made = [*measure(args.rounds, args.seconds), *memory(args.sockets)]
    theirs = versions(openenv("lean"))
    builds = "; ".join(f"{name} {theirs[name]}" for name in ("openenv", "uvicorn", "uvloop"))
    text = (
        f"{table(('openenv', 'toolyard'), made)}\n\n"
        f"Printed by `make bench-openenv` with Python {platform.python_version()} on {os.cpu_count()} cores of "
        f"{processor()}. Medians of {args.rounds} rounds; a ratio is the median of the ratios within a round. CPU is "
        f"user and system time of the server's processes. Messages are not compressed. OpenEnv's server runs on uvloop "
        f"and httptools, as ours does. Versions: {builds}."
    )
    print(text)
    if args.write_page:
        OPENENV_PAGE.write(text)


if __name__ == "__main__":
    main()
