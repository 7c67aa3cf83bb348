"""Turns the results of the real file and its twins into a report. Only the host knows which file was which."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from toolyard.sandboxes.grading.finding import Test
from toolyard.sandboxes.grading.records import Key, Record, Records
from toolyard.sandboxes.grading.twins import Twin, Written
from toolyard.sandboxes.verdicts import TestReport

_OUTPUT_MOST = 64 * 1024


@dataclass(slots=True)
class Tally:
    passed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    voided: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def report(self, expected: Sequence[str] | None) -> TestReport:
        """A report of the expected tests only, if the author named any. `test_x.py::test_that` names all of its
        cases."""
        ids = [*self.passed, *self.failed, *self.missing]
        if expected is not None:
            self.passed = [id for id in self.passed if _is_named(id, expected)]
            self.failed = {id: text for id, text in self.failed.items() if _is_named(id, expected)}
            self.missing = [id for id in self.missing if _is_named(id, expected)]
            self.missing += [name for name in expected if not any(_is_named(id, [name]) for id in ids)]
        output = "\n\n".join([*self.notes, *(f"{id}\n{text}" for id, text in self.failed.items())])[:_OUTPUT_MOST]
        if not self.voided:
            return TestReport(self.passed, self.failed, self.missing, output=output)
        failed = {**dict.fromkeys(self.passed, "it does not count: the report is void"), **self.failed}
        return TestReport((), failed, self.missing, self.voided[0], output)


def judge(written: Written, real: Records, twins: Sequence[Records], tally: Tally) -> None:
    """Count the tests of one file."""
    for test in written.tests:
        if test.counts:
            _count(f"{written.path}::{test.name}", test, real.tests, tally)
    known = {test.name for test in written.tests}
    for (name, _), record in real.tests.items():
        if name not in known and record.outcome == "failed":  # a test made at run time
            tally.failed[record.id] = record.text
    tally.voided += _reasons(written, real, twins)
    tally.notes += [f"{written.path}: {text}" for text in real.broken]
    if real.ended:
        tally.notes.append(f"{written.path}: {real.ended}")


def _count(name: str, test: Test, real: Mapping[Key, Record], tally: Tally) -> None:
    """The names of cases come from the file, where it has them, and not from the report."""
    found = {case: record for (base, case), record in real.items() if base == test.name}
    for case, record in found.items():
        id = name + test.ids[case] if case in test.ids else record.id
        if record.outcome == "passed":
            tally.passed.append(id)
        else:
            tally.failed[id] = record.text
    if test.ids:
        tally.missing += [name + id for case, id in test.ids.items() if case not in found]
    elif not found and test.cases == 1:
        tally.missing.append(name)
    else:
        tally.missing += [f"{name}[case {at} of {test.cases}]" for at in range(len(found) + 1, test.cases + 1)]


def _reasons(written: Written, real: Records, twins: Sequence[Records]) -> Iterator[str]:
    for records in (real, *twins):
        if records.tampered:
            yield f"{written.path}: {records.tampered}"
    for twin, records in zip(written.twins, twins, strict=True):
        for key, reason in _contradictions(twin, real.tests, records):
            yield f"{written.path}::{key[0]}: {reason}"


def _contradictions(twin: Twin, real: Mapping[Key, Record], records: Records) -> Iterator[tuple[Key, str]]:
    """If the real test fails, its changed twin may pass: the program is wrong. Both may be missing. A twin that ended
    early says nothing about the tests that it did not reach."""
    for key, record in records.tests.items():
        if record.outcome == "passed" and twin.kinds.get(key[0]) == "plain":
            yield key, "an assertion that cannot hold was passed"
    for key, record in real.items():
        if record.outcome != "passed" or twin.kinds.get(key[0], "same") == "same" or key in twin.same_cases:
            continue
        if key not in records.tests:
            if records.complete:
                yield key, "it passed, and nothing was reported of its twin"
        elif records.tests[key].outcome == "passed":
            yield key, "it passed, and so did a twin of it that contradicts it"


def _is_named(id: str, names: Sequence[str]) -> bool:
    return any(id == name or id.startswith(f"{name}[") for name in names)
