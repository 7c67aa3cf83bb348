"""Let a model, or another agent, play the tasks of an environment, and say how well it did."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import importlib
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeAlias

from toolyard.agents.attempts import Attempt, AttemptJournal, EvalError, Planned, chosen, planned
from toolyard.agents.chat import ChatAgent
from toolyard.agents.endpoint import Endpoint
from toolyard.agents.evaluation import About, Evaluation, Prices, errors_of
from toolyard.agents.playing import Agent
from toolyard.agents.random_agent import RandomAgent
from toolyard.agents.rollout import Tokens
from toolyard.cli._progress import shown_progress
from toolyard.cli._settings import add_settings
from toolyard.cli._tables import interval, table, visible
from toolyard.cli._typed import object_of, pairs_of
from toolyard.client import (
    AsyncClient,
    AsyncEnvironment,
    AsyncSession,
    ClientError,
    ConnectionLost,
    RequestRefused,
    Task,
)
from toolyard.core.counting import counted
from toolyard.core.errors import describe
from toolyard.loading import load_targets
from toolyard.sandboxes.installation import Installation, use
from toolyard.settings import Settings
from toolyard.testing.running import running
from toolyard.version import __version__

HELP = "let a model play the tasks of an environment, and say how well it did"

EXAMPLES = """\
examples:
  toolyard eval examples/maze.py --agent random --tasks 0:10
  toolyard eval examples/arithmetic.py --model qwen3 --base-url http://127.0.0.1:8000/v1 --repeat 4 --json out.json
  toolyard eval http://127.0.0.1:8080 --environment maze --agent my_agents:careful

The key of the endpoint is in OPENAI_API_KEY. Ctrl-C stops and keeps what there is; with --json, --resume goes on.

