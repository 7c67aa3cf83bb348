"""The benchmark of recording measures what it claims: cost against no recording, load without loss, a large store."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from benchmarks.episodes import STEPS_OF_EPISODE, figure, fill
from toolyard.episodes.store import Filter, Store

pytestmark = pytest.mark.thorough


def benchmark(*words: str) -> str:
    command = [sys.executable, "-m", "benchmarks.episodes", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=150, check=True).stdout


def test_its_large_store_is_one_as_a_server_makes_them(tmp_path):
    fill(tmp_path / "x.db", 500)
    with Store([tmp_path / "x.db"]) as store:
        found = list(store.episodes())
        assert len(found) == 50
        assert all(one.complete and len(store.steps(one)) == one.steps == STEPS_OF_EPISODE for one in found)
        assert len(list(store.episodes(Filter(reward="<0.5")))) == 20
        assert [one.number for one, step, _ in store.search("marker25", limit=9)] == [25]


def test_a_short_load_is_recorded_without_a_loss():
    printed = benchmark("--only", "lasting", "--lasting", "1")
    made, complete = re.search(r"complete in the store \| +([\d,]+), ([\d,]+) \|", printed).groups()
    assert made == complete
    assert re.search(r"episodes left out +\| +0 \|", printed)


def test_a_store_is_asked_everything():
    printed = benchmark("--only", "store", "--steps", "2000")
    assert len(re.findall(r"^\| .* \| +[\d.,]+ ms \|$", printed, re.MULTILINE)) == 11


def test_a_figure_that_the_metrics_do_not_have_ends_it():
    assert figure("a 1\ntoolyard_x 12\n", "toolyard_x") == 12
    with pytest.raises(SystemExit, match="toolyard_y"):
        figure("toolyard_x 12\n", "toolyard_y")
