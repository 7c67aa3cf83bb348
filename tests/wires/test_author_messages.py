"""What a client and the log report of an author's mistake that appears only when the server uses the environment."""

from __future__ import annotations

import json
import logging
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.wires.wire import H, Wire
from tests.worlds import OneTask
from toolyard import Environment, tool
from toolyard.core.errors import DefinitionError
from toolyard.logs import JsonLines, TextLines
from toolyard.server import Server
from toolyard.testing import check_environment, running

pytestmark = pytest.mark.anyio


FIRST = {"env_name": "words", "split": "train", "index": 0}


class Words(OneTask):
    splits: object = ("train",)
    tasks: object = ({"word": "a"},)

    @classmethod
    def list_splits(cls):
        return cls.splits

    @classmethod
    def list_tasks(cls, split):
        return cls.tasks

    @tool
    def look(self) -> str:
        """Look."""
        return "a word"


@contextmanager
def lines(formatter: logging.Formatter | None = None) -> Iterator[list[str]]:
    """The warnings and errors logged during the block, as a reader sees them."""
    written: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: written.append((formatter or TextLines("%(message)s")).format(record))
    logger = logging.getLogger("toolyard")
    logger.addHandler(handler)
    try:
        yield written
    finally:
        logger.removeHandler(handler)


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ({"splits": "train"}, "Words.list_splits() returned 'train', a str; return a list, such as ['train']"),
        (
            {"splits": None},
            "Words.list_splits() returned None (is a return missing?); return a list, such as ['train', 'test']",
        ),
        (
            {"splits": [{"name": "train"}]},
            "Words.list_splits() lists {'name': 'train'}, a dict; a split is a name, such as 'train', or a Split",
        ),
        (
            {"tasks": {"word": "a"}},
            "Words.list_tasks('train') returned {'word': 'a'}, a dict; return a list of dicts, one for each task",
        ),
        (
            {"tasks": None},
            "Words.list_tasks('train') returned None (is a return missing?); return a list of dicts, one for each task",
        ),
        ({"tasks": map(str, [1])}, "Words.list_tasks('train') returned <map object at …>, a map; return list(…) of it"),
        (
            {"tasks": [{}, "second"]},
            "task 1 of Words.list_tasks('train') is 'second', a str; a task is a dict, such as {\"question\": …}",
        ),
        (
            {"tasks": range(3)},
            "task 0 of Words.list_tasks('train') is 0, an int; a task is a dict, such as {\"question\": …}",
        ),
        (
            {"tasks": [{"boards": [{}, {"lock": threading.Lock()}]}]},
            "task 0 of Words.list_tasks('train') cannot be copied for its session: it['boards'][1]['lock'] is "
            "<unlocked _thread.lock object at …>, a lock (cannot pickle '_thread.lock' object). A task holds text, "
            "numbers, lists and dicts; make the rest in setup()",
        ),
        (
            {"tasks": ["x" * 200]},
            f"task 0 of Words.list_tasks('train') is '{'x' * 79}…, a str; a task is a dict, such as "
            '{"question": …}',
        ),
    ],
)
async def test_what_the_server_cannot_use_is_said_to_client_and_log(returned, said):
    world = type("Words", (Words,), returned)
    with lines() as logged, running([world]) as server:
        async with Wire(server.url) as wire:
            opened = await wire.post("/create", headers=H("s"), json=FIRST)
    assert opened.status_code == 500
    assert re.sub("0x[0-9a-f]+", "…", opened.json()["detail"]) == said
    assert [re.sub("0x[0-9a-f]+", "…", line) for line in logged] == [said], "once"


def test_a_check_says_the_same():
    splits = check_environment(type("Words", (Words,), {"splits": "train"}))
    assert "list_splits() failed: Words.list_splits() returned 'train', a str; return a list" in str(splits)
    tasks = check_environment(type("Words", (Words,), {"tasks": [{"file": sys.stdout.buffer}]}))
    assert "cannot be copied for its session: it['file'] is <" in str(tasks)


async def test_a_client_that_may_see_no_errors_sees_nothing_of_an_authors_task():
    with running([type("Words", (Words,), {"tasks": ["the answer is 7"]})], errors="none") as server:
        async with Wire(server.url) as wire:
            opened = await wire.post("/create", headers=H("s"), json=FIRST)
    assert (opened.status_code, "the answer" in opened.text) == (500, False)


def test_a_class_without_tasks_is_refused_before_it_is_served():
    members = {name: vars(OneTask)[name] for name in ("list_splits", "get_prompt")}
    from_nothing = type("Words", (OneTask.__base__,), {**members, "look": vars(Words)["look"]})
    with pytest.raises(DefinitionError) as caught:
        Server([from_nothing])
    assert str(caught.value) == (
        "Words has no task: write a classmethod list_tasks(cls, split) that returns a list of dicts, empty if clients "
        "bring the tasks; or num_tasks(cls, split) and get_task(cls, split, index)"
    )


@pytest.mark.parametrize(
    ("absent", "said"),
    [
        ("list_splits", "Words has no split: write a classmethod list_splits(cls)"),
        ("get_prompt", "Words has no prompt: write get_prompt(self) or get_messages(self)"),
        ("look", "Words has no tool: decorate a method with @tool"),
    ],
)
def test_a_class_that_lacks_something_is_refused_with_what_to_write(absent, said):
    members = {**{name: vars(OneTask)[name] for name in ("list_splits", "list_tasks", "get_prompt")}, **vars(Words)}
    wanted = ("list_splits", "list_tasks", "get_prompt", "look")
    made = type("Words", (Environment,), {name: members[name] for name in wanted if name != absent})
    with pytest.raises(DefinitionError) as caught:
        Server([made])
    assert str(caught.value) == said


