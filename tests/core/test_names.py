"""What an environment may be called: its name is part of addresses."""

from __future__ import annotations

import pytest

from tests.worlds import MathEnv
from toolyard.core.errors import DefinitionError
from toolyard.runtime.runtime import by_name


def called(name):
    return type("Named", (MathEnv,), {"name": classmethod(lambda cls: name)})


@pytest.mark.parametrize("name", ["", "a/b", "a b", "a?b", "a%2f", "größe", ".", "..", "a\n"])
def test_a_name_that_no_address_could_hold_is_refused(name):
    with pytest.raises(DefinitionError, match=r"Named is called .*; a name is part of addresses"):
        by_name([called(name)])


@pytest.mark.parametrize("name", ["Math-2.1_x", "7", "a.b"])
def test_letters_digits_dots_and_dashes_are_fine(name):
    assert list(by_name([called(name)])) == [name.lower()]
