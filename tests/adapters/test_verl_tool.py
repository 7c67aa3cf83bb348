"""Classes that extend verl-tool's `BaseTool`, served unmodified. Here verl-tool itself is not installed."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import uuid
from pathlib import Path

import pytest

from tests.adapters.conftest import HERE, serving
from tests.wires.verl_wire import Trainer
from tests.wires.wire import Wire

pytestmark = pytest.mark.anyio

FILE = HERE / "written_for_verl_tool.py"
TOOLS = ["double", "judge", "slow_search", "batch", "awaited", "witness"]


@pytest.fixture(scope="module")
def url():
    with serving(Path(sys.executable), FILE.name) as url:
        yield url


@pytest.fixture
async def trainer(url):
    async with Trainer(url) as trainer:
        yield trainer


@pytest.fixture
def name():
    return uuid.uuid4().hex


async def test_what_is_registered_is_served_as_one_toolbox(trainer):
    assert (await trainer.get("/list_environments")).json() == ["toolbox"]
    assert (await trainer.get("/verl/health")).json()["tools"] == [*TOOLS, "finish"]
    tools = (await trainer.get("/toolbox/tools")).json()["tools"]
    assert [tool["name"] for tool in tools] == TOOLS
    assert tools[0]["description"] == "Write <double>n</double> to double a number."
    schema = tools[0]["input_schema"]
    assert list(schema["properties"]) == schema["required"] == ["action"]


async def test_a_text_goes_to_the_tool_that_parses_it_and_its_state_is_the_trajectorys(trainer, name):
    first, other, second = await trainer.batch(
        [name, f"{name}-2", name], ["I <double>4</double>", "<double>1</double>", "<double>5</double>"]
    )
    assert first == ("\n<twice>8</twice> turn 1", False, True)
    assert other == ("\n<twice>2</twice> turn 1", False, True)
    assert second == ("\n<twice>10</twice> turn 2", False, True)


async def test_the_state_is_deleted_when_the_trajectory_ends_however_it_does(trainer, name):
    ids = [f"{name}-{n}" for n in range(3)]
    await trainer.batch(ids, ["<double>4</double>"] * 3, is_last_step=[False, True, False])
    await trainer.finish(ids[0])
    deleted = (await trainer.act(name, "who was deleted?")).text.split()
    assert [deleted.count(one) for one in ids] == [1, 1, 0]
    assert (await trainer.act(ids[0], "<double>1</double>")).text.endswith("turn 1")
    assert (await trainer.act(ids[2], "<double>1</double>")).text.endswith("turn 2")


async def test_an_action_that_breaks_its_tool_is_no_matter_to_the_others(trainer, name):
    broken, fine = await trainer.batch([name, f"{name}-2"], ["<double>four</double>", "<double>4</double>"])
    assert "invalid literal" in broken.text
    assert not broken.valid
    assert fine.valid


async def test_an_object_reaches_the_trainer_whole(trainer, name):
    right = await trainer.act(name, "<judge>42", is_last_step=[True])
    assert right == ({"obs": "judged", "reward": 1.0, "metrics": {"right": True}, "last": True}, True, True)
    wrong = await trainer.act(name, "<judge>42", {"answer": "41"})
    assert wrong.observation["reward"] == 0.0
    assert wrong.observation["last"] is False


async def test_what_a_tool_calls_invalid_is_invalid(trainer, name):
    assert await trainer.act(name, "<judge>nothing") == ("", False, False)


async def test_a_parser_that_breaks_leaves_the_text_to_the_others(trainer, name):
    assert await trainer.act(name, "break the parser") == ("", False, False)


async def test_a_picture_is_for_whoever_sent_one(trainer, name):
    assert (await trainer.act(name, "<judge>picture")).observation == "<image>"
    seen = await trainer.act(name, "<judge>picture", {"images": ["x"]})
    assert seen.observation == {"obs": "<image>", "image": "data:image/png;base64,aGk="}


async def test_batches_and_coroutines_are_asked_for_one_action_at_a_time(trainer, name):
    answers = await trainer.batch(
        [f"{name}-{n}" for n in range(4)],
        ["find cats", "batch x", "await this", "batch y"],
        extra_fields=[{}, {"word": "w"}, {}, {}],
    )
    assert [one.text for one in answers] == [f"cats for {name}-0", "1: batch x w", "AWAIT THIS", "1: batch y None"]
    assert all(one.valid for one in answers)


async def test_over_ors_the_text_is_the_one_argument(url):
    async with Wire(url) as wire:
        sid = await wire.open()
        for turn in (1, 2):
            answer = await wire.call(sid, "double", {"action": "<double>3</double>"}, env="toolbox")
            assert answer.text == f"\n<twice>6</twice> turn {turn}"
        judged = await wire.call(sid, "judge", {"action": "<judge>42"}, env="toolbox")
        assert (judged.output["reward"], judged.output["finished"]) == (1.0, True)
        assert judged.output["metadata"]["metrics"] == {"right": True}
        await wire.end(sid)


RELATIVE = """
    from .base import BaseTool, register_tool

    @register_tool
    class Shout(BaseTool):
        tool_type = "shout"
        def parse_action(self, action):
            return action, action.endswith("!")
        def conduct_action(self, trajectory_id, action, extra_field):
            return action.upper(), False, True