exit codes: 0 the attempts were made, scored or not, 2 the command makes no sense, 130 Ctrl-C
"""

_ERRORS_SHOWN = 3
_ERROR_MOST = 300


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "target", metavar="TARGET", help="file.py, file.py:Class, package.module, or the URL of a server that runs"
    )
    add_agent(parser)
    add_tasks(parser)
    add_limits(parser)
    parser.add_argument(
        "--json", metavar="OUT", type=Path, help="write the result, and beside it a journal, as it goes"
    )
    parser.add_argument("--resume", action="store_true", help="go on with the evaluation that OUT is of")
    parser.add_argument("--run", dest="of_run", default="", help="name under which the episodes are recorded [eval-…]")
    parser.add_argument("--secret", metavar="NAME=VALUE", action="append", default=[], help="for the environment")
    add_settings(parser)


def add_agent(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("who plays")
    group.add_argument("--model", metavar="NAME", default="", help="of an endpoint with the Chat Completions API")
    group.add_argument("--base-url", metavar="URL", help="of the endpoint, such as http://127.0.0.1:8000/v1")
    group.add_argument("--temperature", type=float, help="for the model")
    group.add_argument("--system", metavar="FILE", type=Path, help="a system message from this file, before the prompt")
    group.add_argument("--body", metavar="JSON", default="{}", help="more fields of each request to the endpoint")
    group.add_argument("--stream", action="store_true", help="let the endpoint answer in pieces")
    group.add_argument(
        "--agent", default="", help="instead of a model: random, or module:function, a coroutine of session and task"
    )
    group.add_argument("--seed", type=int, default=0, help="of the random agent [0]")


def add_tasks(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is played")
    group.add_argument("--environment", metavar="NAME", help="if the target has several")
    group.add_argument("--split", help="[test, or else the first that has tasks]")
    group.add_argument("--tasks", metavar="FROM:TO", default=":", help="by their numbers, as in 0:50 [all]")
    group.add_argument("--repeat", metavar="K", type=int, default=1, help="tries for each task [1]")
    group.add_argument("--pass-at", type=float, default=1.0, help="a try passes with at least this return [1]")


def add_limits(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("limits")
    group.add_argument("--concurrency", metavar="N", type=int, default=32, help="episodes at the same time [32]")
    group.add_argument("--max-turns", metavar="N", type=int, default=20, help="answers of the model in an episode [20]")
    group.add_argument("--max-tokens", metavar="N", type=int, help="that the model may write in an episode")
    group.add_argument("--time-limit", metavar="SECONDS", type=float, help="for an episode, without rate limits' waits")
    group.add_argument("--max-cost", metavar="MONEY", type=float, help="for all; it needs the prices")
    group.add_argument("--prompt-price", metavar="MONEY", type=float, default=0.0, help="of a million tokens read")
    group.add_argument("--completion-price", metavar="MONEY", type=float, default=0.0, help="of a million written")


def run(args: argparse.Namespace) -> int:
    check(args)
    if "://" in args.target:
        return asyncio.run(evaluated(args, args.target))
    settings = dataclasses.replace(Settings.read(vars(args)), gateways=1)
    use(Installation.at(settings.sandbox_python))
    loaded = load_targets([args.target])
    knobs = {knob.name: getattr(settings, knob.name) for knob in dataclasses.fields(Settings)}
    with running(loaded.environments, toolsets=loaded.toolsets, **knobs) as server:
        return asyncio.run(evaluated(args, server.url))


def check(args: argparse.Namespace) -> None:
    """Check the flags. Raises `EvalError` or `UsageError` before anything starts."""
    for name in ("repeat", "concurrency", "max_turns"):
        if getattr(args, name) < 1:
            raise EvalError(f"--{name.replace('_', '-')} is {getattr(args, name)}; it must be at least 1")
    if not (args.model or args.agent):
        raise EvalError("say who plays: --model NAME, --agent random or --agent module:function")
    if args.resume and args.json is None:
        raise EvalError("--resume needs --json OUT: the journal beside it knows what was done")
    if args.max_cost is not None and not (args.prompt_price or args.completion_price):
        raise EvalError("--max-cost needs --prompt-price and --completion-price, per million tokens")
    if args.record and "://" in args.target:
        raise EvalError(f"--record is for a server that is started here; give it to the one at {args.target}")
    task_range(args.tasks)
    pairs_of("--secret", args.secret)
    object_of("--body", args.body)


def task_range(text: str) -> tuple[int, int | None]:
    """`0:50`, `10:`, `:` or the number of one task."""
    first, colon, last = text.partition(":")
    try:
        start, stop = int(first or 0), int(last) if last else None
    except ValueError:
        raise EvalError(f"--tasks is {text!r}; write it as 0:50, 10: or 7") from None
    if start < 0 or (stop or 0) < 0:
        raise EvalError(f"--tasks is {text!r}; numbers of tasks count from 0")
    return start, stop if colon else start + 1


@dataclasses.dataclass
class Stopping:
    """Ends the work early, for one reason, and keeps what is done."""

    work: asyncio.Future[None]
    why: str = ""

    def stop(self, why: str) -> None:
        self.why = self.why or why
        self.work.cancel()

    async def wait(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.stop, number.name)
        try:
            await asyncio.wait((self.work,))
            if not self.work.cancelled():
                self.work.result()
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)


async def evaluated(args: argparse.Namespace, url: str) -> int:
    agent_of = agent_maker(args)
    async with AsyncClient(url, api_key=args.api_key) as client, contextlib.AsyncExitStack() as stack:
        try:
            environment = await environment_of(client, args)
            evaluation = await evaluation_of(args, environment)
        except ConnectionLost as error:
            raise EvalError(f"there is no answer from {url} ({error}). To start a server: toolyard serve") from None
        except ClientError as error:
            raise EvalError(describe(error)) from None
        keep = stack.enter_context(kept(args, evaluation))
        show = stack.enter_context(shown_progress(evaluation, prices_of(args)))
        spent = evaluation.tokens

        def counted(tokens: Tokens) -> None:
            spent.add(tokens)
            if args.max_cost is not None and prices_of(args).of(spent) >= args.max_cost:
                stopping.stop(f"--max-cost {args.max_cost:g} is spent")

        def over(attempt: Attempt) -> None:
            keep(attempt)
            show()

        agent = await stack.enter_async_context(agent_of(counted))
        work = evaluation.run(
            partial(session_of, environment, evaluation.about, args),
            agent,
            concurrency=args.concurrency,
            seconds=args.time_limit,
            keep=over,
        )
        stopping = Stopping(asyncio.ensure_future(work))
        await stopping.wait()
    return tell(args, evaluation, stopping.why)


# The environment and its tasks.


async def environment_of(client: AsyncClient, args: argparse.Namespace) -> AsyncEnvironment:
    names = await client.environments.list()
    wanted = args.environment.lower() if args.environment else names[0] if len(names) == 1 else None
    if wanted not in names:
        asked = f"there is no environment {args.environment!r}" if wanted else "say which with --environment"
        raise EvalError(f"{asked}; there are {', '.join(names)}")
    return client.environment(wanted)


async def evaluation_of(args: argparse.Namespace, environment: AsyncEnvironment) -> Evaluation:
    split = args.split or await split_of(environment)
    start, stop = task_range(args.tasks)
    tasks = chosen(await tasks_of(environment, split, start, stop), start)
    if not tasks:
        raise EvalError(f"the split {split!r} of {environment.name!r} has no tasks {args.tasks}")
    run = args.of_run or f"eval-{time.strftime('%Y%m%d-%H%M%S')}"
    about = About(args.model or args.agent, environment.name, split, run)
    return Evaluation(about, planned(tasks, args.repeat), args.pass_at)


async def tasks_of(environment: AsyncEnvironment, split: str, start: int, stop: int | None) -> Sequence[Task]:
    try:
        return await environment.get_task_range(split, start, stop)
    except RequestRefused as error:
        if error.status != HTTPStatus.NOT_FOUND:
            raise
        return (await environment.list_tasks(split))[start:stop]  # not every server has ranges


async def split_of(environment: AsyncEnvironment) -> str:
    names = await environment.list_splits()
    for name in sorted(names, key=lambda name: name != "test"):
        if await environment.num_tasks(name):
            return name
    raise EvalError(f"{environment.name!r} has no tasks")


def session_of(environment: AsyncEnvironment, about: About, args: argparse.Namespace, one: Planned) -> AsyncSession:
    labels = {
        "eval": "1",
        "agent": args.agent or "chat",
        "version": __version__,
        "model": about.model,
        "attempt": one.id,
        "try": str(one.number),
    }
    secrets = pairs_of("--secret", args.secret)
    return environment.session(split=about.split, index=one.of.index, secrets=secrets, run=about.run, labels=labels)


# The agent.

Making: TypeAlias = Callable[[Callable[[Tokens], None]], AbstractAsyncContextManager[Agent]]


def agent_maker(args: argparse.Namespace) -> Making:
    """Load the agent. Raises before any session opens."""
    if args.agent == "random":
        return lambda counted: contextlib.nullcontext(RandomAgent(args.seed, args.max_turns))
    if args.agent:
        agent = loaded_agent(args.agent)
        return lambda counted: contextlib.nullcontext(agent)
    system = text_of(args.system) if args.system else ""
    options = object_of("--body", args.body)
    if args.temperature is not None:
        options["temperature"] = args.temperature
    endpoint = Endpoint(args.model, args.base_url, options=options, stream=args.stream)

    @contextlib.asynccontextmanager
    async def chatting(counted: Callable[[Tokens], None]) -> AsyncIterator[Agent]:
        endpoint.counted = counted
        try:
            yield ChatAgent(endpoint, system=system, max_turns=args.max_turns, max_tokens=args.max_tokens)
        finally:
            await endpoint.aclose()

    return chatting


def text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise EvalError(f"--system {path} cannot be read: {error}") from None


def loaded_agent(text: str) -> Agent:
    where, colon, name = text.partition(":")
    if not (colon and name):
        raise EvalError(f"--agent is {text!r}; write random, or module:function")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(where.removesuffix(".py").replace("/", ".")), name, None)
    except Exception as error:  # the author's module may raise anything when it is loaded
        raise EvalError(f"--agent {text}: {where} could not be loaded: {describe(error)}") from error
    if not callable(found):
        raise EvalError(f"--agent {text}: there is no function {name!r} in {where}")
    agent: Agent = found
    return agent


# The journal.


def journal_of(out: Path) -> Path:
    return out.with_name(f"{out.name}.journal")


@contextlib.contextmanager
def kept(args: argparse.Namespace, evaluation: Evaluation) -> Iterator[Callable[[Attempt], None]]:
    """The function that keeps an attempt. With --resume, the evaluation knows those that were made before."""
    if args.json is None:
        yield lambda attempt: None
        return
    with AttemptJournal(journal_of(args.json)) as journal:
        begin(args, evaluation, journal)
        yield journal.add


def begin(args: argparse.Namespace, evaluation: Evaluation, journal: AttemptJournal) -> None:
    before = journal.read()
    about = {**dataclasses.asdict(evaluation.about), "attempts": len(evaluation.planned)}
    if before is None:
        journal.start(about)
        return
    was, attempts = before
    if not args.resume:
        if (made := len({attempt.id for attempt in attempts})) < was["attempts"]:
            raise EvalError(
                f"{args.json} is of an evaluation that was stopped after {made} of {was['attempts']} attempts: go on "
                f"with --resume, or remove {journal.path}"
            )
        journal.start(about)
        return
    for name in ("model", "environment", "split"):
        if was[name] != about[name]:
            raise EvalError(f"--resume: {args.json} is of the {name} {was[name]!r}, and not {about[name]!r}")
    evaluation.about = dataclasses.replace(evaluation.about, run=was["run"])
    for attempt in attempts:
        evaluation.take(attempt)
    journal.go_on()


# The summary.


def prices_of(args: argparse.Namespace) -> Prices:
    return Prices(args.prompt_price, args.completion_price)


def tell(args: argparse.Namespace, evaluation: Evaluation, stopped: str) -> int:
    found = evaluation.as_json()
    if args.json is not None:
        write(args.json, json.dumps(found, indent=1) + "\n")
    print(*lines(evaluation, found, prices_of(args)), sep="\n")
    if stopped:
        more = f"; --resume goes on from {args.json}" if args.json is not None else ""
        print(f"\nStopped ({stopped}) with {counted(len(evaluation.left), 'attempt')} left{more}.")
    return 130 if stopped in ("SIGINT", "SIGTERM") else 0


def write(path: Path, text: str) -> None:
    """Write the whole file, or nothing."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def lines(evaluation: Evaluation, found: Mapping[str, Any], prices: Prices) -> Iterator[str]:
    about, k = evaluation.about, found["repeat"]
    tries = f", {k} tries each" if k > 1 else ""
    yield f"{about.model} on {about.environment}, split {about.split}: {counted(found['tasks'], 'task')}{tries}"
    yield ""
    tokens, cost = evaluation.tokens, prices.of(evaluation.tokens)
    several = {f"pass@{k}": found["pass@k"], f"pass^{k}": found["pass^k"]} if k > 1 else {}
    columns = {
        "n": found["n"],
        "scored": found["scored"],
        "mean return": found["mean_return"],
        "95 %": interval(found["ci95"]),
        "pass@1": found["pass@1"],
        **several,
        "turns": found["mean_turns"],
        **({"tokens": tokens.prompt + tokens.completion} if tokens.prompt else {}),
        **({"cost": cost} if cost else {}),
        "seconds": round(time.monotonic() - evaluation.began, 1),
    }
    yield from table(list(columns), [list(columns.values())])
    outcomes = Counter(attempt.outcome for attempt in evaluation.attempts)
    yield ""
    if named := evaluation.rewards:
        yield "rewards: " + ", ".join(f"{name} {mean:.4g}" for name, mean in named.items())
    if outcomes:
        yield "ended: " + ", ".join(f"{count} {name}" for name, count in outcomes.most_common())
    if too_few := k > 1 and evaluation.summary.too_few(k):
        yield f"{too_few} tasks were scored less than {k} times, and are not in pass@{k} and pass^{k}"
    for what, count in errors_of(evaluation.attempts)[:_ERRORS_SHOWN]:
        yield visible(f"{count} of them: {what}")[:_ERROR_MOST]
