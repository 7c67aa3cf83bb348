"""`toolyard check` and `check_environment`: they name each mistake of an author, and nothing else."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import os
import random
import re
import threading
import time
import warnings
from pathlib import Path

import pytest

from tests.tiers import first
from tests.warm import toolyard
from toolyard import (
    Environment,
    ImageBlock,
    ListToolsOutput,
    TextBlock,
    ToolError,
    ToolOutput,
    ToolSpec,
    terminal,
    tool,
)
from toolyard.agents.arguments import make_arguments
from toolyard.core.errors import TaskNotFound
from toolyard.core.schema import fit
from toolyard.loading import load_targets
from toolyard.sandboxes import open_sandbox
from toolyard.testing import Report, check_environment
from toolyard.testing.census import Census, growth_since

EXAMPLES = sorted(Path(__file__).parents[2].glob("examples/*.py"))


class Good(Environment):
    """It has no mistake; each class below makes one."""

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{"n": n} for n in range(3)]

    def get_prompt(self):
        return "Say the number."

    @tool
    def say(self, number: int) -> ToolOutput:
        """Say a number.

        Args:
            number: Which one.
        """
        return ToolOutput(blocks=[TextBlock(text=str(number))], reward=0.0, finished=True)


def problems(report: Report) -> list[tuple[str, str]]:
    return [(finding.level, finding.topic) for finding in report.findings if finding.level in ("warning", "error")]


def only(report: Report, level: str, topic: str) -> str:
    """The only problem in the report."""
    assert problems(report) == [(level, topic)], str(report)
    return next(finding.text for finding in report.findings if finding.level == level)


def test_a_sound_environment_has_no_problem_and_says_what_was_done():
    report = check_environment(Good)
    assert report.ok
    assert problems(report) == []
    assert report.summary == "Good holds together: no errors, no warnings"
    text = str(report)
    assert "train: 3" in text
    assert "10 random (seed 0), 10 calls: 10 reached finished, rewards from 0 to 0" in text


def test_findings_are_told_as_they_come():
    told = []
    report = check_environment(Good, tell=told.append)
    assert told == report.findings


# The class.


def test_a_class_that_cannot_be_served_is_an_error_not_an_exception():
    class Toolless(Environment):
        @classmethod
        def list_splits(cls):
            return ["train"]

        @classmethod
        def list_tasks(cls, split):
            return []

        def get_prompt(self):
            return "x"

    assert "has no tool" in only(check_environment(Toolless), "error", "class")


def test_a_name_that_a_protocol_needs_is_an_error():
    taken = type("Health", (Good,), {})
    assert "'health'" in only(check_environment(taken), "error", "class")


# Splits and tasks.


def test_no_split_and_a_split_listed_twice_are_errors():
    class Splitless(Good):
        @classmethod
        def list_splits(cls):
            return []

    class Twice(Good):
        @classmethod
        def list_splits(cls):
            return ["train", "train"]

    assert "lists none" in only(check_environment(Splitless), "error", "splits")
    assert "2 times" in only(check_environment(Twice), "error", "splits")


def test_an_exception_in_list_tasks_is_named_with_its_line():
    class Broken(Good):
        @classmethod
        def list_tasks(cls, split):
            return {}[split]

    text = only(check_environment(Broken), "error", "tasks")
    assert "KeyError: 'train' (test_check.py, line " in text


def test_tasks_that_are_not_objects_or_not_json_are_named():
    class Lists(Good):
        @classmethod
        def list_tasks(cls, split):
            return [{"n": 1}, [1, 2]]

    class NotJson(Good):
        @classmethod
        def list_tasks(cls, split):
            return [{"n": math.nan}]

    class NotAtAll(Good):
        @classmethod
        def list_tasks(cls, split):
            return [{"n": object()}]

    assert "list_tasks('train') is [1, 2], a list; a task is a dict" in only(check_environment(Lists), "error", "tasks")
    assert "not plain JSON" in only(check_environment(NotJson), "warning", "tasks")
    assert "cannot be sent as JSON" in only(check_environment(NotAtAll), "error", "tasks")


def test_a_split_without_tasks_is_a_warning():
    class Half(Good):
        @classmethod
        def list_splits(cls):
            return ["train", "later"]

        @classmethod
        def list_tasks(cls, split):
            return [{"n": 1}] if split == "train" else []

    assert "later has no task" in only(check_environment(Half), "warning", "tasks")


def test_tasks_that_change_when_asked_again_are_a_warning():
    class Changing(Good):
        @classmethod
        def list_tasks(cls, split):
            return [{"n": random.random()} for _ in range(3)]

    class Once(Good):
        asked = 0

        @classmethod
        def list_tasks(cls, split):
            cls.asked += 1
            return [{"n": 1}] if cls.asked == 1 else [][split]

    assert "another task" in only(check_environment(Changing), "warning", "tasks")
    assert "failed when asked for again: TypeError" in only(check_environment(Once), "error", "tasks")


def test_an_environment_with_more_tasks_than_can_be_listed_is_sampled():
    class Many(Good):
        @classmethod
        def list_tasks(cls, split):
            raise NotImplementedError

        @classmethod
        def num_tasks(cls, split):
            return 10**9

        @classmethod
        def get_task(cls, split, index):
            return {"n": index}

    report = check_environment(Many)
    assert problems(report) == []
    assert "train: 1,000,000,000, of which 20" in str(report)


# Sessions and prompts.


def test_constructor_setup_and_prompt_that_raise_are_told_apart():
    class Constructor(Good):
        def __init__(self, task_spec={}, secrets={}):
            super().__init__(task_spec, secrets)
            raise ValueError("constructor boom")

    class Setup(Good):
        async def setup(self):
            raise ValueError("setup boom")

    class Prompts(Good):
        def get_prompt(self):
            raise ValueError("prompt boom")

    for broken, said in (
        (Constructor, "the session failed: ValueError: constructor boom (test_check.py, line "),
        (Setup, "the session failed: setup() raised ValueError: setup boom (test_check.py, line "),
        (Prompts, "the prompt failed: ValueError: prompt boom (test_check.py, line "),
    ):
        report = check_environment(broken)
        assert f"train[0] (and 2 more): {said}" in only(report, "error", "prompts")
        assert "none was played" in str(report)


def test_an_empty_prompt_and_a_broken_image_are_errors():
    class Empty(Good):
        def get_prompt(self):
            return "  \n"

    class Image(Good):
        def get_prompt(self):
            return [TextBlock(text="look"), ImageBlock(data="data:image/png;base64,AAAA", mimeType="image/png")]

    class NoBlocks(Good):
        def get_prompt(self):
            return []

    class Forgotten(Good):
        def get_prompt(self):
            "Returns nothing at all."

    assert "the prompt is empty" in only(check_environment(Empty), "error", "prompts")
    assert "the prompt is empty" in only(check_environment(NoBlocks), "error", "prompts")
    assert "the prompt failed: TypeError: None where text" in only(check_environment(Forgotten), "error", "prompts")
    assert "not base64" in only(check_environment(Image), "error", "prompts")


def test_a_hook_that_never_answers_is_given_up():
    class Forever(Good):
        async def get_prompt(self):
            await asyncio.Event().wait()

    assert "no answer within 0.1 s" in only(check_environment(Forever, seconds=0.2), "error", "prompts")


def test_a_task_that_is_not_there_is_for_the_caller_to_correct():
    with pytest.raises(TaskNotFound, match="no number 99"):
        check_environment(Good, split="train", index=99)
    assert not [thread for thread in threading.enumerate() if thread.name == "toolyard-loopwatch"]


def test_secrets_reach_the_environment():
    class Secret(Good):
        async def setup(self):
            assert self.secrets == {"KEY": "v"}

    assert check_environment(Secret, secrets={"KEY": "v"}).ok
    assert not check_environment(Secret).ok


# Tools.


def with_task_tool(**spec):
    class Dynamic(Good):
        def list_task_tools(self):
            return ListToolsOutput(tools=[ToolSpec(**{"name": "dyn", "description": "d", "input_schema": None} | spec)])

        def call_task_tool(self, name, arguments):
            return "done"

    return Dynamic


def test_a_described_tool_that_nothing_runs_is_an_error():
    class Described(Good):
        def list_task_tools(self):
            return ListToolsOutput(tools=[ToolSpec(name="dyn", description="d", input_schema=None)])

    report = check_environment(Described)
    assert any("write call_task_tool()" in finding.text for finding in report.of("error"))


def test_bad_schemas_are_errors():
    bad = check_environment(with_task_tool(input_schema={"type": "objekt"}), episodes=0)
    assert "not valid JSON Schema" in only(bad, "error", "tools")
    wrong = check_environment(with_task_tool(input_schema={"type": "array"}), episodes=0)
    assert "describes a array" in only(wrong, "error", "tools")


def test_missing_descriptions_and_odd_names_are_warnings():
    class Silent(Good):
        @tool
        def mute(self, x: int) -> str:
            return ""

    report = check_environment(Silent)
    assert problems(report) == [("warning", "tools")] * 2
    assert "mute: no description" in str(report)
    assert "mute: parameter 'x' has no description" in str(report)
    assert "such a name" in only(check_environment(with_task_tool(name="two words")), "warning", "tools")


# Episodes.


def test_a_tool_that_raises_is_an_error_with_its_line_and_one_that_raises_toolerror_is_not():
    class Raises(Good):
        @tool
        def say(self, number: int) -> ToolOutput:
            """Say a number.

            Args:
                number: Which one.
            """
            return [][number]

    class Fails(Good):
        @tool
        def say(self, number: int) -> ToolOutput:
            """Say a number.

            Args:
                number: Which one.
            """
            raise ToolError("not today")

    text = only(check_environment(Raises), "error", "episodes")
    assert "IndexError: list index out of range (test_check.py, line " in text
    assert "raise ToolError" in text
    assert problems(check_environment(Fails)) == []


def test_rewards_that_are_not_finite_and_metadata_that_is_not_json_are_errors():
    class Nan(Good):
        @tool
        def say(self) -> ToolOutput:
            """Say nothing."""
            return ToolOutput(reward=math.nan, finished=True)

    class Meta(Good):
        @tool
        def say(self) -> ToolOutput:
            """Say nothing."""
            return ToolOutput(metadata={"x": object()}, finished=True)

    assert "its reward is nan" in only(check_environment(Nan), "error", "episodes")
    said = only(check_environment(Meta), "error", "episodes")
    assert "the tool's output cannot be used: it cannot be written as JSON: Unable to serialize unknown type" in said


def test_a_tool_that_takes_longer_than_it_may_is_an_error():
    class Slow(Good):
        @tool
        async def say(self) -> ToolOutput:
            """Wait."""
            await asyncio.Event().wait()

    assert "no answer within 0.2 s" in only(check_environment(Slow, seconds=0.4, episodes=1), "error", "episodes")


def test_a_tool_that_accepts_nothing_its_schema_allows_is_a_warning():
    schema = {
        "type": "object",
        "properties": {"code": {"type": "string", "description": "c", "pattern": "^[0-9]{9}$"}},
        "required": ["code"],
    }
    text = only(check_environment(with_task_tool(input_schema=schema), episodes=20), "warning", "episodes")
    assert "dyn: none of " in text


def test_not_reaching_the_end_is_a_note():
    class Endless(Good):
        @tool
        def say(self) -> str:
            """Say nothing."""
            return "and on"

    report = check_environment(Endless, episodes=2)
    assert problems(report) == []
    assert "no episode reached finished by chance" in str(report)


def test_scripted_calls_are_made_and_shown():
    class Strict(Good):
        @tool
        def say(self, number: int) -> ToolOutput:
            """Say a number.

            Args:
                number: Which one.
            """
            right = number == self.task_spec["n"]
            return ToolOutput(blocks=[TextBlock(text="said")], reward=float(right), finished=right)

    report = check_environment(Strict, calls=[("say", {"number": 0}), ("say", {"number": 2})], split="train", index=2)
    assert problems(report) == []
    assert "say {\"number\": 0}: reward 0.0, 'said'" in str(report)
    assert "say {\"number\": 2}: reward 1.0, finished, 'said'" in str(report)
    assert "10 as scripted, 20 calls: 10 reached finished, rewards from 0 to 1" in str(report)


def test_a_scripted_call_of_a_tool_that_is_not_there_is_an_error():
    assert "'shout' is not a valid tool" in only(check_environment(Good, calls=[("shout", {})]), "error", "episodes")


def test_a_terminal_tool_is_played_too():
    class Last(Good):
        @tool
        def say(self) -> str:
            """Say nothing."""
            return "and on"

        @tool
        @terminal
        def answer(self, message: str) -> ToolOutput:
            """Take the last message."""
            return ToolOutput(reward=float(isinstance(message, str)), finished=True)

    report = check_environment(Last, idle_reward=True)
    assert problems(report) == []
    assert "rewards from 1 to 1" in str(report)


def test_state_that_sessions_share_is_noticed():
    class Shared(Good):
        total = 0

        @tool
        def say(self) -> ToolOutput:
            """Count."""
            Shared.total += 1
            return ToolOutput(blocks=[TextBlock(text=str(Shared.total))], finished=True)

    assert "state that sessions share" in str(check_environment(Shared))
    assert "state that sessions share" not in str(check_environment(Good))


# Dishonest agents.


def test_a_reward_for_doing_nothing_is_an_error_unless_it_is_meant():
    class Generous(Good):
        @tool
        def say(self, number: int) -> ToolOutput:
            """Say a number.

            Args:
                number: Which one.
            """
            return ToolOutput(reward=0.5, finished=True)

    text = only(check_environment(Generous), "error", "agents")
    assert 'does nothing gets a reward of 0.5 for say {"number": 0}, in 3 of 3 tasks' in text
    assert problems(check_environment(Generous, idle_reward=True)) == []


def test_a_reward_for_ending_with_an_empty_message_is_an_error():
    class Polite(Good):
        @tool
        def say(self) -> str:
            """Say nothing."""
            return ""

        @tool
        @terminal
        def answer(self, message: str) -> ToolOutput:
            """Take the last message."""
            return ToolOutput(reward=float("sorry" not in message), finished=True)

    report = check_environment(Polite)
    assert 'does nothing gets a reward of 1 for answer {"message": ""}' in only(report, "error", "agents")


def test_an_answer_that_is_right_by_chance_is_no_problem_and_a_single_task_is_a_warning():
    class Guessed(Good):
        @tool
        def say(self, number: int) -> ToolOutput:
            """Say a number.

            Args:
                number: Which one.
            """
            return ToolOutput(reward=float(number == self.task_spec["n"]), finished=True)

    class Single(Guessed):
        @classmethod
        def list_tasks(cls, split):
            return [{"n": 0}]

    report = check_environment(Guessed)
    assert problems(report) == []
    assert "note     agents    an agent that does nothing gets a reward of 1" in str(report)
    assert "in 1 of 3 tasks, by chance" in str(report)
    assert "in 1 of 1 task;" in only(check_environment(Single), "warning", "agents")


CHEATED = {
    "pays_for_exit_code_0": """
    @tool
    async def run(self, code: str) -> ToolOutput:
        '''Run a program that adds.

        Args:
            code: All of it.
        '''
        done = await self.sandbox.run(["python3", "-c", code + "\\nassert add(2, 3) == 5"])
        return ToolOutput(reward=float(done.exit_code == 0), finished=True)
