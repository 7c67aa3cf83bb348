"""The example with a repository: whoever repairs it is paid, by how much of it, and nobody else."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping

import pytest

from toolyard import Client
from toolyard.client import Environment
from toolyard.loading import builtin_examples, load_targets
from toolyard.testing import check_environment, running

(path,) = (path for path in builtin_examples() if path.stem == "repair")
(environment,) = load_targets([str(path)]).environments
module = sys.modules[environment.__module__]

MERGING = """
def merge(bookings):
    merged = []
    for start, end in sorted(bookings):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged

def total(bookings):
    return sum(end - start for start, end in merge(bookings))
"""
LINES = """
import re

def read(text):
    entries = []
    for line in filter(None, map(str.strip, text.splitlines())):
        found = re.fullmatch(r"(\\w+)\\s+(-?)(\\d+)[.](\\d\\d)", line)
        if not found:
            raise ValueError(f"not an entry: {line}")
        entries.append((found[1], int(found[2] + found[3] + found[4])))
    return entries
"""
ACCOUNTS = """
def balances(entries):
    return {name: sum(cents for who, cents in entries if who == name) for name, _ in entries}
"""
SHOWING = """
def report(balances):
    ordered = sorted(balances, key=lambda name: (-balances[name], name))
    return "\\n".join(f"{name} {balances[name] / 100:.2f}" for name in ordered)
"""
WORDS = """
import re

def slug(title):
    return "-".join(re.findall(r"[^\\W_]+", title.lower()))
"""
SITES = """
from slugs.words import slug

class Site:
    def __init__(self):
        self.taken = set()

    def add(self, title):
        address = plain = slug(title) or "page"
        number = 1
        while address in self.taken:
            number += 1
            address = f"{plain}-{number}"
        self.taken.add(address)
        return address
"""
REPAIRS = {
    "intervals": {"intervals/merging.py": MERGING},
    "ledger": {"ledger/lines.py": LINES, "ledger/accounts.py": ACCOUNTS, "ledger/showing.py": SHOWING},
    "slugs": {"slugs/words.py": WORDS, "slugs/sites.py": SITES},
}
"""What an agent writes that has understood."""


@pytest.fixture(scope="module")
def served() -> Iterator[Environment]:
    with running([environment]) as server, Client(server.url) as client:
        yield client.environment("repair")


def play(served: Environment, name: str, files: Mapping[str, str]) -> tuple[str, float | None]:
    split, index = next((split, names.index(name)) for split, names in module.SPLITS.items() if name in names)
    with served.session(split=split, index=index) as session:
        for path, text in files.items():
            assert session.call_tool("write_file", {"path": path, "text": text}).text == "written"
        output = session.call_tool("submit", {})
    assert output.finished
    return output.text, output.reward


@pytest.mark.thorough
@pytest.mark.parametrize("name", REPAIRS)
def test_every_repository_can_be_repaired_and_is_worth_nothing_before(served: Environment, name: str):
    assert play(served, name, REPAIRS[name]) == ("100% of it is repaired.", 1)
    assert play(served, name, {}) == ("0% of it is repaired.", 0)


def test_half_of_the_work_is_worth_half(served: Environment):
    assert play(served, "ledger", {"ledger/showing.py": SHOWING}) == ("50% of it is repaired.", 0.5)


def test_what_breaks_something_else_is_worth_nothing(served: Environment):
    broken = LINES.replace("raise ValueError", "print")
    assert play(served, "ledger", {**REPAIRS["ledger"], "ledger/lines.py": broken})[1] == 0


def test_an_agent_that_pleases_every_test_is_found_out(served: Environment):
    pleasing = "class Same(str):\n    __eq__ = lambda *_: True\ndef slug(title): return Same()\n"
    assert play(served, "slugs", {"slugs/words.py": pleasing}) == ("Your program tampered with the tests.", 0)


def test_the_agent_sees_the_repository_and_no_hidden_test(served: Environment):
    with served.session(split="train", index=0) as session:
        found = session.call_tool("bash", {"command": "find . -type f | sort; cat README.md"}).text
        assert "./intervals/merging.py" in found
        assert "TestKept" not in session.call_tool("bash", {"command": "grep -r TestKept . || true"}).text


@pytest.mark.thorough
def test_it_passes_the_check_without_a_warning():
    report = check_environment(environment, episodes=2, seconds=20)
    assert report.ok, str(report)
    assert report.of("warning") == [], str(report)


def test_it_is_not_served_unless_it_is_named():
    assert environment.__name__ not in [each.__name__ for each in load_targets([]).environments]
