"""A policy learns by policy gradient from a live server, over verl-tool's wire and over ORS, with the same curve.

    python examples/training/train.py --wire both --png curve.png

It starts a server by itself, or takes the `--url` of one that serves cups.py. The policy is as small as can be: for
each thing that it has last read, a weight for each thing that it can write. Everything random in it comes from one
seed, so whatever differs between two runs was done by the wire.
"""

import argparse
import math
import random
import re
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
from PIL import Image, ImageDraw

from toolyard import Client, ImageBlock, TextBlock
from toolyard.loading import load_targets
from toolyard.testing import running

HERE = Path(__file__).parent
WRITTEN = ["<peek></peek>", *(f"<lift>{cup}</lift>" for cup in (1, 2, 3, 4))]
"""All that the policy can say."""
TURNS = 4
GROUP = 32
"""Episodes between two steps of learning."""
RATE = 2.0
TASKS = 1000
"""So many has cups.py."""

Episode = list[tuple[str, int, float]]
"""Of each turn: what was read, which of `WRITTEN` was answered, and the reward for it."""
Rollouts = Callable[["Policy", Sequence[int]], list[Episode]]


class Policy:
    """Softmax over weights in a table, and REINFORCE with the group's mean as baseline."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.weights: dict[str, list[float]] = defaultdict(lambda: [0.0] * len(WRITTEN))

    def probabilities(self, read: str) -> list[float]:
        powers = [math.exp(weight) for weight in self.weights[read]]
        return [power / sum(powers) for power in powers]

    def choose(self, read: str) -> int:
        return self.random.choices(range(len(WRITTEN)), self.probabilities(read))[0]

    def learn(self, episodes: Sequence[Episode]) -> float:
        """One step uphill; returns the mean reward of an episode."""
        returns = [sum(reward for _, _, reward in episode) for episode in episodes]
        mean = sum(returns) / len(returns)
        for episode, earned in zip(episodes, returns, strict=True):
            for read, chosen, _ in episode:
                probabilities = self.probabilities(read)
                for one, probability in enumerate(probabilities):
                    gradient = (one == chosen) - probability
                    self.weights[read][one] += RATE * (earned - mean) * gradient / math.sqrt(len(episodes))
        return mean


def over_verl(url: str) -> Rollouts:
    """All episodes at once: one request for each turn of all that still go on."""
    client = httpx2.Client(base_url=url, timeout=60)

    def observe(ids: Sequence[str], actions: Sequence[str], **more: Any) -> list[tuple[Any, bool]]:
        body = {"trajectory_ids": list(ids), "actions": list(actions), **more}
        answer = client.post("/get_observation", json=body).raise_for_status().json()
        return list(zip(answer["observations"], answer["dones"], strict=True))

    def play(policy: Policy, tasks: Sequence[int]) -> list[Episode]:
        ids = [uuid.uuid4().hex for _ in tasks]
        extra = [{"environment": "cups", "split": "train", "index": task} for task in tasks]
        episodes: list[Episode] = [[] for _ in tasks]
        reads = [told for told, _ in observe(ids, [""] * len(ids), extra_fields=extra)]  # no action yet: the prompt
        going = list(range(len(tasks)))
        for _ in range(TURNS):
            if not going:
                break
            chosen = [policy.choose(reads[i]) for i in going]
            told = observe([ids[i] for i in going], [WRITTEN[one] for one in chosen])
            for i, one, (observation, _) in zip(going, chosen, told, strict=True):
                episodes[i].append((reads[i], one, observation["reward"]))
                reads[i] = plain(observation["obs"])
            going = [i for i, (_, done) in zip(going, told, strict=True) if not done]
        observe(ids, [""] * len(ids), finish=[True] * len(ids))
        return episodes

    return play


def plain(observation: str) -> str:
    """What a tool said, without the tags around it."""
    return re.sub(r"</?result>", "", observation).strip()


def text_of(blocks: Sequence[TextBlock | ImageBlock]) -> str:
    return "".join(block.text for block in blocks if isinstance(block, TextBlock))


def over_ors(url: str) -> Rollouts:
    """The same, one session for each episode."""
    environment = Client(url).environments.get("cups")

    def play(policy: Policy, tasks: Sequence[int]) -> list[Episode]:
        sessions = [environment.session(split="train", index=task) for task in tasks]
        episodes: list[Episode] = [[] for _ in tasks]
        reads = [text_of(session.__enter__().get_prompt()) for session in sessions]
        going = list(range(len(tasks)))
        for _ in range(TURNS):
            still = []
            for i, one in [(i, policy.choose(reads[i])) for i in going]:
                name, _, argument = WRITTEN[one].removeprefix("<").partition(">")
                given = {"cup": int(argument[0])} if name == "lift" else {}
                output = sessions[i].call_tool(name, given)
                episodes[i].append((reads[i], one, output.reward or 0.0))
                reads[i] = text_of(output.blocks)
                still += [] if output.finished else [i]
            going = still
        for session in sessions:
            session.__exit__(None, None, None)
        return episodes

    return play


def train(rollouts: Rollouts, *, seed: int, steps: int) -> list[float]:
    """The mean reward of each group of episodes, one after the other."""
    policy = Policy(seed)
    groups = [[(step * GROUP + i) % TASKS for i in range(GROUP)] for step in range(steps)]
    return [policy.learn(rollouts(policy, group)) for group in groups]


def draw(curves: dict[str, list[float]], path: Path) -> None:
    """Reward over steps, one line a wire; where they are the same, the dashes of both are seen."""
    width, height, margin = 640, 360, 40
    picture = Image.new("RGB", (width, height), "white")
    pen = ImageDraw.Draw(picture)
    for tenth in range(0, 11, 2):
        y = height - margin - tenth / 10 * (height - 2 * margin)
        pen.line([(margin, y), (width - margin, y)], fill="#dddddd")
        pen.text((8, y - 6), f"{tenth / 10:.1f}", fill="black")
    for number, (name, rewards) in enumerate(curves.items()):
        colour = ("#1f77b4", "#ff7f0e")[number % 2]
        across = (width - 2 * margin) / max(len(rewards) - 1, 1)
        points = [
            (margin + i * across, height - margin - min(max(reward, 0), 1) * (height - 2 * margin))
            for i, reward in enumerate(rewards)
        ]
        for i in range(number, len(points) - 1, len(curves)):
            pen.line(points[i : i + 2], fill=colour, width=3)
        pen.text((margin + 10, margin + 14 * number), f"{name}: mean reward of {GROUP} episodes", fill=colour)
    pen.text((width // 2 - 40, height - 20), f"{len(next(iter(curves.values())))} steps", fill="black")
    picture.save(path)


@contextmanager
def server(url: str) -> Iterator[str]:
    if url:
        yield url
        return
    with running(load_targets([str(HERE / "cups.py")]).environments) as started:
        yield started.url


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--wire", choices=["verl", "ors", "both"], default="both")
    parser.add_argument("--url", default="", help="of a server that serves cups.py; without it, one is started")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--png", type=Path, default=Path("curve.png"))
    args = parser.parse_args()
    wires = {"verl": over_verl, "ors": over_ors}
    curves = {}
    with server(args.url) as url:
        for name in [args.wire] if args.wire != "both" else list(wires):
            curves[name] = train(wires[name](url), seed=args.seed, steps=args.steps)
            shown = " ".join(f"{reward:.2f}" for reward in curves[name][:: max(args.steps // 10, 1)])
            print(f"{name}: {shown} … {curves[name][-1]:.2f}")
    if len(curves) == 2:
        print("the curves are the same" if curves["verl"] == curves["ors"] else "the curves differ")
    draw(curves, args.png)
    print(f"drawn in {args.png}")


if __name__ == "__main__":
    main()