""",
    "tests_beside_the_agents_code": """
    @tool
    async def write(self, path: str, content: str) -> str:
        '''Write a file.

        Args:
            path: Where.
            content: What.
        '''
        await self.sandbox.write(path, content.encode())
        return "written"

    @tool
    async def submit(self) -> ToolOutput:
        '''Have it tested.'''
        await self.sandbox.write("tests.py", b"from solution import add\\nassert add(2, 3) == 5")
        done = await self.sandbox.run(["python3", "tests.py"])
        return ToolOutput(reward=float(done.exit_code == 0), finished=True)
""",
    "a_shell_beside_its_tests": """
    @tool
    async def shell(self, command: str) -> str:
        '''Run a command.

        Args:
            command: A line.
        '''
        return (await self.sandbox.shell(command)).stdout.decode()

    @tool
    async def submit(self) -> ToolOutput:
        '''Have it tested.'''
        await self.sandbox.write("tests.py", b"from solution import add\\nassert add(2, 3) == 5")
        done = await self.sandbox.run(["python3", "tests.py"])
        return ToolOutput(reward=float(done.exit_code == 0), finished=True)
""",
    "pays_for_a_crash": """
    @tool
    async def run(self, code: str) -> ToolOutput:
        '''Find a program that breaks this.

        Args:
            code: All of it.
        '''
        done = await self.sandbox.run(["python3", "-c", code])
        return ToolOutput(reward=float(done.exit_code == 1), finished=True)
