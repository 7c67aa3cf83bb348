"""The result of `run_tests`: which tests passed, which did not, and whether to believe any of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class TestReport:
    """The hidden tests as the host counts them. Trouble of the host raises an exception instead."""

    __test__: ClassVar[bool] = False  # its name would make pytest collect the class

    passed: Sequence[str] = ()
    """Ids as in pytest: `tests/test_x.py::TestIt::test_that[1-2]`."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """By id, pytest's message. The code under test can put anything there: show it only to people."""
    missing: Sequence[str] = ()
    """Expected tests without a result: their process ended early, or ran out of time. They count as failed."""
    voided: str = ""
    """Why nothing in this report may be believed; empty if it may. Either a test passed that no honest program can
    pass, or the program tampered with the report. Then no test counts."""
    output: str = ""
    """pytest's output about failed tests and files that could not be loaded, cut."""

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
