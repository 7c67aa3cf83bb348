"""What our clients cost the process that uses them: `python -m benchmarks.client`.

Each session opens, makes one call, and closes; the server is another process and does not count. Each client runs in
its own process and virtual environment. They take turns; a ratio is the median over rounds of the ratio within one
round. The bare clients, `aiohttp` and `http.client`, send the same requests and promise nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.report import CLIENT_PAGE, aligned, check_platform, milli, processor, progress
from benchmarks.servers import Started, running, serving, venvs

LOAD = Path(__file__).with_name("client_load.py")
SCRIPTS = Path(__file__).parents[1] / "tests" / "peers" / "scripts"
TARGET = 3.0
"""The most that a client may take, as a multiple of the bare client."""


@dataclass(frozen=True)
class Work:
    what: str
    at_once: int
    """0 for the plain client, whose sessions come one after the other."""
    waves: int


WORKS = (
    Work("one after the other, `Client`", 0, 400),
    Work("50 at once, `AsyncClient`", 50, 16),
    Work("1,000 at once", 1000, 1),
    Work("3,000 at once", 3000, 1),
)


@dataclass(frozen=True)
class Contender:
    name: str
    """Its name in `client_load.py`."""
    title: str
    python: Path


@dataclass(frozen=True)
class Cost:
    cpu: float
    """For one session."""
    seconds: float
    """For all sessions."""


def contenders() -> Sequence[Contender]:
    here = Path(sys.executable)
    return [
        Contender("bare", "bare", here),
        Contender("toolyard", "Toolyard", here),
        Contender("ors", "ors-sdk", venvs.interpreter(venvs.ORS)),
        Contender("openreward", "openreward", venvs.interpreter(venvs.OPENREWARD)),
    ]


def turn(contender: Contender, work: Work, server: Started) -> Cost:
    url = f"http://127.0.0.1:{server.port}"
    places = {"PYTHONPATH": str(SCRIPTS), "OPENREWARD_SESSION_URL": url, "OPENREWARD_API_URL": url}
    command = [str(contender.python), "-P", str(LOAD), contender.name, url, str(work.at_once), str(work.waves)]
    done = subprocess.run(command, env=venvs.environ(**places), capture_output=True, check=False)
    if done.returncode:
        raise SystemExit(f"{contender.title} did not get through {work.what}:\n{done.stderr.decode()[-2000:]}")
    return Cost(**json.loads(done.stdout.splitlines()[-1]))


def measure(work: Work, all_of_them: Sequence[Contender], rounds: int) -> Sequence[Mapping[str, Cost]]:
    """Each work has a fresh server, so that no client pays for what another one left there."""
    done = []
    for number in range(rounds):
        progress(f"{work.what}, round {number + 1} of {rounds}")
        costs = {}
        for contender in all_of_them if number % 2 == 0 else all_of_them[::-1]:
            with running(serving("benchmarks/environment.py")) as server:
                costs[contender.name] = turn(contender, work, server)
        done.append(costs)
    return done


def row(work: Work, all_of_them: Sequence[Contender], rounds: Sequence[Mapping[str, Cost]]) -> Sequence[str]:
    costs = [milli(median(costs[one.name].cpu for costs in rounds)) for one in all_of_them]
    own = median(costs["toolyard"].cpu / costs["bare"].cpu for costs in rounds)
    others = [median(costs[one.name].cpu / costs["toolyard"].cpu for costs in rounds) for one in all_of_them[2:]]
    return [work.what, *costs, f"{own:.1f}x", *(f"{other:.0f}x" for other in others)]


def text(rows: Sequence[Sequence[str]], all_of_them: Sequence[Contender], rounds: int) -> str:
    titles = [one.title for one in all_of_them]
    head = ["sessions", *titles, "Toolyard / bare", *(f"{title} / Toolyard" for title in titles[2:])]
    conditions = (
        f"Printed by `make bench-client` with Python {platform.python_version()} on {os.cpu_count()} cores of "
        f"{processor()}. CPU of the client's process for a session that is opened, makes one call and is closed; all "
        f"that are at once are open before any of them calls. Medians of {rounds} rounds; a ratio is the median of the "
        f"ratios within a round. Bare is `http.client` for plain sessions and aiohttp for awaited ones, with the same "
        f"requests and without promises. The target is {TARGET:g} times bare at most."
    )
    return f"{aligned([head, *rows])}\n\n{conditions}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.client", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="how often each client has its turn (3)")
    parser.add_argument("--write", action="store_true", help="replace the table in docs/quickstart.md by this one")
    args = parser.parse_args()
    check_platform()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    all_of_them = contenders()
    rows = [row(work, all_of_them, measure(work, all_of_them, args.rounds)) for work in WORKS]
    made = text(rows, all_of_them, args.rounds)
    print(made)
    if args.write:
        CLIENT_PAGE.write(made)


if __name__ == "__main__":
    main()