""",
}
SANDBOXED = """
from toolyard import Environment, ToolOutput, tool
from toolyard.sandboxes import open_sandbox

class Graded(Environment):
    uses_sandbox = True

    @classmethod
    def list_splits(cls): return ["train"]
    @classmethod
    def list_tasks(cls, split): return [{}]
    def get_prompt(self): return "Write add(a, b) in solution.py."
    async def setup(self): self.sandbox = await open_sandbox()
    async def teardown(self): await self.sandbox.close()
"""


def graded(tmp_path: Path, tools: str) -> type:
    """An environment in a file, as an author writes it."""
    file = tmp_path / f"graded_{abs(hash(tools))}.py"
    file.write_text(SANDBOXED + tools)
    (environment,) = load_targets([str(file)]).environments
    return environment


@pytest.mark.thorough
@pytest.mark.parametrize("name", CHEATED)
def test_an_agent_that_earns_by_leaving_or_crashing_is_found_out(name, tmp_path):
    report = check_environment(graded(tmp_path, CHEATED[name]), episodes=1)
    agent = "crashes" if "crash" in name else "exits early"
    found = [one.text for one in report.of("error")]
    assert any(f"an agent that {agent} gets a reward of 1 for " in text for text in found), str(report)
    assert {one.topic for one in report.of("error")} == {"agents"}


@pytest.mark.thorough
def test_an_agent_that_makes_its_own_call_count_as_lost_is_a_warning(tmp_path):
    tools = """
    @tool
    async def run(self, code: str) -> ToolOutput:
        '''Run a program.

        Args:
            code: All of it.
        '''
        done = await self.sandbox.run(["python3", "-c", code])
        if done.exit_code == 1 and not done.stderr:
            raise ConnectionResetError("the program hung up")
        return ToolOutput(reward=0.0, finished=True)
