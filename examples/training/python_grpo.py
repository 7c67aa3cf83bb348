"""A transformer learns from nothing to run Python: thousands of trajectories through one server.

    python examples/training/python_grpo.py --size small
    python examples/training/python_grpo.py --size base --seconds 60 --out base
    python examples/training/python_grpo.py --size base --seconds 40 --rates 1e-4 2e-4 4e-4

It uses a GPU if there is one. The environment is remainder.py, the wire verl-tool's. The policy writes programs with a
few tokens (guided decoding keeps them in the form of a call), reads what `python_code` printed, and answers. Groups of
trajectories of one task are compared, as in GRPO. While programs run in their sandboxes, the trainer writes the other
half of the batch and learns from the batch before.

Each seed is played twice: by the policy that learns and, for control, by one that never does. Curves are written as
JSON and PNG, episodes into a store that `toolyard episodes` and Studio read. With `--rates` it tries rates of learning
instead, and prints a table.
"""

import argparse
import math
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from curves import FROZEN, LEARNS, Curve, end_of, report
from machine import machine
from remainder import DIVISOR, LETTERS, OPERATIONS, SIGNS, TASKS, make_task
from serving import served
from transformer import Policy, Size, group_relative
from verl_wire import Observation, VerlWire, new_ids

PAD, FAILED = "", "[failed]"
OPEN, CLOSE = f"<python>{', '.join(LETTERS)} = map(int, input().split())\nprint((", f") % {DIVISOR})</python>"
ANSWER = "<answer>"
DIGITS = [str(digit) for digit in range(DIVISOR)]
OPERATORS = [f" {sign} " for sign in SIGNS.values()]
TOKENS = [PAD, FAILED, OPEN, CLOSE, ANSWER, *DIGITS, *LETTERS, *SIGNS, *OPERATORS]
NUMBER = {token: number for number, token in enumerate(TOKENS)}
WAITING = "waiting for tools"
HALVES = 2
"""Parts of a batch. While programs of one run, the trainer writes the other."""


@dataclass(frozen=True)
class Scale:
    split: str
    size: Size
    tasks: int
    """In each step, and each of them is played by a group."""
    group: int
    steps: int
    rounds: int
    """Of learning from one batch."""
    parts: int = 4
    """Of a batch. Each round makes an update for each of them."""


SCALES = {
    "small": Scale("short", Size(layers=2, width=64, heads=4, rate=2e-3), tasks=16, group=8, steps=40, rounds=2),
    "medium": Scale("long", Size(layers=6, width=384, heads=6, rate=5e-4), tasks=64, group=16, steps=60, rounds=4),
    "base": Scale(
        "long", Size(layers=12, width=768, heads=12, rate=2e-4, warm_up=80), tasks=64, group=16, steps=80, rounds=4
    ),
    "large": Scale(
        "long", Size(layers=24, width=1024, heads=16, rate=1e-4, warm_up=80), tasks=64, group=16, steps=80, rounds=4
    ),
}
"""By `--size`: 0.1, 11, 85 and 302 million parameters."""


