"""What `run_tests` tells an author: which tests passed, which did not, and whether any of it may be believed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class TestReport:
    """The hidden tests as the host counts them. Trouble of ours is an exception, and never one of these."""

    __test__: ClassVar[bool] = False  # or pytest takes the class for a test, for its name

    passed: Sequence[str] = ()
    """By id, as pytest has it: `tests/test_x.py::TestIt::test_that[1-2]`."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """By id, what pytest says of them. The code under test can put anything there: it is for people to read."""
    missing: Sequence[str] = ()
    """Expected tests of which nothing was reported: their process ended early, or ran out of time. They count as
    failed."""
    voided: str = ""
    """Why nothing in this report may be believed, if that is so: a test passed that no honest program can pass, or
    somebody tampered with the report. Then no test counts."""
    output: str = ""
    """What pytest says of tests that failed and of files that could not be loaded, cut."""

    @property
    def ok(self) -> bool:
        """Every expected test passed, and there is no sign of cheating."""
        return not self.voided and bool(self.passed) and not self.failed and not self.missing

    @property
    def total(self) -> int:
        return len(self.passed) + len(self.failed) + len(self.missing)

    @property
    def fraction(self) -> float:
        """The share of tests that passed; 0 if the report is void."""
        return 0.0 if self.voided or not self.total else len(self.passed) / self.total

    def __str__(self) -> str:
        if self.voided:
            return f"void: {self.voided}"
        return f"{len(self.passed)} of {self.total} tests passed"
