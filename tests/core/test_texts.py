"""Arguments that are all text, which need no validation."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from toolyard import Environment, tool
from toolyard.core.tool import Text, fit_texts

names = st.sampled_from(["code", "stdin", "written", "said", "task", "größe"])
values = st.one_of(st.text(max_size=3), st.none(), st.integers(), st.just("'\"\\\n{"))
objects = st.dictionaries(names, values, max_size=5)
parameters = st.lists(
    st.builds(Text, names, st.one_of(st.none(), st.text(max_size=3)), given=st.booleans(), written=st.booleans()),
    max_size=5,
    unique_by=lambda text: text.name,
)


def step_by_step(texts, written, said, task):
    """The same, as one would say it."""
    found = {}
    for text in texts:
        value = None
        if text.given:
            value = said[text.name] if text.name in said else task.get(text.name)
        found[text.name] = text.default if value is None else value
        if text.written and text.name in written:
            found[text.name] = written[text.name]
    return found if all(isinstance(value, str) for value in found.values()) else None


@given(parameters, objects, objects, objects)
def test_each_parameter_gets_what_the_model_the_trainer_or_the_task_says_or_its_default(texts, written, said, task):
    assert fit_texts(texts, written, said, task) == step_by_step(texts, written, said, task)


class World(Environment):
    @tool
    async def run(self, code: str, stdin: str = "") -> str:
        return code + stdin


def test_texts_fit_as_validation_has_it_and_what_is_no_text_is_left_to_validation():
    found = World._definition.tools["run"]
    assert found.texts is not None
    assert found.fit({"code": "1 + 1", "unknown": 3}, {}, {}) == ((), {"code": "1 + 1", "stdin": ""})
    for wrong in ({"code": 2}, {}, {"code": "x", "stdin": None}):
        assert fit_texts(found.texts, wrong, {}, {}) is None
        try:
            found.fit(wrong, {}, {})
        except ValidationError:
            continue
        raise AssertionError(f"{wrong} was taken")
