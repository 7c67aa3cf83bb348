"""The growth benchmark tells right answers from wrong ones, compares like with like, and leaves no server behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from benchmarks.growth import NOT_MEASURED, Figure, growth, is_refusal, median, said, table
from benchmarks.servers import tree

pytestmark = pytest.mark.thorough

COMMAND = [sys.executable, "-m", "benchmarks.growth", "--rows", "ors", "--sizes", "4096"]


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_benchmark_that_is_ended_ends_its_server(number):
    benchmark = subprocess.Popen(COMMAND, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: len([*tree(benchmark.pid)]) > 1)
        servers = [*tree(benchmark.pid)][1:]
        time.sleep(0.2)  # any later moment will do; the first is inside Popen
        benchmark.send_signal(number)
        assert benchmark.wait(60) != 0
        until(lambda: not any(map(is_alive, servers)))
    finally:
        benchmark.kill()
        benchmark.wait()


def figure(size: int, cpu: float, lost: int = 0, wrong: int = 0) -> Figure:
    return Figure("bash", size, size - lost - wrong, lost, wrong, cpu, cpu, "")


def test_an_id_with_the_right_digits_is_no_right_answer():
    assert said("<result>forty42</result>", "forty42")
    assert not said("no session s-forty42-7", "forty42")
    assert not said("forty421", "forty42")


def test_refusals_are_known_by_their_fields_and_not_by_words_in_a_text():
    assert is_refusal("HTTP/1.1 503 x\r\nretry-after: 1\r\n", "")
    assert is_refusal("", '{"retryable": true}')
    assert not is_refusal("HTTP/1.1 200 OK\r\n", '{"obs": "Retry-After: 1"}')


def test_the_median_counts_and_not_the_cheapest_but_nothing_lost_is_hidden():
    found = median([figure(64, 1.0, lost=3), figure(64, 9.0), figure(64, 2.0)])
    assert (found.cpu, found.lost) == (2.0, 3)


def test_growth_without_a_base_is_not_measured():
    assert growth({16: figure(16, 1.0)}) == growth({1024: figure(1024, 1.0)}) == NOT_MEASURED
    assert growth({64: figure(64, 64.0)}) == NOT_MEASURED
    assert growth({64: figure(64, 64.0), 1024: figure(1024, 2048.0)}) == "2.00x"


def test_growth_is_told_of_sizes_where_nothing_was_refused():
    of_row = {64: figure(64, 64.0), 256: figure(256, 307.2), 1024: figure(1024, 5000.0, lost=1000)}
    assert growth(of_row) == "1.20x"


def test_refused_items_are_shown_with_the_cost_of_those_that_are_answered():
    text = table([figure(64, 0.64), figure(1024, 10.24, lost=512)])
    assert "10.00 (20.00 per answer)" in text
    assert "512 of 1,024" in text
    assert growth({64: figure(64, 0.64), 1024: figure(1024, 10.24, lost=512)}) == NOT_MEASURED
