"""Check an environment: `check_environment(Env)` looks at it, plays it and reports what it found.

It runs in this process, on the real runtime, without HTTP. It cannot know whether the rewards make sense.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from toolyard.adapters import adapt
from toolyard.core.counting import counted
from toolyard.core.environment import needs_sandbox, overrides
from toolyard.core.errors import DefinitionError, SessionFailed
from toolyard.core.output import CallResult, ToolFailure, ToolOutput
from toolyard.core.tool import ToolSpec
from toolyard.placement.base import Placed, Task
from toolyard.runtime.limits import Limits
from toolyard.runtime.runtime import Runtime
from toolyard.runtime.tasks import Tasks
from toolyard.sandboxes.hidden import hidden_by
from toolyard.server import Server, sandboxes_of
from toolyard.settings import Settings
from toolyard.testing import judging
from toolyard.testing.blame import explained
from toolyard.testing.census import Census, growth_since
from toolyard.testing.episodes import RANDOM_CALLS, Played, Script, Stage, ToolCall, at_random, scripted
from toolyard.testing.judging import Problems, shortened
from toolyard.testing.loopwatch import LoopWatch
from toolyard.testing.probes import TASKS, Probing
from toolyard.testing.reading import laid_out, readable
from toolyard.testing.report import Finding, Level, Report
from toolyard.testing.witness import Witness, hearing

T = TypeVar("T")

_BLOCKED_SECONDS = 0.1
_SAMPLE = 20
"""How many tasks of each split it looks at."""


def check_environment(
    environment: type,
    *,
    calls: Sequence[ToolCall] = (),
    split: str | None = None,
    index: int = 0,
    secrets: Mapping[str, str] = {},
    episodes: int = 10,
    seed: int = 0,
    seconds: float = 60,
    idle_reward: bool = False,
    tell: Callable[[Finding], None] = lambda finding: None,
    progress: Callable[[str], None] = lambda doing: None,
) -> Report:
    """Check one environment; in a test: `report = check_environment(Env)`, then `assert report.ok, str(report)`.

    `calls` is the episode to play, as `[("move", {"direction": "north"}), …]`; without it, the check calls tools at
    random, with arguments made from their schemas, and dishonest agents play, too. `split` and `index` name the task to
    play; without them, it plays a sample. `episodes=0` calls no tool. The check takes `seconds`, beside the making of a
    sandbox, and gives up a call or a hook after half of them. `idle_reward` allows rewards for agents that do nothing.
    It passes each finding to `tell` at once, and what it does next to `progress`. Call it from a plain function: it
    runs an event loop of its own.
    """
    report = Report(getattr(environment, "__name__", repr(environment)))

    def add(level: Level, topic: str, text: str) -> None:
        report.findings.append(Finding(level, topic, text))
        tell(report.findings[-1])

    with hearing() as heard:
        try:
            env = adapt(environment)
            for record in heard.records:  # an adapter warns of what it leaves out of a class
                add("warning", "class", record.getMessage())
            Server([environment])  # each protocol checks the class, its name for instance
            report.environment = env.name()
            settings = Settings(
                setup_seconds=seconds / 2,
                call_seconds=seconds / 2,
                teardown_seconds=min(seconds / 2, 30),
                sweep_seconds=0.05,
            )
            witness = Witness(settings.threads)
            runtime = Runtime([env], witness, settings.pick(Limits))
        except DefinitionError as error:
            add("error", "class", str(error))
            return report
        check = _Check(
            Stage(runtime, env, secrets, heard),
            witness,
            add,
            seed=seed,
            seconds=seconds,
            idle_reward=idle_reward,
            progress=progress,
        )
        script = scripted(calls) if calls else None
        try:
            asyncio.run(check.everything(script, None if split is None else (split, index), episodes))
        finally:
            witness.close()
    return report


class _TimeOver(Exception):
    """The time of the whole check was over while this episode was played."""


class _Check:
    def __init__(
        self,
        stage: Stage,
        witness: Witness,
        add: Callable[[Level, str, str], None],
        *,
        seed: int,
        seconds: float,
        idle_reward: bool,
        progress: Callable[[str], None],
    ) -> None:
        self._stage = stage
        self._env = stage.environment
        self._witness = witness
        self._add = add
        self._seed = seed
        self._seconds = seconds
        self._idle_reward = idle_reward
        self._progress = progress
        self._each = seconds / 2
        """Seconds that one call or hook may take."""
        self._deadline = math.inf
        """When the time of the check is over. Making its sandbox ready does not count."""

    async def everything(self, script: Script | None, wanted: tuple[str, int] | None, episodes: int) -> None:
        with LoopWatch(_BLOCKED_SECONDS, self._stuck) as watch:
            # Sandboxes as in a server, but none made in advance: they would look like a leak.
            hidden = hidden_by([self._env])
            async with sandboxes_of(Settings.read({}), hidden=hidden) as sandboxes, self._stage.runtime.running():
                if needs_sandbox(self._env):
                    await sandboxes.start()
                    self._progress("looking for its source in a sandbox")
                    for level, text in await readable(self._env):
                        self._add(level, "hidden", text)
                self._deadline = time.monotonic() + self._seconds
                tasks = [task for split in await self.splits() for task in await self.tasks_of(split)]
                chosen = [await self._stage.runtime.tasks(self._env).at(*wanted)] if wanted else tasks
                playable = await self.sessions(chosen)
                if playable and episodes:
                    await self.episodes(chosen, script, episodes)
                    if script is None:
                        await self.dishonest(chosen)
                elif episodes:
                    self._add("note", "episodes", "none was played, because of the errors above")
        self.endings()
        for code, seconds in watch.blocked.items():
            self._add(
                "error",
                "loop",
                f"{code} is async and kept every other session waiting for {seconds:.2f} s: await instead, or write "
                f"it as a plain def, which runs in a thread",
            )
        if not watch.blocked:
            self._add("ok", "loop", f"nothing blocked the event loop for more than {_BLOCKED_SECONDS:g} s")

    # Splits and tasks.

    async def splits(self) -> Sequence[str]:
        try:
            splits = await self._within(self._stage.runtime.tasks(self._env).splits())
        except Exception as error:  # the author's list_splits()
            self._add("error", "splits", f"list_splits() failed: {self._why(error)}")
            return []
        names = [split.name for split in splits]
        for name, times in Counter(names).items():
            if times > 1:
                self._add("error", "splits", f"{name!r} is listed {times} times")
        if names:
            self._add("ok", "splits", ", ".join(f"{split.name} (type {split.type})" for split in splits))
        else:
            self._add("error", "splits", "list_splits() lists none, so no task can be reached by number")
        return list(dict.fromkeys(names))

    async def tasks_of(self, split: str) -> Sequence[Task]:
        """Check a sample of the split's tasks, and return it."""
        tasks = self._stage.runtime.tasks(self._env)
        try:
            count = await self._within(tasks.count(split))
            sample: list[Task] = []
            for index in self._sample(count):
                if self._is_over and sample:
                    self._add("note", "tasks", f"{split}: only {len(sample)} were looked at {self._in_time}")
                    break
                sample.append(await self._within(tasks.at(split, index)))
        except Exception as error:  # the author's list_tasks(), num_tasks() or get_task()
            self._add("error", "tasks", f"{split}: the tasks cannot be listed: {self._why(error)}")
            return []
        if not count:
            self._add("warning", "tasks", f"{split} has no task")
            return []
        problems = {name_of(task): judging.of_task(task.spec) for task in sample}
        self._tell_once("tasks", problems)
        if not any(problems.values()):
            self._add("ok", "tasks", f"{split}: {count:,}, of which {len(sample)} were checked: JSON objects")
            await self._same_again(split, sample)
        return [task for task in sample if all(level != "error" for level, _ in problems[name_of(task)])]

    async def _same_again(self, split: str, sample: Sequence[Task]) -> None:
        """The same number must give the same task again: clients name tasks by number, on any server, at any time."""
        again = Tasks(self._env, self._witness)
        for task in sample:
            assert task.index is not None
            try:
                same = (await self._within(again.at(split, task.index))).spec == task.spec
            except Exception as error:  # the author's list_tasks(), num_tasks() or get_task()
                self._add("error", "tasks", f"{name_of(task)} failed when asked for again: {self._why(error)}")
                return
            if not same:
                text = "was another task when asked for again: make tasks from fixed data or from seeds"
                self._add("warning", "tasks", f"{name_of(task)} {text}")
                return

    def _sample(self, count: int) -> Sequence[int]:
        """First, last, and some between."""
        if count <= _SAMPLE:
            return range(count)
        between = random.Random(self._seed).sample(range(1, count - 1), _SAMPLE - 2)
        return [0, *sorted(between), count - 1]

    # Prompts and tools.

    async def sessions(self, tasks: Sequence[Task]) -> bool:
        """Open each task: constructor, setup, prompt, list of tools, teardown. True if all can be played."""
        problems: dict[str, Problems] = {}
        tools: dict[str, tuple[ToolSpec, bool]] = {}
        for number, task in enumerate(tasks, start=1):
            if self._is_over and problems:
                self._add("note", "prompts", f"only {len(problems)} of {len(tasks)} tasks were opened {self._in_time}")
                break
            self._progress(f"opening task {number} of {len(tasks)}")
            try:
                async with self._stage.session(task) as session:
                    placed = await self._within(session.ready())
                    problems[name_of(task)] = await self._look_at(placed, tools)
                    if number == 1 and (laid := await self._within(laid_out(placed))):
                        said = f"the agent of {name_of(task)} finds in its workspace: {laid}"
                        self._add("note", "hidden", f"{said}; what it must not see belongs in a grader")
            except Exception as error:  # the author's constructor or setup()
                problems[name_of(task)] = [("error", f"the session failed: {self._why(error)}")]
        self._tell_once("prompts", problems)
        if tasks and not any(problems.values()):
            self._add("ok", "prompts", f"tasks opened: {len(problems)}; each has a prompt and lists its tools")
        for spec, runs in tools.values():
            written = self._env._definition.tools.get(spec.name)
            found = [*judging.of_tool(spec, runs=runs), *(judging.of_docstring(written) if written else ())]
            for level, text in found or [("ok", "described" + ", and so are its parameters" * bool(spec.input_schema))]:
                self._add(level, "tools", f"{spec.name}: {text}")
        return bool(tasks) and not any(level == "error" for found in problems.values() for level, _ in found)

    async def _look_at(self, placed: Placed, tools: dict[str, tuple[ToolSpec, bool]]) -> Problems:
        try:
            problems = judging.of_prompt(await self._within(placed.prompt()))
            if overrides(self._env, "get_messages"):
                await self._within(placed.messages())
        except Exception as error:  # the author's get_prompt() or get_messages()
            return [("error", f"the prompt failed: {self._why(error)}")]
        try:
            listed = await self._within(placed.list_tools())
        except Exception as error:  # the author's list_task_tools()
            return [*problems, ("error", f"the tools cannot be listed: {self._why(error)}")]
        for spec in listed.tools:
            runs = spec.name in placed.tools or overrides(self._env, "call_task_tool")
            tools.setdefault(spec.name, (spec, runs))
        if not listed.tools and not listed.terminal_tool:
            return [*problems, ("error", "there is no tool, so an agent can do nothing")]
        return problems

    # Episodes.

    async def episodes(self, tasks: Sequence[Task], script: Script | None, episodes: int) -> None:
        """Play, then play the same again all at once, to find what leaks and what sessions share."""
        plan = [(tasks[n % len(tasks)], script or at_random(f"{self._seed}/{n}")) for n in range(episodes)]
        until = time.monotonic() + self._left / 3  # the same again, and other agents, need time too
        plays: list[Played | Exception] = []
        for number, (task, chosen) in enumerate(plan, start=1):
            if time.monotonic() > until and plays:
                break
            self._progress(f"playing episode {number} of {episodes}")
            play = await self._play(task, chosen)
            if not isinstance(play, _TimeOver):
                plays.append(play)
        if len(plays) < episodes:
            few = f"only {len(plays)} of {episodes} were" if plays else f"none of {episodes} was"
            self._add("note", "episodes", f"{few} played to the end {self._in_time}")
        if not plays:
            return
        self._judge(plays, script)
        before = Census.take()
        self._progress(f"playing {len(plays)} episodes at once")
        again = await asyncio.gather(*(self._play(*planned) for planned in plan[: len(plays)]))
        await self._leaks(before, len(plays))
        if any(isinstance(play, _TimeOver) for play in again):
            self._add("note", "episodes", f"with all sessions at once, not all were played {self._in_time}")
        else:
            self._compare(plays, again)

    async def _play(self, task: Task, script: Script) -> Played | Exception:
        try:
            async with asyncio.timeout(self._left) as limit:
                return await self._stage.play(task, script)
        except TimeoutError as error:
            return _TimeOver() if limit.expired() else error
        except Exception as error:  # the author's constructor, setup() or list_task_tools()
            return error

    def _judge(self, plays: Sequence[Played | Exception], script: Script | None) -> None:
        played = [play for play in plays if isinstance(play, Played)]
        for error in dict.fromkeys(self._why(play) for play in plays if isinstance(play, Exception)):
            self._add("error", "episodes", error)
        made = [call for play in played for call in play.calls]
        problems: dict[str, dict[tuple[Level, str], None]] = {}
        for call in made:  # the same call may fail once and succeed later
            name = f"{call.tool} {shortened(json.dumps(dict(call.arguments), ensure_ascii=False))}"
            problems.setdefault(name, {}).update(dict.fromkeys(judging.of_call(call, scripted=script is not None)))
        self._tell_once("episodes", {name: list(found) for name, found in problems.items()})
        for tool in dict.fromkeys(call.tool for call in made if script is None):
            self._refused(tool, [call.result for call in made if call.tool == tool])
        for play in played:
            if play.after_the_end and getattr(play.after_the_end, "reason", "") != "episode_finished":
                self._add("error", "episodes", f"{name_of(play.task)}: a call after finished=True was not refused")
        ended = sum(play.finished for play in played)
        rewards = [call.result.reward for call in made if isinstance(call.result, ToolOutput)]
        given = [reward for reward in rewards if reward is not None and math.isfinite(reward)]
        kind = f"random (seed {self._seed})" if script is None else "as scripted"
        span = f"rewards from {min(given):g} to {max(given):g}" if given else "no reward"
        self._add(
            "ok", "episodes", f"{len(played)} {kind}, {counted(len(made), 'call')}: {ended} reached finished, {span}"
        )
        if not ended:
            how = f"by chance, in {RANDOM_CALLS} calls" if script is None else "by these calls"
            self._add("note", "episodes", f"no episode reached finished {how}; show the way with --call or calls=")

    def _refused(self, tool: str, results: Sequence[CallResult]) -> None:
        """Warn of a tool that accepted no arguments made from its own schema."""
        bad = [result for result in results if isinstance(result, ToolFailure) and result.reason == "bad_arguments"]
        if bad and len(bad) == len(results):
            text = f"none of {len(bad)} arguments made from its schema was accepted: {shortened(bad[0].message, 200)}"
            self._add("warning", "episodes", f"{tool}: {text}")

    async def dishonest(self, tasks: Sequence[Task]) -> None:
        """Play agents that do nothing, crash or exit early, and report each reward that one earns."""
        probing = Probing(self._stage, self._deadline)
        for task in tasks[:: max(1, len(tasks) // TASKS)][:TASKS]:
            self._progress(f"letting dishonest agents play {name_of(task)}")
            try:
                async with asyncio.timeout(self._left) as limit:
                    await probing.play(task)
            except TimeoutError as error:
                if not limit.expired():
                    self._add("error", "agents", f"{name_of(task)}: {self._why(error)}")
                    return
                probing.cut_short = True
                break
            except Exception as error:  # the author's constructor, setup() or list_task_tools()
                self._add("error", "agents", f"{name_of(task)}: {self._why(error)}")
                return
        for level, text in probing.problems(idle_reward=self._idle_reward):
            self._add(level, "agents", text)

    async def _leaks(self, before: Census, episodes: int) -> None:
        growth = await growth_since(before)
        for kind, new in growth.items():
            names = ", ".join(list(dict.fromkeys(new))[:3])
            self._add(
                "error" if len(new) >= episodes / 2 or kind == "asyncio tasks" else "warning",
                "leaks",
                f"{kind} left behind by {counted(episodes, 'episode')}: {len(new)} ({names}). End in teardown() what a "
                f"session starts",
            )
        if not growth:
            kinds = "no thread, open file, process or asyncio task"
            self._add("ok", "leaks", f"{kinds} left behind by {counted(episodes, 'episode')}")

    def _compare(self, plays: Sequence[Played | Exception], again: Sequence[Played | Exception]) -> None:
        for play, replay in zip(plays, again, strict=True):
            if isinstance(play, Played) and isinstance(replay, Exception):
                self._add("error", "episodes", f"with {len(again)} sessions at once: {self._why(replay)}")
                return
            if isinstance(play, Played) and isinstance(replay, Played) and play.outcome() != replay.outcome():
                self._add(
                    "note",
                    "episodes",
                    f"{name_of(play.task)}: the same calls gave other results when {len(again)} sessions ran at "
                    f"once: chance, time, or state that sessions share, such as a class attribute",
                )
                return

    # The end.

    def endings(self) -> None:
        """Report open sessions, missing teardowns, and what was logged and warned of meanwhile."""
        witness, sessions = self._witness, self._stage.runtime.sessions
        if sessions:
            self._add("error", "sessions", f"{len(sessions)} are still open")
        if overrides(self._env, "teardown"):
            level: Level = "ok" if witness.torn_down == witness.built else "error"
            self._add(
                level,
                "teardown",
                f"was called {counted(witness.torn_down, 'time')} for {counted(witness.built, 'session')}",
            )
        said: dict[str, str] = {}
        for record in self._stage.heard.records:
            if record.levelname == "ERROR":  # exceptions of tools and setup() are warnings, reported where they occur
                text = re.sub(r"^session \S+ ", "", record.getMessage().splitlines()[0])
                if record.exc_info and record.exc_info[1]:
                    text = f"{re.sub(' raised .*', '', text)} raised {explained(record.exc_info[1])}"
                said.setdefault(text, record.name.rpartition(".")[2])
        for text, topic in said.items():
            self._add("error", topic, text)
        for warning in self._stage.heard.warnings:
            text = str(warning.message).splitlines()[0]
            if text not in said and (warning.category is ResourceWarning or "never awaited" in text):
                said[text] = ""
                self._add("warning", "python", text)

    # Small things.

    def _tell_once(self, topic: str, problems: Mapping[str, Problems]) -> None:
        """Report each problem once, with the first place that has it and the number of others."""
        having: dict[tuple[Level, str], list[str]] = {}
        for name, found in problems.items():
            for problem in found:
                having.setdefault(problem, []).append(name)
        for (level, text), names in having.items():
            others = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
            self._add(level, topic, f"{names[0]}{others}: {text}")

    def _stuck(self, code: str, seconds: float) -> None:
        """Called in another thread, while the loop is blocked."""
        self._add("note", "loop", f"{code} has not let go of the event loop for {seconds:.0f} s; Ctrl-C ends the check")

    async def _within(self, work: Awaitable[T]) -> T:
        async with asyncio.timeout(min(self._each, self._left)):
            return await work

    @property
    def _left(self) -> float:
        return max(self._deadline - time.monotonic(), 0.0)

    @property
    def _is_over(self) -> bool:
        return self._left <= 0

    @property
    def _in_time(self) -> str:
        return f"in the {self._seconds:g} s of the check (--seconds)"

    def _why(self, error: BaseException) -> str:
        if isinstance(error, TimeoutError) and not str(error):
            return f"no answer within {self._each:g} s"
        if isinstance(error, DefinitionError):  # it names class and method, and what to write
            return str(error)
        if isinstance(error, SessionFailed) and (raised := self._stage.heard.last_error()):
            return f"setup() raised {explained(raised)}"
        return explained(error)


def name_of(task: Task) -> str:
    return f"{task.split}[{task.index}]"
