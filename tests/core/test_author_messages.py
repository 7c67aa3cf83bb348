"""What an author reads about a class that cannot work as it is written: the whole sentence, when it is defined."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

import pytest

from tests.worlds import OneTask
from toolyard import Environment, Toolset, tool
from toolyard.core.errors import DefinitionError


class Odd:
    """A type that no JSON describes."""


def defined(body: str, base: type = Environment) -> type:
    """The class `Words` with this body, as an author writes it."""
    there = {"Base": base, "tool": tool, "Iterator": Iterator, "Odd": Odd}
    exec(f"class Words(Base):\n{textwrap.indent(textwrap.dedent(body), '    ')}", there)
    made = there["Words"]
    assert isinstance(made, type)
    return made


def refused(body: str, base: type = Environment) -> str:
    with pytest.raises(DefinitionError) as caught:
        defined(body, base)
    return str(caught.value)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            "@classmethod\ndef list_splits(cls) -> str: return 'train'",
            "Words.list_splits is written to return a str; return a list, such as ['train', 'test']",
        ),
        (
            "@classmethod\ndef list_tasks(cls, split): yield {}",
            "Words.list_tasks yields; return a list of dicts, one for each task",
        ),
        (
            "@classmethod\nasync def list_splits(cls): yield 'train'",
            "Words.list_splits yields; return a list, such as ['train', 'test']",
        ),
        (
            "def setup(self): yield",
            "Words.setup yields; write it without yield, and put what follows the yield into teardown()",
        ),
        ("def get_prompt(self): yield 'a'", "Words.get_prompt yields; return the whole prompt"),
        (
            "list_splits = ['train']",
            "Words.list_splits is ['train'], a list; write it as a method, @classmethod and below it "
            "def list_splits(cls)",
        ),
        (
            "name = 'words'",
            "Words.name is 'words', a str; write it as a method, @classmethod and below it def name(cls)",
        ),
        ("get_prompt = 'Go.'", "Words.get_prompt is 'Go.', a str; write it as a method: def get_prompt(self)"),
        (
            "@property\ndef get_prompt(self): return ''",
            "Words.get_prompt is a property; write it as a method: def get_prompt(self)",
        ),
        (
            "def list_tasks(self, split): return []",
            "Words.list_tasks is asked of the class: it needs @classmethod. Write @classmethod above "
            "def list_tasks(cls, split)",
        ),
        (
            "@classmethod\ndef list_tasks(cls): return []",
            "Words.list_tasks does not take the arguments that the server gives it: it is written as list_tasks(cls); "
            "write def list_tasks(cls, split)",
        ),
        (
            "def get_prompt(): return ''",
            "Words.get_prompt does not take the arguments that the server gives it: it is written as get_prompt(); "
            "write def get_prompt(self)",
        ),
        (
            "@tool('find')\ndef look(self) -> str: return ''",
            "Words.look: write @tool(name='find') instead of @tool('find')",
        ),
        (
            "@tool\n@property\ndef look(self) -> str: return ''",
            "@tool stands above a property; it marks a method, as def look(self, place: str)",
        ),
        (
            "@property\n@tool\ndef look(self) -> str: return ''",
            "Words.look is a property; a tool is a method: leave out @property",
        ),
        (
            "@tool\nclass look: ...",
            "@tool stands above the class look; it marks a method, as def look(self, place: str)",
        ),
        (
            "@tool(name=3)\ndef look(self) -> str: return ''",
            "Words.look: @tool(name=3) is no name; write a str, such as 'find'",
        ),
        (
            "@tool\ndef secrets(self) -> str: return ''",
            "Words.secrets: a tool cannot be called 'secrets', which is an attribute of every session; write "
            "@tool(name='secrets') above a method of another name",
        ),
        (
            "@tool\ndef setup(self) -> str: return ''",
            "Words.setup: a tool cannot be called 'setup', which is a method of every environment",
        ),
        (
            "@tool\nasync def look(self): yield ''",
            "Words.look: a tool returns its output, it does not yield",
        ),
        (
            "@tool(timeout=-1)\ndef look(self) -> str: return ''",
            "Words.look: timeout is -1; it must be a positive number of seconds",
        ),
        ("max_turns = 0", "Words.max_turns is 0; it must be a positive whole number, or None"),
        (
            "@tool\ndef look(self, place: object, way: Odd) -> str: return ''",
            "Words.look: parameter 'way' is of type Odd, which a model cannot write as JSON; take str, int, float, "
            "bool, list, dict, Literal, an Enum, a dataclass or a pydantic model",
        ),
        ("toolsets = Odd", "Words.toolsets is the class Odd; it must be a list of classes"),
        ("toolsets = 'bash'", "Words.toolsets is 'bash'; it must be a list of classes"),
        ("toolsets = ['bash']", "Words.toolsets lists 'bash', which is not a class"),
        (
            "@tool\ndef look(place: str, far: bool = False) -> str: return place",
            "Words.look: look(place: str, far: bool = False) has no self; write "
            "def look(self, place: str, far: bool = False), or put @staticmethod above @tool",
        ),
        (
            "@tool\ndef look() -> str: return ''",
            "Words.look: look() has no self; write def look(self), or put @staticmethod above @tool",
        ),
        (
            "@tool\ndef look(place) -> str:\n    '''Look.\n\n    Args:\n        place: Where.\n    '''",
            "Words.look: look(place) has no self; write def look(self, place), or put @staticmethod above @tool",
        ),
        (
            "def __init__(self, task_spec={}, secrets={}): self.left = 3",
            "Words.__init__ does not call the constructor of Environment, which sets self.task_spec and self.secrets: "
            "begin it with super().__init__(task_spec, secrets)",
        ),
        (
            "def __init__(self, task): super().__init__(task)",
            "Words.__init__ must accept the keywords task_spec and secrets: missing a required argument: 'task'. Write "
            "def __init__(self, task_spec={}, secrets={})",
        ),
    ],
)
def test_an_author_reads_what_is_wrong_and_what_to_write(body, said):
    assert refused(body) == said


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("@classmethod\ndef list_task(cls, split)", "list_tasks(cls, split)"),
        ("def list_taks(self, split)", "list_tasks(cls, split)"),
        ("@staticmethod\ndef list_split()", "list_splits(cls)"),
        ("def get_promt(self)", "get_prompt(self)"),
        ("def getPrompt(self)", "get_prompt(self)"),
        ("async def set_up(self)", "setup(self)"),
        ("def tearDown(self)", "teardown(self)"),
        ("def tear_down(self)", "teardown(self)"),
        ("def teardwon(self)", "teardown(self)"),
        ("def call_tasks_tool(self, name, arguments)", "call_task_tool(self, name, arguments)"),
    ],
)
def test_a_near_miss_of_a_hook_is_refused_with_the_hook_that_was_meant(written, meant):
    name = written.partition("def ")[2].partition("(")[0]
    assert refused(f"{written}: return []") == (
        f"Words.{name} is no hook, and nothing calls it: did you mean {meant}? If it is a method of your own, begin "
        f"its name with _"
    )


def test_the_near_miss_of_a_toolset_and_of_a_class_beside_it_are_refused_too():
    assert "Words.tear_down is no hook, and nothing calls it: did you mean teardown(self)?" in refused(
        "def tear_down(self): ...", Toolset
    )

    class Mixin:
        def set_up(self): ...

    with pytest.raises(DefinitionError, match=r"Mixin\.set_up is no hook, .* did you mean setup\(self\)\?"):
        type("Mixed", (Mixin, Environment), {})


@pytest.mark.parametrize(
    "body",
    [
        "def _list_task(self, split): ...",  # its own, by its name
        "def get_message(self): ...\ndef get_prompt(self): ...",  # one of the messages that it does not need
        "def get_task_at(self, split, index): ...",
        "def list_tags(self): ...",
        "def workplace(self): ...",
        "def set_task(self, split, index): ...",
        "def set_prompt(self): ...",
        "def list_pools(self): ...",
        "def forks(self): ...",
        "def named(self): ...",
        "def set_up(self): ...\ndef setup(self): self.set_up()",
        "def set_up(self): ...\nasync def look(self): self.set_up()",
        "def set_up(self, board): ...",  # the server could not call it
        "@tool\ndef list_task(self, split: str) -> str: ...",  # offered to the model under this name
        "list_task = 3",
        "def get_promt(self): ...\nget_prompt = get_promt",
        "def set_up(self): ...\nsteps = property(lambda self: self.set_up())",
        "def __init__(self, task_spec={}, secrets={}):\n    self._keep(task_spec)\n"
        "def _keep(self, task_spec): self.task_spec, self.secrets = task_spec, {}",
        "def __init__(self, **given): Base.__init__(self, **given)",
        "@tool\ndef look(this, place: str) -> str: ...",
        "@staticmethod\n@tool\ndef look(place: str) -> str: ...",
    ],
)
def test_what_merely_looks_like_a_mistake_is_served(body):
    assert issubclass(defined(body), Environment)


def test_a_helper_that_a_parent_uses_may_be_overridden():
    class Parent(Environment):
        def setup(self):
            self.set_up()

        def set_up(self): ...

    assert issubclass(defined("def set_up(self): ...", Parent), Parent)


def test_a_class_that_has_its_hooks_may_have_helpers_of_nearly_their_names():
    made = defined("@classmethod\ndef list_task(cls, split): ...\n@classmethod\ndef list_split(cls): ...", OneTask)
    assert issubclass(made, OneTask)