"""
    report = check_environment(graded(tmp_path, tools), episodes=1)
    assert "an agent that crashes makes run count as lost, and so its episode" in only(report, "warning", "agents")


# What a sandbox can read.


HONEST = """
    @tool
    async def run(self, code: str) -> ToolOutput:
        '''Run a program.

        Args:
            code: All of it.
        '''
        done = await self.sandbox.run(["python3", "-c", code])
        return ToolOutput(reward=float(done.stdout == b"the answer"), finished=True)
"""


def test_source_that_no_program_in_the_sandbox_can_read_is_right(tmp_path):
    report = check_environment(graded(tmp_path, HONEST), episodes=0)
    assert problems(report) == []
    assert "ok       hidden    a program in a sandbox looked for its source, and for what it hides" in str(report)


class Laid(Good):
    uses_sandbox = True
    files = {"task.md": "Find it.", "tests/answer.txt": "7", "tests/more/a.txt": "", "z.txt": ""}

    async def setup(self):
        self.sandbox = await open_sandbox()
        for path, text in self.files.items():
            await self.sandbox.write(path, text.encode())

    async def workspace(self):
        return self.sandbox

    async def teardown(self):
        await self.sandbox.close()


def test_what_setup_lays_into_the_workspace_of_the_agent_is_named():
    said = str(check_environment(Laid, episodes=0))
    assert (
        "note     hidden    the agent of train[0] finds in its workspace: task.md, z.txt, tests/answer.txt and 1 more; "
        "what it must not see belongs in a grader\n"
    ) in said


def test_an_empty_workspace_is_not_worth_a_word():
    nothing = type("Nothing", (Laid,), {"files": {}})
    assert "finds in its workspace" not in str(check_environment(nothing, episodes=0))


@pytest.mark.thorough
def test_source_that_a_program_in_the_sandbox_can_read_is_an_error(tmp_path, monkeypatch):
    environment = graded(tmp_path, HONEST)
    monkeypatch.setenv("TOOLYARD_SANDBOX", "subprocess")  # a backend without walls
    monkeypatch.setenv("TOOLYARD_MIN_ISOLATION", "L0")
    monkeypatch.setenv("TOOLYARD_ALLOW_VISIBLE_SOURCE", "yes")
    text = only(check_environment(environment, episodes=0), "error", "hidden")
    assert "programs in its sandbox can read" in text
    assert f"{tmp_path}/graded_" in text


@pytest.mark.thorough
def test_a_copy_under_another_name_where_the_sandbox_shows_it_is_an_error(tmp_path):
    environment = graded(tmp_path, HONEST)
    copy = Path(pytest.__file__).parents[1] / f"copied-{os.getpid()}.txt"
    copy.write_text(next(tmp_path.glob("graded_*.py")).read_text())
    try:
        assert str(copy) in only(check_environment(environment, episodes=0), "error", "hidden")
    finally:
        copy.unlink()


# Endings.


def test_teardown_is_counted_and_what_it_raises_is_an_error():
    class Clean(Good):
        def teardown(self):
            pass

    class Unclean(Good):
        async def teardown(self):
            raise OSError("still busy")

    report = check_environment(Clean, episodes=2)
    assert "was called 16 times for 16 sessions" in str(report)  # three to inspect, two played, two again
    text = only(check_environment(Unclean), "error", "runtime")
    assert "teardown() raised OSError: still busy (test_check.py, line " in text


def test_threads_that_asyncio_keeps_for_everybody_are_no_leak():
    async def count() -> dict[str, list[str]]:
        before = Census.take()
        await asyncio.gather(*(asyncio.to_thread(time.sleep, 0.05) for _ in range(3)))
        return await growth_since(before)

    assert "threads" not in asyncio.run(count())


def test_threads_files_and_coroutines_left_behind_are_errors():
    stop = threading.Event()
    opened = []
    coroutines = []

    class Threads(Good):
        def setup(self):
            threading.Thread(target=stop.wait, daemon=True, name="left-behind").start()

    class Files(Good):
        def setup(self):
            opened.append(os.open(os.devnull, os.O_RDONLY))

    class Coroutines(Good):
        async def setup(self):
            coroutines.append(asyncio.create_task(asyncio.Event().wait()))

    try:
        assert "threads left behind by 10 episodes: 10 (left-behind)" in only(
            check_environment(Threads), "error", "leaks"
        )
        assert "open files left behind by 10 episodes: 10 (/dev/null)" in only(
            check_environment(Files), "error", "leaks"
        )
        assert "asyncio tasks left behind by 10 episodes: 10 (Event.wait)" in only(
            check_environment(Coroutines), "error", "leaks"
        )
    finally:
        stop.set()
        for file in opened:
            os.close(file)


def test_what_teardown_ends_is_no_leak():
    class Tidy(Good):
        async def setup(self):
            self.waiting = asyncio.create_task(asyncio.Event().wait())
            self.file = os.open(os.devnull, os.O_RDONLY)

        async def teardown(self):
            self.waiting.cancel()
            os.close(self.file)

    assert problems(check_environment(Tidy)) == []


def test_an_async_hook_that_blocks_the_loop_is_named_and_a_plain_one_is_not():
    class Blocking(Good):
        async def get_prompt(self):
            time.sleep(0.25)  # noqa: ASYNC251  # the fault to be found
            return "x"

    class Plain(Good):
        def get_prompt(self):
            time.sleep(0.25)
            return "x"

    text = only(check_environment(Blocking), "error", "loop")
    assert "Blocking.get_prompt (test_check.py, line " in text
    assert problems(check_environment(Plain)) == []


def test_code_that_the_garbage_collector_calls_is_not_blamed():
    class Collected(Good):
        async def setup(self):
            asyncio.get_running_loop().call_soon(gc.collect)

    def pause(phase, _):
        if phase == "start":
            time.sleep(0.2)

    gc.callbacks.append(pause)
    try:
        assert problems(check_environment(Collected, episodes=1)) == []
    finally:
        gc.callbacks.remove(pause)


@pytest.mark.thorough
@pytest.mark.alone
def test_many_short_steps_are_no_block():
    class Busy(Good):
        async def setup(self):
            for _ in range(10):
                end = time.monotonic() + 0.03
                while time.monotonic() < end:
                    pass
                await asyncio.sleep(0)

    assert problems(check_environment(Busy, episodes=3)) == []


def test_code_that_never_lets_go_is_named_while_it_runs():
    done = threading.Event()

    class Stuck(Good):
        async def get_prompt(self):
            done.wait(20)
            return "x"

    def tell(finding):
        if "has not let go" in finding.text:
            done.set()

    report = check_environment(Stuck, episodes=0, tell=tell)
    assert "Stuck.get_prompt (test_check.py, line " in only(report, "error", "loop")
    assert done.is_set()


def test_a_coroutine_that_is_never_awaited_is_a_warning():
    class Forgetful(Good):
        @tool
        async def say(self) -> ToolOutput:
            """Forget to wait."""
            asyncio.sleep(0)
            return ToolOutput(finished=True)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "never awaited" in only(check_environment(Forgetful), "warning", "python")


# Arguments generated from schemas.


@pytest.mark.parametrize("seed", range(30))
def test_made_arguments_fit_the_schema_they_are_made_from(seed):
    schema = {
        "$defs": {"Point": {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}},
        "type": "object",
        "properties": {
            "text": {"type": "string", "minLength": 3, "maxLength": 5},
            "count": {"type": "integer", "minimum": 5, "exclusiveMaximum": 8},
            "even": {"type": "integer", "multipleOf": 2, "maximum": -20},
            "share": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
            "choice": {"enum": ["a", 2, None]},
            "same": {"const": "so"},
            "many": {"type": "array", "items": {"$ref": "#/$defs/Point"}, "minItems": 1, "maxItems": 2},
            "maybe": {"anyOf": [{"type": "boolean"}, {"type": "null"}], "default": None},
            "kinds": {"type": ["integer", "null"]},
        },
        "required": ["text", "count", "even", "share", "choice", "same", "many", "kinds"],
    }
    made = make_arguments(schema, random.Random(seed))
    fitted, wrong = fit(made, schema)
    assert wrong == []
    assert fitted == made


def test_a_schema_that_refers_to_itself_comes_to_an_end():
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}
    schema = {"$defs": {"Node": node}, "type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}
    for seed in range(50):
        make_arguments(schema, random.Random(seed))


# The command.


@pytest.mark.thorough
def test_the_examples_pass_the_strict_check():
    quick = [path for path in EXAMPLES if path.stem != "repair"]  # it has its own test
    done = toolyard("check", *map(str, quick), "--strict")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("holds together: no errors, no warnings") == len(quick)


SILENT = """
from toolyard import Environment, tool

