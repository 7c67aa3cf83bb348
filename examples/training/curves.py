"""Rewards of a policy that learns and of one that does not, seed by seed: as JSON, as a picture, and as a verdict."""

import argparse
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

LEARNS, FROZEN = "learns", "frozen"
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
    if frozen:
        print(f"the reward {'rises' if verdict else 'does not rise'} over the frozen policy")
    else:
        print("no frozen policy was played, so there is nothing that the reward could rise over")
    draw(out.with_suffix(".png"), title, learns, frozen)
    return verdict


def both(learns: Curves, frozen: Curves) -> Sequence[tuple[str, Curves]]:
    return [(LEARNS, learns), (FROZEN, frozen)]


@dataclass(frozen=True)
class Look:
    """The colours of a picture."""

    paper: str
    ink: str
    lines: str
    curves: Mapping[str, str]


LIGHT = Look("white", "#263238", "#cfd8dc", {LEARNS: "#00796b", FROZEN: "#9e9e9e"})
DARK = Look("#1e2129", "#eceff1", "#455a64", {LEARNS: "#4db6ac", FROZEN: "#9e9e9e"})


def draw(path: Path, title: str, learns: Curves, frozen: Curves, look: Look = LIGHT) -> None:
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 -- the numbers are worth having without it
        from PIL import Image  # noqa: PLC0415 -- matplotlib brings it
    except ImportError:
        print(f"no picture: matplotlib is not installed; later: python curves.py {path.with_suffix('.json')}")
        return
    figure = Figure(figsize=(6.4, 3.6), layout="constrained", facecolor=look.paper)
    axes = figure.add_subplot(facecolor=look.paper)
    for name, curves in both(learns, frozen):
        for number, rewards in enumerate(curves.values()):
            label = f"{name} ({len(curves)} seeds)" if number == 0 else None
            axes.plot(range(1, len(rewards) + 1), rewards, color=look.curves[name], alpha=0.8, label=label)
    axes.set_title(title, color=look.ink)
    axes.set_xlabel("step", color=look.ink)
    axes.set_ylabel("mean reward of the step", color=look.ink)
    axes.set_ylim(min(0, *low(learns, frozen)), 1.02)
    axes.locator_params(axis="x", integer=True)
    axes.grid(color=look.lines, alpha=0.5)
    axes.tick_params(colors=look.ink)
    for side in axes.spines.values():
        side.set_color(look.lines)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, labelcolor=look.ink)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=100)
    Image.open(drawn).convert("RGB").quantize(64).save(path, optimize=True)
    print(f"drawn in {path}")


def low(learns: Curves, frozen: Curves) -> Sequence[float]:
    return [min(rewards) for _, curves in both(learns, frozen) for rewards in curves.values() if rewards]


def curves_in(told: Mapping[str, Any]) -> tuple[Curves, Curves]:
    """The curves of what a recipe has written, or whole_run.py."""
    if "tables" not in told:
        return told[LEARNS], told[FROZEN]
    learns, frozen = ({seed: one["rewards"] for seed, one in told["tables"][name].items()} for name in (LEARNS, FROZEN))
    return learns, frozen


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the curves that a recipe has written as JSON.")
    parser.add_argument("told", type=Path, help="OUT.json of a recipe")
    parser.add_argument("--to", type=Path, help="draw TO-light.png and TO-dark.png instead of OUT.png")
    args = parser.parse_args()
    told = json.loads(args.told.read_text())
    title, curves = told.get("title", ""), curves_in(told)
    if args.to is None:
        draw(args.told.with_suffix(".png"), title, *curves)
        return
    for name, look in (("light", LIGHT), ("dark", DARK)):
        draw(args.to.with_name(f"{args.to.name}-{name}.png"), title, *curves, look)


if __name__ == "__main__":
    main()
