"""Thousands of trajectories that each check their own state: `python -m benchmarks.verl_soak`.

Each takes five turns, mixing python, bash and ipython, and then finishes. Every observation is compared with the
expected one. Meanwhile sandboxes are killed at random: that may cost their own trajectories, whose answers must say so,
and no others. At the end nothing may be left: no session, no process, no memory to speak of.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import sysconfig
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import httpx2

from benchmarks.servers import Contender, Started, running

TOOLS = "python_code,bash_terminal,ipython_code"
TURNS = 5


@dataclass
class Soak:
    """The result of a soak."""

    seconds: float = 0.0
    turns: Counter[str] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    """Unexpected observations."""
    lost: int = 0
    """Trajectories whose answer says that their state is lost."""
    killed: int = 0
    left: dict[str, object] = field(default_factory=dict)
    """What the server still holds that it did not hold before."""
    grown: int = 0
    """Bytes of memory."""

    def percentile(self, part: float) -> float:
        ordered = sorted(self.latencies)
        return ordered[min(int(part * len(ordered)), len(ordered) - 1)]


class Lost(Exception):
    """The answer says that the trajectory's sandbox is gone."""


class Trajectory:
    """One agent, with what it must find again."""

    def __init__(self, client: httpx2.AsyncClient, name: str, soak: Soak) -> None:
        self._client = client
        self._name = name
        self._soak = soak
        self._random = Random(name)
        self._variable = 0
        self._exported = 0

    async def live(self) -> None:
        try:
            for _ in range(TURNS):
                await self._turn(self._random.choice(["python", "bash", "ipython"]))
        except Lost:
            self._soak.lost += 1
        await self._say("", finish=True)

    async def _turn(self, kind: str) -> None:
        number = self._random.randrange(10**9)
        if kind == "python":
            text, expected = f"<python>print({number} * 3, 'n' in globals())</python>", f"{number * 3} False"
        elif kind == "bash":
            text = f"<bash>export X=$(( X + {number} )); echo total $X</bash>"
            self._exported += number
            expected = f"total {self._exported}"
        else:
            code = f"n = globals().get('n', 0) + {number}\nprint('now', n)"
            call = {"name": "ipython_code", "arguments": {"code": code}}
            text = f"<tool_call>{json.dumps(call)}</tool_call>"
            self._variable += number
            expected = f"now {self._variable}"
        observation = await self._say(text)
        self._soak.turns[kind] += 1
        if expected not in observation:
            self._soak.wrong.append(f"{self._name}: {kind}: {expected!r} is not in {observation!r}")

    async def _say(self, text: str, *, finish: bool = False) -> str:
        body = {"trajectory_ids": [self._name], "actions": [text], "finish": [finish], "extra_fields": [{}]}
        began = time.perf_counter()
        response = await self._client.post("/get_observation", content=json.dumps(body))
        self._soak.latencies.append(time.perf_counter() - began)
        if response.status_code != 200:
            self._soak.wrong.append(f"{self._name}: {response.status_code} {response.text}")
            raise Lost
        answer = response.json()
        observation: Any = answer["observations"][0]
        if isinstance(observation, dict):
            if observation.get("reason") == "lost":
                raise Lost
            observation = observation["obs"]
        return str(observation)


async def soak(server: Started, trajectories: int, in_flight: int, kills: int) -> Soak:
    """Run them, and check what is left."""
    told = Soak()
    before = _held(server)
    memory = server.memory()
    limits = httpx2.Limits(max_connections=in_flight, max_keepalive_connections=in_flight)
    url = f"http://127.0.0.1:{server.port}"
    async with httpx2.AsyncClient(base_url=url, limits=limits, timeout=300, trust_env=False) as client:
        waiting = iter([Trajectory(client, f"{os.getpid()}-{number}", told) for number in range(trajectories)])

        async def one_after_the_other() -> None:
            for trajectory in waiting:
                await trajectory.live()

        began = time.perf_counter()
        killing = asyncio.ensure_future(_kill(server, kills, told))
        await asyncio.gather(*(one_after_the_other() for _ in range(in_flight)))
        told.seconds = time.perf_counter() - began
        killing.cancel()
        after = await _settled(server, before)
    told.left = {what: count for what, count in after.items() if count != before[what]}
    told.grown = server.memory() - memory
    return told


async def _kill(server: Started, kills: int, told: Soak) -> None:
    """Now and then, kill process 1 of some sandbox."""
    random = Random(1)
    while told.killed < kills:
        await asyncio.sleep(random.uniform(0.1, 0.6))
        if sandboxes := list(_sandboxes(server.pid)):
            try:
                os.kill(random.choice(sandboxes), signal.SIGKILL)
            except ProcessLookupError:
                continue  # it has ended by itself
            told.killed += 1


async def _settled(server: Started, before: dict[str, int]) -> dict[str, int]:
    """What it holds once that is back to the old state, or after a while."""
    for _ in range(200):
        if _held(server) == before:
            break
        await asyncio.sleep(0.1)
    return _held(server)


def _held(server: Started) -> dict[str, int]:
    health = json.loads(server.ask("GET", "/verl/health"))
    ready = len(list(_sandboxes(server.pid)))
    return {"calls": health["active_tasks"], "sessions": health["trajectories"], "sandboxes": ready}


def _sandboxes(pid: int) -> Iterator[int]:
    """Their first processes: the server's child is the broker; its children are the templates, theirs the sandboxes."""
    for broker in _children(pid):
        for template in _children(broker):
            yield from _children(template)


def _children(pid: int) -> Sequence[int]:
    found: list[int] = []
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += map(int, listed.read_text().split())
        except OSError:
            continue  # the thread has ended
    return found


def contender() -> Contender:
    toolyard = str(Path(sysconfig.get_path("scripts")) / "toolyard")
    command = [toolyard, "serve", "--tools", TOOLS, "--port"]
    return Contender("toolyard", "toolyard", Path(sys.executable), command, Path.cwd())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trajectories", type=int, default=2000)
    parser.add_argument("--in-flight", type=int, default=256)
    parser.add_argument("--kills", type=int, default=20)
    args = parser.parse_args()
    with running(contender()) as server:
        asyncio.run(soak(server, 10, 10, 0))  # warm up
        told = asyncio.run(soak(server, args.trajectories, args.in_flight, args.kills))
    print(f"{args.trajectories} trajectories, {args.in_flight} in flight: {told.seconds:.1f} s, {dict(told.turns)}")
    print(f"a turn took {told.percentile(0.5) * 1000:.0f} ms (p50), {told.percentile(0.99) * 1000:.0f} ms (p99)")
    print(f"{told.killed} sandboxes killed, {told.lost} trajectories told that theirs was lost")
    print(f"left behind: {told.left or 'nothing'}; memory grown by {told.grown / 2**20:.1f} MiB")
    for problem in told.wrong[:20]:
        print(problem)
    sys.exit(bool(told.wrong or told.left or told.lost > told.killed))


if __name__ == "__main__":
    main()