@dataclass(frozen=True)
class Columns:
    """What the columns of a row hold: the question, a program or an answer, what the program printed, an answer."""

    words: int
    """Of the longest question."""

    @property
    def first(self) -> range:
        return range(self.words, 2 * self.words + 2)

    @property
    def result(self) -> int:
        return self.first.stop

    @property
    def second(self) -> range:
        return range(self.result + 1, self.result + 2)

    def grammar(self) -> torch.Tensor:
        """True at [column, token before, token] for what may be written there."""
        allowed = torch.zeros(self.second.stop, len(TOKENS), len(TOKENS), dtype=torch.bool)
        for column in (*self.first, *self.second):
            for before, token in enumerate(TOKENS):
                allowed[column, before, [NUMBER[one] for one in self.after(token, column)]] = True
        return allowed

    def after(self, token: str, column: int) -> Sequence[str]:
        place = column - self.first.start
        if place == 0:
            return [OPEN, ANSWER]
        if token == ANSWER or (column == self.second.start and token != PAD):
            return DIGITS
        if column == self.first.stop - 1 and token in LETTERS:
            return [CLOSE]
        if token in LETTERS:
            return [CLOSE, *OPERATORS]
        if token == OPEN or token in OPERATORS:
            return [LETTERS[min(place // 2, len(LETTERS) - 1)]]
        return [PAD]


class Clock:
    """Where the time goes. The device finishes what it was given before a part begins or ends."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        self.settle()
        began = time.perf_counter()
        yield
        self.settle()
        self.seconds[part] += time.perf_counter() - began

    def settle(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


@dataclass
class Part:
    """Trajectories that are played together: their rows, and what the server is asked for them now."""

    rows: torch.Tensor
    said: torch.Tensor
    """Log probabilities of the rows, when they were written."""
    ids: Sequence[str]
    fields: Sequence[dict[str, Any]]
    going: Sequence[int] = ()
    """Which of them have written a program, and answer next."""
    asked: "Future[list[Observation]] | None" = None
    rewards: list[float] = field(default_factory=list)
    programs: int = 0


@dataclass(frozen=True)
class Step:
    """What came of one batch, and since the one before."""

    reward: float
    seconds: float
    waiting: float
    """Seconds of it in which the trainer had nothing to do until tools were ready."""
    trajectories: int
    executions: int
    tokens: int
    lost: int


class Trainer:
    def __init__(
        self, policy: Policy, wire: VerlWire, scale: Scale, *, run: str, learning: bool, overlap: bool
    ) -> None:
        self.policy, self.wire, self.scale = policy, wire, scale
        self.run, self.learning, self.overlap = run, learning, overlap
        self.columns = Columns(2 * OPERATIONS[scale.split] + 1)
        self.clock = Clock(policy.device)
        self.curve = Curve()
        self.steps: list[Step] = []
        self.tokens = 0

    def train(self, seconds: float = math.inf) -> None:
        """Write and send a batch, learn from the one before while its programs run, then let it answer.

        Begin no step after so many seconds, but play at least one.
        """
        self.policy.warm(self.scale.tasks * self.scale.group // self.scale.parts)
        self.began = time.perf_counter()
        with self.clock("all"):
            before: list[Part] = []
            for step in range(self.scale.steps):
                if step and time.perf_counter() - self.began > seconds:
                    break
                parts = [self.begin(step, half) for half in range(HALVES)]
                self.learn(before)
                for part in parts:
                    self.answer(part)
                before = parts
                if not self.overlap:
                    self.learn(before)
                    before = []
            self.learn(before)

    def begin(self, step: int, half: int) -> Part:
        part = self.make(step, half)
        with self.clock("writing"):
            self.policy.write(part.rows, part.said, self.columns.first)
            actions = self.texts(part.rows[:, self.columns.first.start : self.columns.first.stop])
        part.programs = sum(action.startswith(OPEN) for action in actions)
        part.asked = self.wire.act(part.ids, actions, part.fields)
        return part

    def make(self, step: int, half: int) -> Part:
        many = self.scale.tasks // HALVES
        first = (step * self.scale.tasks + half * many) % TASKS
        indices = [(first + i) % TASKS for i in range(many) for _ in range(self.scale.group)]
        rows = torch.zeros(len(indices), self.columns.second.stop, dtype=torch.long)
        for i, index in enumerate(indices):
            words = make_task(self.scale.split, index)["words"]
            rows[i, : len(words)] = torch.tensor([NUMBER[word] for word in words])
        origin = {"run": self.run, "labels": {"step": step, "policy": LEARNS if self.learning else FROZEN}}
        base = {"environment": "remainder", "split": self.scale.split, **origin}
        fields = [{**base, "index": index} for index in indices]
        on_device = rows.to(self.policy.device)
        return Part(on_device, torch.zeros_like(on_device, dtype=torch.float), new_ids(len(indices)), fields)

    def texts(self, tokens: torch.Tensor) -> list[str]:
        """As the server reads them: what is no program is an answer."""
        rows = tokens.tolist()
        self.tokens += sum(number != NUMBER[PAD] for row in rows for number in row)
        written = ["".join(TOKENS[number] for number in row) for row in rows]
        return [text if text.startswith(OPEN) else f"<answer>{text.removeprefix(ANSWER)}</answer>" for text in written]

    def answer(self, part: Part) -> None:
        """Read what programs printed, and answer."""
        told = self.wait(part)
        part.going = [i for i, one in enumerate(told) if not one.done]
        part.rewards = [rewarded(one) for one in told]
        results = torch.full((len(told),), NUMBER[PAD])
        for i in part.going:
            results[i] = NUMBER[told[i].text if told[i].text in DIGITS else FAILED]
        part.rows[:, self.columns.result] = results.to(self.policy.device)
        with self.clock("writing"):
            self.policy.write(part.rows, part.said, self.columns.second)
            actions = self.texts(part.rows[part.going][:, self.columns.second.start :])
        part.asked = self.wire.act([part.ids[i] for i in part.going], actions)

    def wait(self, part: Part) -> list[Observation]:
        assert part.asked is not None
        with self.clock(WAITING):
            return part.asked.result()

    def learn(self, parts: Sequence[Part]) -> None:
        """Collect the rewards of a batch, and climb."""
        if not parts:
            return
        for part in parts:
            told = self.wait(part)
            for i, one in zip(part.going, told, strict=True):
                part.rewards[i] += rewarded(one)
            self.wire.finish(part.ids)
        rewards = torch.tensor([reward for part in parts for reward in part.rewards])
        self.count(parts, rewards)
        if self.learning:
            with self.clock("learning"):
                advantages = group_relative(rewards, self.scale.group).to(self.policy.device)
                rows, said = torch.cat([part.rows for part in parts]), torch.cat([part.said for part in parts])
                self.policy.learn(rows, said, advantages, rounds=self.scale.rounds, parts=self.scale.parts)

    def count(self, parts: Sequence[Part], rewards: torch.Tensor) -> None:
        self.curve.add(float(rewards.nanmean()))
        step = Step(
            reward=self.curve.rewards[-1],
            seconds=round(time.perf_counter() - self.began - sum(step.seconds for step in self.steps), 4),
            waiting=round(self.clock.seconds[WAITING] - sum(step.waiting for step in self.steps), 4),
            trajectories=len(rewards),
            executions=sum(part.programs for part in parts),
            tokens=self.tokens - sum(step.tokens for step in self.steps),
            lost=int(rewards.isnan().sum()),
        )
        self.steps.append(step)
        print(
            f"{self.run} {self.curve.last} programs {step.executions / len(rewards):.2f} "
            f"seconds {step.seconds:.2f} waiting {step.waiting:.2f}",
            flush=True,
        )

    def totals(self) -> dict[str, Any]:
        seconds = self.clock.seconds
        whole = seconds["all"]
        executions = sum(step.executions for step in self.steps)
        return {
            "parameters": self.policy.parameters,
            "rate": self.scale.size.rate,
            "seconds": round(whole, 2),
            "trajectories": sum(step.trajectories for step in self.steps),
            "lost": sum(step.lost for step in self.steps),
            "tokens written per second": round(self.tokens / whole),
            "executions": executions,
            "executions per second": round(executions / whole, 1),
            **{f"part of time {part}": round(seconds[part] / whole, 4) for part in seconds if part != "all"},
        }

    def table(self) -> dict[str, Any]:
        """The totals, and what came of each step."""
        return {**self.totals(), "rewards": self.curve.rewards, "steps": [asdict(step) for step in self.steps]}


def rewarded(told: Observation) -> float:
    """What the infrastructure lost has no reward, and no call has one of None by itself: that counts as 0."""
    return float("nan") if told.lost else told.reward or 0.0


@dataclass(frozen=True)
class Player:
    """Plays one policy after the other through one server."""

    wire: VerlWire
    device: str
    run: str = "python"
    """What the runs of the episodes are named after."""

    def play(
        self,
        scale: Scale,
        *,
        seed: int,
        learning: bool,
        overlap: bool = True,
        seconds: float = math.inf,
        run: str = "",
        trained: Policy | None = None,
    ) -> Trainer:
        """Play a policy for all steps of the scale, or until the time is over.

        It begins with the weights of the `trained` one, if there is one, and else with random ones.
        """
        grammar = Columns(2 * OPERATIONS[scale.split] + 1).grammar()
        policy = Policy(grammar, scale.size, seed=seed, device=self.device)
        if trained is not None:
            policy.model.load_state_dict(trained.model.state_dict())
        name = run or f"{self.run}-{LEARNS if learning else FROZEN}-{seed}"
        trainer = Trainer(policy, self.wire, scale, run=name, learning=learning, overlap=overlap)
        trainer.train(seconds)
        print(trainer.totals(), flush=True)
        return trainer

    def seeds(
        self, scale: Scale, seeds: Sequence[int], *, control: int, seconds: float, overlap: bool = True
    ) -> Iterator[dict[str, dict[str, dict[str, Any]]]]:
        """Play each seed with a policy that learns and with a frozen one, in groups of `control`.

        After each policy, give the tables of all until then. No control is played if its groups have no members.
        """
        tables: dict[str, dict[str, dict[str, Any]]] = {LEARNS: {}, FROZEN: {}}
        for seed in seeds:
            learns = self.play(scale, seed=seed, learning=True, overlap=overlap, seconds=seconds)
            tables[LEARNS][str(seed)] = learns.table()
            yield tables
            if control:
                smaller = replace(scale, group=control)
                frozen = self.play(smaller, seed=seed, learning=False, overlap=overlap, seconds=seconds)
                tables[FROZEN][str(seed)] = frozen.table()
                yield tables

    def rates(self, scale: Scale, rates: Sequence[float], *, seed: int, seconds: float) -> Iterator[dict[str, Any]]:
        """Play the same seed once for each rate of learning."""
        for rate in rates:
            other = replace(scale, size=replace(scale.size, rate=rate))
            name = f"{self.run}-rate-{rate:g}"
            yield self.play(other, seed=seed, learning=True, seconds=seconds, run=name).table()


def print_rates(tables: Iterable[dict[str, Any]]) -> None:
    """A line for each rate: the mean reward of each tenth of its steps, and how much of the time it waited."""
    lines = [f"{'rate':>8} {'steps':>5} {'s/step':>6} {'waiting':>7} {'end':>5}  reward of each tenth of the steps"]
    for table in tables:
        rewards = table["rewards"]
        tenths = [rewards[i * len(rewards) // 10 : max((i + 1) * len(rewards) // 10, 1)] for i in range(10)]
        lines.append(
            f"{table['rate']:>8g} {len(rewards):>5} {table['seconds'] / len(rewards):>6.2f} "
            f"{table[f'part of time {WAITING}']:>7.1%} {end_of(rewards):>5.2f}  "
            + " ".join(f"{fmean(tenth):.2f}" for tenth in tenths if tenth)
        )
        print("\n".join(lines), flush=True)


def use_device(device: str, threads: int) -> None:
    """Leave the other processors to the tools, and let a GPU take the short way for what is not in bfloat16."""
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision("high" if device == "cuda" else "highest")


def chosen(args: argparse.Namespace) -> Scale:
    """The scale with what the flags change of it."""
    scale = SCALES[args.size]
    size = {name: getattr(args, name) for name in ("layers", "width", "heads", "rate") if getattr(args, name)}
    rest = {name: getattr(args, name) for name in ("split", "tasks", "group", "steps", "rounds") if getattr(args, name)}
    scale = replace(scale, size=replace(scale.size, **size), **rest)
    if scale.tasks % HALVES:
        raise SystemExit(f"--tasks is {scale.tasks}; it has to be even, because a batch is played in halves")
    if scale.size.width % scale.size.heads:
        raise SystemExit(f"--width {scale.size.width} cannot be shared by --heads {scale.size.heads}")
    return scale


def size_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", choices=list(SCALES), default="small")
    for name in ("layers", "width", "heads", "tasks", "group", "steps", "rounds"):
        parser.add_argument(f"--{name}", type=int, help=f"other {name} than this size has")
    parser.add_argument("--rate", type=float, help="of learning, other than the size's")
    parser.add_argument("--split", choices=list(OPERATIONS), help="short or long questions")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch on the CPU; tools need the others")
    parser.add_argument("--control-group", type=int, help="of the frozen policy; a smaller one saves time")
    parser.add_argument("--gateways", type=int, default=max(1, (os.cpu_count() or 1) // 4))
    parser.add_argument("--run", default="python", help="what the runs of these episodes are named after")
    parser.add_argument("--record", default="episodes.db", help="where a server that is started records")


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    size_arguments(parser)
    parser.add_argument("--control", action=argparse.BooleanOptionalAction, default=True, help="play the frozen policy")
    parser.add_argument("--seconds", type=float, default=math.inf, help="after which a policy begins no further step")
    parser.add_argument("--rates", type=float, nargs="+", help="try these rates with the first seed, print a table")
    parser.add_argument("--overlap", action=argparse.BooleanOptionalAction, default=True, help="learn while tools run")
    parser.add_argument("--url", default="", help="of a server that serves remainder.py; without it, one is started")
    parser.add_argument("--out", type=Path, default=Path("python_grpo"), help="of OUT.json and OUT.png")
    return parser


def main() -> None:
    args = arguments().parse_args()
    use_device(args.device, args.threads)
    options = ["--gateways", str(args.gateways), "--record", args.record, "--log-level", "warning"]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    log = args.out.with_suffix(".server.log")
    with served("remainder.py", *options, url=args.url, log=log) as url, closing(VerlWire(url)) as wire:
        player = Player(wire, args.device, args.run)
        if args.rates:
            print_rates(player.rates(chosen(args), args.rates, seed=args.seeds[0], seconds=args.seconds))
        else:
            sys.exit(not compare(args, player))


def compare(args: argparse.Namespace, player: Player) -> bool:
    """Play all seeds. After each policy, report all until then; the last verdict counts."""
    scale = chosen(args)
    control = (args.control_group or scale.group) if args.control else 0
    verdict = False
    for tables in player.seeds(scale, args.seeds, control=control, seconds=args.seconds, overlap=args.overlap):
        learns, frozen = ({seed: one["rewards"] for seed, one in tables[name].items()} for name in (LEARNS, FROZEN))
        more = {
            "scale": asdict(scale),
            "machine": machine(args.device),
            "gateways": args.gateways,
            "overlap": args.overlap,
            "tables": tables,
        }
        verdict = report(args.out, f"Running Python to answer ({args.size})", learns, frozen, more)
    return verdict


if __name__ == "__main__":
    main()
