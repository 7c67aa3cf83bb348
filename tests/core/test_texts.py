"""Arguments that are all text, fitted by a function that is made for the parameters of a tool."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from toolyard.core.texts import Text, fit_of

names = st.sampled_from(["code", "stdin", "written", "said", "task", "value", "text_0", "default_0", "fit", "größe"])
values = st.one_of(st.text(max_size=3), st.none(), st.integers(), st.just("'\"\\\n{"))
objects = st.dictionaries(names, values, max_size=5)
parameters = st.lists(
    st.builds(Text, names, st.one_of(st.none(), st.text(max_size=3)), given=st.booleans(), written=st.booleans()),
    min_size=1,
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


@given(parameters, objects, objects, objects)
def test_each_parameter_gets_what_the_model_the_trainer_or_the_task_says_or_its_default(texts, written, said, task):
    assert fit_of(texts)(written, said, task) == step_by_step(texts, written, said, task)


def test_what_is_no_text_is_left_to_validation():
    fit = fit_of([Text("code", None, given=False, written=True)])
    assert fit({"code": "1 + 1"}, {}, {}) == ("1 + 1",)
    assert fit({"code": 2}, {}, {}) is None
    assert fit({}, {"code": "of the trainer"}, {"code": "of the task"}) is None
