"""Arguments that are all text, fitted by a function that is made for the parameters of a tool."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolyard.core.texts import UNFIT, Text, caller_of

names = st.sampled_from(["code", "stdin", "written", "said", "task", "value", "text_0", "default_0", "fit", "größe"])
values = st.one_of(st.text(max_size=3), st.none(), st.integers(), st.just("'\"\\\n{"))
objects = st.dictionaries(names, values, max_size=5)
parameters = st.lists(
    st.builds(Text, names, st.one_of(st.none(), st.text(max_size=3)), given=st.booleans(), written=st.booleans()),
    max_size=5,
    unique_by=lambda text: text.name,
)


def step_by_step(texts, written, said, task):
    """The same, as one would say it."""
    found = []
    for text in texts:
        if not text.given:
            value = written.get(text.name, text.default)
        elif text.written and text.name in written:
            value = written[text.name]
        else:
            value = said[text.name] if text.name in said else task.get(text.name)
            value = text.default if value is None else value
        found.append(value)
    return tuple(found) if all(isinstance(value, str) for value in found) else None


class Owner:
    def method(self, *texts):
        return texts


@given(parameters, objects, objects, objects)
def test_each_parameter_gets_what_the_model_the_trainer_or_the_task_says_or_its_default(texts, written, said, task):
    called = caller_of("method", texts)(Owner(), written, said, task)
    assert (None if called is UNFIT else called) == step_by_step(texts, written, said, task)


def test_what_is_no_text_is_left_to_validation():
    call = caller_of("method", [Text("code", None, given=False, written=True)])
    assert call(Owner(), {"code": "1 + 1"}, {}, {}) == ("1 + 1",)
    assert call(Owner(), {"code": 2}, {}, {}) is UNFIT
    assert call(Owner(), {}, {"code": "of the trainer"}, {"code": "of the task"}) is UNFIT


@pytest.mark.parametrize("name", ["class", "two words", "x(); import os; os.abort", "größe", "ﬁle", ""])
def test_a_method_whose_name_cannot_be_written_is_called_otherwise(name):
    assert caller_of(name, [Text("code", None, given=False, written=True)]) is None