class Silent(Environment):
    @classmethod
    def list_splits(cls): return ["train"]
    @classmethod
    def list_tasks(cls, split): return [{}]
    def get_prompt(self): return "x"
    @tool
    def go(self, far: int) -> str:
        return "gone" if far < 1000 else 1 / 0
"""


@pytest.fixture
def silent(tmp_path: Path) -> str:
    path = tmp_path / "silent.py"
    path.write_text(SILENT)
    return str(path)


def test_warnings_fail_only_a_strict_check(silent: str):
    assert toolyard("check", silent).returncode == 0
    done = toolyard("check", silent, "--strict")
    assert done.returncode == 1
    assert "  warning  tools     go: no description" in done.stdout


def test_other_programs_get_one_object(silent: str):
    done = toolyard("check", silent, "--json", "--strict")
    told = json.loads(done.stdout)
    (environment,) = told["environments"]
    assert (told["ok"], environment["ok"], environment["environment"]) == (False, False, "Silent")
    assert {"level": "ok", "topic": "splits", "text": "train (type train)"} in environment["findings"]
    assert (done.returncode, done.stderr) == (1, "")


def test_a_check_keeps_to_its_seconds_and_says_what_it_left_out():
    class Slow(Good):
        @classmethod
        def list_tasks(cls, split):
            return [{"n": n} for n in range(20)]

        async def setup(self):
            await asyncio.sleep(0.1)

    doing: list[str] = []
    began = time.monotonic()
    report = check_environment(Slow, seconds=1, progress=doing.append)
    assert time.monotonic() - began < 3
    assert re.search(r"only \d+ of 20 tasks were opened in the 1 s of the check \(--seconds\)", str(report))
    assert "opening task 1 of 20" in doing


def test_a_call_can_be_scripted_from_the_shell(silent: str):
    done = toolyard("check", silent, "--call", 'go {"far": 5}', "--call", 'go {"far": 1000}')
    assert done.returncode == 1
    assert "ok       episodes  go {\"far\": 5}: reward None, 'gone'" in done.stdout
    assert 'error    episodes  go {"far": 1000}: raised ZeroDivisionError' in done.stdout
    assert "(silent.py, line 12)" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    first(
        [
            (["--call", "go {"], "is not JSON"),
            (["--index", "1"], "--index needs --split"),
            (["--call", "go [1]"], "a JSON object"),
            (["--secret", "x"], "NAME=VALUE"),
            (["--split", "nope"], "no split 'nope'"),
        ],
        1,
    ),
)
def test_a_command_line_that_makes_no_sense_is_explained(silent: str, arguments: list[str], said: str):
    done = toolyard("check", silent, *arguments)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_file_that_is_not_there_is_named(tmp_path: Path):
    done = toolyard("check", "nowhere.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "there is no file nowhere.py" in done.stderr


# What an author reads.


class Described(Good):
    @tool
    def say(self, number: int = "three") -> ToolOutput:  # type: ignore[assignment]  # the mistake
        """Say a number.

        Args:
            number: Which one.
            numbr: What the model never reads.
        """
        return ToolOutput(reward=0.0, finished=True)


class Conversing(Good):
    def get_prompt(self):
        return [{"role": "user", "content": "Say the number."}]


class Misnamed(Good):
    @tool
    def say(self, number: int) -> ToolOutput:
        """Say a number.

        Args:
            number: Which one.
        """
        return ToolOutput(text="three", reward="high")  # type: ignore[call-arg, arg-type]  # the mistake


def test_a_docstring_and_a_default_that_do_not_fit_the_parameters_are_warnings():
    report = check_environment(Described)
    assert [finding.text for finding in report.findings if finding.level == "warning"] == [
        "say: parameter 'number' has the default 'three', which its type hint does not allow",
        "say: the docstring describes 'numbr', which is no parameter; did you mean 'number'?",
    ]


def test_messages_where_the_prompt_belongs_are_a_warning():
    assert only(check_environment(Conversing), "warning", "prompts") == (
        "train[0] (and 2 more): the agent reads JSON of messages: return text from get_prompt(), and messages from "
        "get_messages()"
    )


def test_an_output_that_cannot_be_made_is_told_field_by_field_in_one_line():
    said = only(check_environment(Misnamed), "error", "episodes")
    assert "http" not in said
    assert (
        "raised ValidationError: ToolOutput: reward is 'high': Input should be a valid number, unable to parse string "
        "as a number; text is 'three': Extra inputs are not permitted (test_check.py, line "
    ) in said


@pytest.mark.parametrize(
    ("hooks", "topic", "said"),
    [
        ({"name": lambda cls: None}, "class", "Wrong.name() returned None (is a return missing?); return a str, such"),
        (
            {"num_tasks": lambda cls, split: -3, "get_task": lambda cls, split, index: {}},
            "tasks",
            "train: the tasks cannot be listed: Wrong.num_tasks('train') returned -3, an int; return how many tasks "
            "there are, 0 or more",
        ),
        (
            {"num_tasks": lambda cls, split: "3", "get_task": lambda cls, split, index: {}},
            "tasks",
            "Wrong.num_tasks('train') returned '3', a str; return how many tasks there are, 0 or more",
        ),
        (
            {"list_tasks": lambda cls, split: ({"n": n} for n in range(3))},
            "tasks",
            ", a generator; return list(…) of it",
        ),
        (
            {"list_tasks": lambda cls, split: {"n": 1}},
            "tasks",
            "Wrong.list_tasks('train') returned {'n': 1}, a dict; return a list of dicts, one for each task",
        ),
        (
            {"list_tasks": lambda cls, split: None},
            "tasks",
            "Wrong.list_tasks('train') returned None (is a return missing?); return a list of dicts, one for each task",
        ),
    ],
)
def test_a_hook_that_returns_something_else_is_named_with_what_to_return(hooks, topic, said):
    wrong = type("Wrong", (Good,), {name: classmethod(hook) for name, hook in hooks.items()})
    report = check_environment(wrong)
    assert said in only(report, "error", topic)
    assert str(report).endswith("Wrong does not hold together: 1 error, no warnings")


def test_calls_that_never_pause_end_with_the_seconds_of_the_check():
    class Busy(Good):
        @tool
        async def say(self) -> str:
            """Say a number."""
            time.sleep(0.2)  # noqa: ASYNC251  # the mistake
            return "three"

    began = time.monotonic()
    report = check_environment(Busy, seconds=1)
    assert time.monotonic() - began < 8, "fifty calls, twice, take 20 s"
    assert "none of 10 was played to the end in the 1 s of the check (--seconds)" in str(report)
    assert "no dishonest agent has played: there is time for them with a larger --seconds" in str(report)
    assert "of 0 episodes" not in str(report)
    assert "0 calls" not in str(report)
