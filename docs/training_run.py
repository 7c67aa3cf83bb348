"""Fill docs/train.md with what one run of examples/training/whole_run.py measured on a GPU, once its file is here."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE / "train.md"
TOLD = HERE / "figures" / "gpu_run.json"
BEGIN, END = "<!-- GPU run: written by docs/generate.py -->\n", "<!-- end of the GPU run -->\n"

NONE = """
No run on a GPU was made for this page yet. When one is made, its curves and tables stand here.
"""

Json = Mapping[str, Any]


def page() -> str:
    """The page as it should be."""
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    told = json.loads(TOLD.read_text(encoding="utf-8")) if TOLD.exists() else None
    return f"{before}{BEGIN}{section(told)}\n{END}{after}"


def section(told: Json | None) -> str:
    if told is None:
        return NONE
    parts = [machine(told), picture(told), told.get("remark", ""), seeds(told), waiting(told), executions(told)]
    return "\n" + "\n\n".join(part for part in parts if part) + "\n"


def machine(told: Json) -> str:
    on = told["machine"]
    commit = f", commit {on['commit']}" if on["commit"] else ""
    versions = f"Python {on['python']}, PyTorch {on['torch']}, Toolyard {on['toolyard']}{commit}"
    scale, (first, *_) = told["scale"], told["tables"]["learns"].values()
    return (
        f"One run of {told['seconds']:.0f} seconds on one machine: {on['in words']};\n{versions}.\n"
        f"The policy has {first['parameters'] / 1e6:.0f} million parameters. Each step plays "
        f"{scale['tasks'] * scale['group']:,} new trajectories, {scale['group']} of each task,\n"
        f"through {told['gateways']} gateways on the same machine."
    )


def picture(told: Json) -> str:
    verdict = "rises above the frozen policy with every seed" if told["rises"] else "does not rise with every seed"
    return (
        '<picture>\n<source media="(prefers-color-scheme: dark)" srcset="pictures/train-gpu-dark.png">\n'
        f'<img src="pictures/train-gpu-light.png" alt="On a GPU the mean reward {verdict}">\n</picture>'
    )


def seeds(told: Json) -> str:
    frozen = told["tables"]["frozen"]
    rows = (
        (
            seed,
            f"{fmean(one['rewards'][:3]):.2f}",
            f"{end_of(one['rewards']):.2f}",
            f"{fmean(frozen[seed]['rewards']):.2f}" if seed in frozen else "",
            f"{len(one['rewards'])}",
            f"{one['trajectories']:,}",
            f"{one['seconds']:.0f} s",
            f"{one['tokens written per second']:,}",
            share(one),
        )
        for seed, one in told["tables"]["learns"].items()
    )
    head = (
        *("seed", "reward at first", "in the end", "frozen", "steps", "trajectories", "time"),
        *("tokens written per second", "waited for tools"),
    )
    return f"`in the end` is the mean of the last quarter of the steps:\n\n{table(head, rows)}"


def waiting(told: Json) -> str:
    if not (measured := told.get("waiting")):
        return ""
    rows = (
        (
            f"{one['gateways']}",
            "learns from the batch before" if one["overlap"] else "waits",
            f"{one['seconds'] / one['steps']:.2f} s",
            f"{one['executions per second']:,.0f}",
            share(one),
        )
        for one in measured
    )
    head = ("gateways", "while programs run, the trainer", "a step", "programs per second", "waited for tools")
    return "How long the trainer waits, with a policy that has learned to run a program each time:\n\n" + table(
        head, rows
    )


def executions(told: Json) -> str:
    """For each number of cores, the number of gateways that did best."""
    if not (measured := told.get("executions")):
        return ""
    best: dict[int, Json] = {}
    for one in sorted(measured, key=lambda one: float(one["executions per second"])):
        best[one["cores"]] = one
    rows = (
        (f"{cores}", f"{one['gateways']}", f"{one['executions per second']:,.0f}", f"{one['lost']}")
        for cores, one in sorted(best.items())
    )
    head = ("cores of the server", "gateways", "programs per second", "lost")
    where = f", measured {told['executions were measured']}" if "executions were measured" in told else ""
    return f"Programs that the server runs by itself, each in a sandbox of its own{where}:\n\n{table(head, rows)}"


def share(one: Json) -> str:
    return f"{one['part of time waiting for tools']:.1%}"


def end_of(rewards: Sequence[float]) -> float:
    return fmean(rewards[-max(len(rewards) // 4, 1) :])


def table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, ["---:"] * len(head), *rows))


def write() -> None:
    PAGE.write_text(page(), encoding="utf-8")