async def test_a_client_reads_that_there_is_no_split_at_all():
    with running([type("Words", (Words,), {"splits": []})]) as server:
        async with Wire(server.url) as wire:
            opened = await wire.post("/create", headers=H("s"), json=FIRST)
    assert (opened.status_code, opened.json()["hint"]) == (400, "no split 'train'; Words has none")


class Careless(OneTask):
    def __init__(self, task_spec={}, secrets={}):
        if task_spec.get("reads"):
            self.word = self.task_spec["word"]
        elif not task_spec.get("never"):
            super().__init__(task_spec, secrets)

    @tool
    def look(self) -> str:
        """Look."""
        return ""


@pytest.mark.parametrize("task", ["reads", "never"])
async def test_a_constructor_that_did_not_call_ours_is_named(task):
    with lines() as logged, running([Careless]) as server:
        async with Wire(server.url) as wire:
            opened = await wire.post("/create", headers=H("s"), json={"env_name": "careless", "task_spec": {task: 1}})
            assert await wire.open(env_name="careless")
    said = (
        "Careless.__init__ does not call the constructor of Environment, which sets self.task_spec and self.secrets: "
        "begin it with super().__init__(task_spec, secrets)"
    )
    assert (opened.status_code, opened.json()["detail"]) == (500, said)
    assert [line for line in logged if said in line] == [f"session {_id(logged)}: {said}"]


def _id(logged: list[str]) -> str:
    return next(line for line in logged if line.startswith("session ")).split()[1].rstrip(":")


# Log lines.


class Breaking(OneTask):
    def setup(self):
        if self.task_spec.get("late"):
            raise RuntimeError("no board")

    @tool
    def read(self) -> str:
        """Read."""
        try:
            return str(json.loads("{"))
        except ValueError as error:
            raise KeyError("board") from error

    @tool
    async def leave(self) -> str:
        """Leave."""
        raise SystemExit(3)


async def test_a_log_line_shows_the_authors_frames_first_and_ours_in_one_line():
    with lines() as logged, running([Breaking]) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open(env_name="breaking")
            await wire.call(sid, "read", env="breaking")
            await wire.call(sid, "leave", env="breaking")
            failed = await wire.open(env_name="breaking", task_spec={"late": True})
            await wire.get("/breaking/prompt", headers=H(failed))
    text = "\n".join(logged)
    for one in ("json.decoder.JSONDecodeError: ", "\nKeyError: 'board'", "\nSystemExit: 3", "\nRuntimeError: no board"):
        assert text.count(one) == 1, (one, text)
    assert text.count("The above exception was the direct cause of the following exception") == 2
    frames = re.findall(r'  File ".*/(\w+\.py)", line \d+, in (\w+)', text)
    assert [name for _, name in frames if _.startswith("test_")] == ["read", "read", "leave", "setup"]
    assert not [file for file, _ in frames if file not in ("test_author_messages.py", "__init__.py", "decoder.py")]
    folds = re.findall(r"\n  \(\d+ frames? of Toolyard and Python left out; --log-level debug shows all\)\n", text)
    assert len(folds) == 3, "one for each traceback that had ours"
    (told,) = (line for line in logged if "no board" in line)
    assert told.splitlines()[1:3] == ["Traceback (most recent call last):", told.splitlines()[2]]
    assert f'File "{__file__}", line' in told.splitlines()[2]


@pytest.mark.thorough
async def test_an_error_in_another_process_shows_the_authors_frames_and_nothing_else():
    with lines() as logged, running([Breaking], placement="process") as server:
        async with Wire(server.url) as wire:
            failed = await wire.open(env_name="breaking", task_spec={"late": True})
            await wire.get("/breaking/prompt", headers=H(failed))
    (told,) = (line for line in logged if "no board" in line)
    assert [file for file, _ in re.findall(r'  File "(.*)", line \d+, in (\w+)', told)] == [__file__]
    assert told.count("RuntimeError: no board") == 2, "in the first line and the last"


async def test_lines_of_json_fold_too_and_level_debug_shows_all():
    logger = logging.getLogger("toolyard")
    found = []
    for level in (logging.WARNING, logging.DEBUG):
        with lines(JsonLines()) as logged, running([Breaking]) as server:
            before = logger.level
            logger.setLevel(level)
            try:
                async with Wire(server.url) as wire:
                    await wire.call(await wire.open(env_name="breaking"), "read", env="breaking")
            finally:
                logger.setLevel(before)
        found += [json.loads(line)["traceback"] for line in logged if "traceback" in line]
    folded, whole = found
    assert ("left out" in folded, "local.py" in folded) == (True, False)
    assert ("left out" in whole, "local.py" in whole) == (False, True)


def test_an_error_of_our_own_keeps_all_its_frames():
    try:
        Server([])
    except Exception as error:
        text = TextLines("%(message)s").formatException((type(error), error, error.__traceback__))
    try:
        json.loads("{")
    except ValueError as error:
        plain = TextLines("%(message)s").formatException((type(error), error, error.__traceback__))
    assert "left out" in text, "the test is its author"
    assert "left out" not in plain