"""


def loaded(folder: Path, text: str, *more: str) -> str:
    """What another Python makes of a file of that text."""
    (folder / "shout.py").write_text(textwrap.dedent(text))
    program = """
        import sys
        from toolyard.loading import load_targets
        from toolyard.server import Server
        from toolyard.settings import Settings
        server = Server(load_targets(["shout.py"]).environments, settings=Settings(tools="python_code"))
        (cls,) = load_targets(["shout.py"]).environments
        print(cls.__module__, sys.modules["verl_tool.servers.tools.base"].__file__)
        print(*server.environments[0]._definition.tools)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *more], cwd=folder, capture_output=True, text=True, check=False
    )
    return done.stdout + done.stderr


def test_a_file_that_is_written_as_a_module_of_verl_tool_is_loaded_as_one(tmp_path):
    said = loaded(tmp_path, RELATIVE)
    assert said.startswith("verl_tool.servers.tools.shout ")
    assert said.splitlines()[-1] == "python_code shout", "one toolbox, with the tools that were named"


def test_where_verl_tool_is_installed_its_own_base_class_is_used(tmp_path):
    base = tmp_path / "verl_tool" / "servers" / "tools" / "base.py"
    base.parent.mkdir(parents=True)
    (base.parent / "__init__.py").touch()
    base.write_text(
        textwrap.dedent(
            """
            registered_tools = {}
            def register_tool(cls):
                registered_tools[cls.tool_type] = cls
                return cls
            class BaseTool:
                tool_type = "base"
                def __init__(self, num_workers=1):
                    self.workers = num_workers
                def get_usage_inst(self):
                    return f"{self.workers} workers"
                def get_observations(self, trajectory_ids, actions, extra_fields):
                    raise NotImplementedError
            """
        )
    )
    assert str(base) in loaded(tmp_path, RELATIVE)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            RELATIVE
            + "    def __init__(self, num_workers=1):\n            raise OSError('no key')\n".replace(
                "    def", "        def"
            ),
            "Shout cannot be used here: OSError: no key",
        ),
        (RELATIVE.replace("@register_tool\n", "\n"), "there is no environment in it"),
        ("import nothing_like_it\n" + textwrap.dedent(RELATIVE), "No module named 'nothing_like_it'"),
    ],
    ids=["constructor", "unregistered", "import"],
)
def test_what_cannot_be_served_is_said_in_words(tmp_path, text, said):
    assert said in loaded(tmp_path, text)
