"""Rewards of a policy that learns and of one that does not, seed by seed: as JSON, as a picture, and as a verdict."""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

LEARNS, FROZEN = "learns", "frozen"
COLOURS = {LEARNS: "#00796b", FROZEN: "#9e9e9e"}
MARGIN = 0.15
"""How much more a policy has to earn in the end than the best of the frozen ones, to count as better."""

Curves = Mapping[str, Sequence[float]]
"""The mean reward of each step, by seed."""


@dataclass
class Curve:
    rewards: list[float] = field(default_factory=list)

    def add(self, reward: float) -> None:
        self.rewards.append(round(reward, 4))

    @property
    def last(self) -> str:
        return f"step {len(self.rewards)} reward {self.rewards[-1]:.3f}"


def end_of(rewards: Sequence[float]) -> float:
    """The mean of the last quarter."""
    return fmean(rewards[-max(len(rewards) // 4, 1) :])


def rises(learns: Curves, frozen: Curves) -> bool:
    """Whether each seed ends above its own start and above every frozen policy."""
    best = max((end_of(rewards) for rewards in frozen.values()), default=math.inf)
    return all(
        end_of(rewards) > best + MARGIN and end_of(rewards) > fmean(rewards[: max(len(rewards) // 10, 1)])
        for rewards in learns.values()
    )


def report(out: Path, title: str, learns: Curves, frozen: Curves, more: Mapping[str, Any]) -> bool:
    """Write `OUT.json` and `OUT.png`, print the verdict, and give it back."""
    verdict = rises(learns, frozen)
    ends = {
        name: {seed: round(end_of(one), 4) for seed, one in curves.items()} for name, curves in both(learns, frozen)
    }
    told = {"title": title, "rises": verdict, "ends": ends, LEARNS: learns, FROZEN: frozen, **more}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.with_suffix(".json").write_text(json.dumps(told, indent=1))
    for name, by_seed in ends.items():
        print(
            f"{name}: " + (", ".join(f"seed {seed} ends at {end:.2f}" for seed, end in by_seed.items()) or "not played")
        )
    print(f"the reward {'rises' if verdict else 'does not rise'} over the frozen policy")
    draw(out.with_suffix(".png"), title, learns, frozen)
    return verdict


def both(learns: Curves, frozen: Curves) -> Sequence[tuple[str, Curves]]:
    return [(LEARNS, learns), (FROZEN, frozen)]


def draw(path: Path, title: str, learns: Curves, frozen: Curves) -> None:
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 -- the numbers are worth having without it
    except ImportError:
        print(f"no picture: matplotlib is not installed; later: python curves.py {path.with_suffix('.json')}")
        return
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot()
    for name, curves in both(learns, frozen):
        for number, rewards in enumerate(curves.values()):
            label = f"{name} ({len(curves)} seeds)" if number == 0 else None
            axes.plot(range(1, len(rewards) + 1), rewards, color=COLOURS[name], alpha=0.8, label=label)
    axes.set(title=title, xlabel="step", ylabel="mean reward of the step", ylim=(min(0, *low(learns, frozen)), 1.02))
    axes.grid(alpha=0.3)
    axes.legend(loc="center right", frameon=False)
    figure.savefig(path, dpi=120)
    print(f"drawn in {path}")


def low(learns: Curves, frozen: Curves) -> Sequence[float]:
    return [min(rewards) for _, curves in both(learns, frozen) for rewards in curves.values() if rewards]


def redraw(path: Path) -> None:
    told = json.loads(path.read_text())
    draw(path.with_suffix(".png"), told["title"], told[LEARNS], told[FROZEN])


if __name__ == "__main__":
    for name in sys.argv[1:]:
        redraw(Path(name))
