"""Confused texts of a model: they are read as quickly as any other."""

from __future__ import annotations

import importlib
import itertools
import time

import pytest

from toolyard.core.reading import tools_of
from toolyard.tools import TOOLS

OPENINGS = [
    *("<python>", "```python\n", "x```input\nx", "<bash>", "```bash ", "``` bash", "```terminal ", "<sql>", "```sql\n"),
    *("<tool_call>", "<tool_call>{", "<mcp_call>", "<search>", "<search> \n", "```search ", "search: ", "google: "),
    *("<answer>", "<solution>", "<think>", "<think></think> ", "</think> ```", "<think> ``` ", "<piston>", "<cpp>"),
    *("<piston><file>", "<piston><file name='", "<language>", "{", "[", "`", "``", "```", "\n", " ", "<", "a"),
]


@pytest.mark.parametrize("name", TOOLS)
def test_a_text_of_nothing_but_openings_holds_nobody_up(name):
    module, _, attribute = TOOLS[name].partition(":")
    forms = [tool.form for tool in tools_of(getattr(importlib.import_module(module), attribute)) if tool.form]
    for form in forms:
        for start, opening, end in itertools.product(("", "```"), OPENINGS, ("!", "</piston>")):
            text = start + opening * (48_000 // len(opening)) + end
            began = time.perf_counter()
            form.read(text)
            form.answer(text, "result")
            assert time.perf_counter() - began < 1, f"{start!r}, {opening!r} over and over, then {end!r}"
