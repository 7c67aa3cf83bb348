"""How many programs a server runs each second, by the number of processors and of gateways it has.

    python examples/training/executions.py --cores 1 2 4 8 16 --seconds 5 --out executions

It sends what a trainer sends over verl-tool's wire: batches of new trajectories, each of which runs one short program.
The server and its sandboxes stay on so many processors; this program uses the others, if there are any.
"""

import argparse
import json
import os
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from contextlib import closing
from pathlib import Path
from typing import Any

from serving import served
from verl_wire import VerlWire, new_ids

PROGRAM = "<python>a, b, c, d = map(int, input().split())\nprint((a * b + c) % 5)</python>"
SIZE = 64
"""Programs in a batch: few, or a slow server would hardly end one while it is measured."""
IN_FLIGHT = 16
TASK = {"environment": "remainder", "split": "long"}


def cases(cores: Sequence[int]) -> list[tuple[int, int]]:
    """One gateway, one for every four processors, and one for every two."""
    return sorted({(count, max(1, gateways)) for count in cores for gateways in (1, count // 4, count // 2)})


def measure(url: str, seconds: float) -> dict[str, float]:
    """Executions per second, once the first batches are back."""
    with closing(VerlWire(url)) as wire:
        send(wire).result()
        under_way = {send(wire) for _ in range(IN_FLIGHT)}
        began, done, lost = time.perf_counter(), 0, 0
        while time.perf_counter() - began < seconds:
            finished, under_way = wait(under_way, return_when=FIRST_COMPLETED)
            for batch in finished:
                lost += sum(one.lost for one in batch.result())
                done += SIZE
            under_way |= {send(wire) for _ in finished}
        took = time.perf_counter() - began
        wait(under_way)
    return {"executions per second": round((done - lost) / took, 1), "lost": lost}


def send(wire: VerlWire) -> Any:
    fields = [{**TASK, "index": index, "is_last_step": True} for index in range(SIZE)]
    return wire.act(new_ids(SIZE), [PROGRAM] * SIZE, fields)


def processors(count: int) -> tuple[Sequence[int], Sequence[int]]:
    """The server's and ours. With too few for both, we share."""
    everything = sorted(os.sched_getaffinity(0))
    return everything[:count], everything[count:] or everything


def arguments() -> argparse.ArgumentParser:
    most = len(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cores", type=int, nargs="+", default=[n for n in (1, 2, 4, 8, 16, 32) if n <= most])
    parser.add_argument("--seconds", type=float, default=5.0, help="of each row")
    parser.add_argument("--out", type=Path, default=Path("executions"), help="of OUT.json")
    return parser


def row(cores: int, gateways: int, seconds: float, log: Path) -> dict[str, float]:
    """Measure one server, and print what came out."""
    everything = os.sched_getaffinity(0)
    theirs, ours = processors(cores)
    options = ["--gateways", str(gateways), "--log-level", "warning"]
    with served("remainder.py", *options, log=log, cores=theirs) as url:
        os.sched_setaffinity(0, ours)
        try:
            measured = {"cores": cores, "gateways": gateways, **measure(url, seconds)}
        finally:
            os.sched_setaffinity(0, everything)
    print(measured, flush=True)
    return measured


def main() -> None:
    args = arguments().parse_args()
    rows = []
    for cores, gateways in cases(args.cores):
        rows.append(row(cores, gateways, args.seconds, args.out.with_suffix(".server.log")))
        args.out.with_suffix(".json").write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
