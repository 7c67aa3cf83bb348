"""Every conformance case of ORS has a test with its number."""

from __future__ import annotations

import re
from pathlib import Path


def test_cases_1_to_64_each_have_a_test():
    sources = [path.read_text() for path in Path(__file__).parent.glob("test_ors_*.py")]
    tested = {int(number) for source in sources for number in re.findall(r"def test_E(\d+)_", source)}
    assert set(range(1, 65)) - tested == set()
