"""One run with everything that docs/train.md shows: curves, the time that tools take, executions by number of cores.

    python examples/training/whole_run.py --size base --seconds 480 --out gpu_run.json

It ends in time, with less of each part if need be. The JSON file is written after each part. `docs/generate.py` makes
the table of the page from it, once it is docs/figures/gpu_run.json.
"""

import argparse
import json
import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from curves import FROZEN, LEARNS, rises
from executions import cases, row
from machine import machine
from python_grpo import Player, Scale, chosen, size_arguments, use_device
from serving import served
from transformer import Policy
from verl_wire import VerlWire

WAITING_SHARE, EXECUTIONS_SHARE = 0.15, 0.25
"""Of the time. The seeds have the rest."""
CONTROL_SHARE = 0.3
"""Of a seed's time, at most."""
START_SECONDS = 8
"""For a server to start and end, roughly."""


@dataclass
class WholeRun:
    args: argparse.Namespace
    scale: Scale
    began: float = field(default_factory=time.perf_counter)
    told: dict[str, Any] = field(default_factory=dict)
    trained: Policy | None = None
    """Which has learned to write programs: every trajectory of it runs one."""

    @property
    def left(self) -> float:
        return float(self.args.seconds - (time.perf_counter() - self.began))

    def carry_out(self) -> None:
        self.tell(
            title=f"Running Python to answer, {self.args.size}",
            machine=machine(self.args.device),
            size=self.args.size,
            scale=asdict(self.scale),
            gateways=self.args.gateways,
            seconds=None,
        )
        self.train()
        self.compare_waiting()
        self.count_executions()
        self.tell(seconds=round(time.perf_counter() - self.began, 1))

    def tell(self, **more: Any) -> None:
        self.told |= more
        out: Path = self.args.out
        part = out.with_suffix(".part")
        part.write_text(json.dumps(self.told, indent=1) + "\n")
        part.replace(out)

    @contextmanager
    def player(self, gateways: int) -> Iterator[Player]:
        options = ["--gateways", str(gateways), "--record", self.args.record, "--log-level", "warning"]
        log = self.args.out.with_suffix(".server.log")
        with served("remainder.py", *options, log=log) as url, closing(VerlWire(url)) as wire:
            yield Player(wire, self.args.device, self.args.run)

    def train(self) -> None:
        """Each seed with a policy that learns and a frozen one. What is left of one seed's time goes to the next."""
        kept = self.args.seconds * (WAITING_SHARE + EXECUTIONS_SHARE)
        seeds = self.args.seeds
        control = replace(self.scale, group=self.args.control_group or self.scale.group)
        tables: dict[str, dict[str, Any]] = {LEARNS: {}, FROZEN: {}}
        with self.player(self.args.gateways) as player:
            for number, seed in enumerate(seeds):
                share = (self.left - kept - START_SECONDS) / (len(seeds) - number)
                for name, scale, part in ((LEARNS, self.scale, 1 - CONTROL_SHARE), (FROZEN, control, CONTROL_SHARE)):
                    trainer = player.play(scale, seed=seed, learning=name == LEARNS, seconds=max(share * part, 1))
                    tables[name][str(seed)] = trainer.table()
                    if name == LEARNS:
                        self.trained = trainer.policy
                    self.tell(
                        rises=rises(*({key: one["rewards"] for key, one in tables[of].items()} for of in tables)),
                        tables=tables,
                    )

    def compare_waiting(self) -> None:
        """How long the trainer waits for tools: with one gateway and without overlap, with one of them, with both."""
        ways = dict.fromkeys([(1, False), (1, True), (self.args.gateways, False), (self.args.gateways, True)])
        rows: list[dict[str, Any]] = []
        share = self.args.seconds * WAITING_SHARE / len(ways)
        for gateways, overlap in ways:
            with self.player(gateways) as player:
                name = f"{self.args.run}-waiting-{gateways}-{'overlap' if overlap else 'turns'}"
                seconds = max(share - START_SECONDS, 1)
                seed = self.args.seeds[0]
                trainer = player.play(
                    self.scale,
                    seed=seed,
                    learning=True,
                    overlap=overlap,
                    seconds=seconds,
                    run=name,
                    trained=self.trained,
                )
            rows.append({"gateways": gateways, "overlap": overlap, "steps": len(trainer.steps), **trainer.totals()})
            self.tell(waiting=rows)

    def count_executions(self) -> None:
        """Executions per second of the server by itself. Rows for which no time is left are left out."""
        rows: list[dict[str, Any]] = []
        todo = cases(self.args.cores)
        for number, (cores, gateways) in enumerate(todo):
            seconds = self.left / (len(todo) - number) - START_SECONDS
            if seconds < 1:
                print(f"no time is left for {cores} cores with {gateways} gateways", flush=True)
                continue
            rows.append(row(cores, gateways, min(seconds, 5.0), self.args.out.with_suffix(".server.log")))
            self.tell(executions=rows)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    size_arguments(parser)
    most = len(os.sched_getaffinity(0))
    parser.add_argument("--cores", type=int, nargs="+", default=[n for n in (1, 2, 4, 8, 16, 32) if n <= most])
    parser.add_argument("--seconds", type=float, default=480, help="of all of it")
    parser.add_argument("--out", type=Path, default=Path("gpu_run.json"))
    return parser


def main() -> None:
    args = arguments().parse_args()
    use_device(args.device, args.threads)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    run = WholeRun(args, chosen(args))
    run.carry_out()
    print(f"{run.told['seconds']} seconds; written to {args.out}")


if __name__ == "__main__":
    main()
