"""Means, intervals and pass@k: cases counted by hand, and many that SciPy confirms."""

from __future__ import annotations

import itertools
import math
import random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from toolyard.episodes.statistics import Summary, beta_share, share_interval, t_quantile

# By hand.


def test_attempts_are_averaged_for_each_task_before_tasks_are():
    summary = Summary([[1, 1, 1, 1], [0]])
    assert (summary.mean, summary.scored) == (0.5, 5)


def test_nothing_scored_has_no_mean_no_interval_and_no_chance():
    for none in (Summary([]), Summary([[], []])):
        assert (none.mean, none.interval, none.pass_at(1), none.pass_all(1), none.scored) == (None, None, None, None, 0)


def test_one_task_has_a_mean_and_no_interval():
    assert (Summary([[0.5, 0.7]]).mean, Summary([[0.5, 0.7]]).interval) == (pytest.approx(0.6), None)


def test_the_interval_of_a_mean_is_students():
    # 1, 2, 3, 4: mean 2.5, deviation 1.2910, and t of 3 degrees of freedom is 3.1824
    assert Summary([[1], [2], [3], [4]]).interval == pytest.approx((2.5 - 2.0543, 2.5 + 2.0543), abs=1e-4)


def test_all_right_and_all_wrong_have_intervals_that_are_no_points():
    assert Summary([[0]] * 20).interval == (0.0, pytest.approx(0.16843, abs=1e-5))
    assert Summary([[1]] * 20).interval == (pytest.approx(0.83157, abs=1e-5), 1.0)
    assert Summary([[1]]).interval == (pytest.approx(0.025), 1.0)


def test_with_many_tasks_a_share_has_students_interval_as_well():
    low, high = Summary([[1], [0]] * 100).interval
    assert high - low == pytest.approx(2 * 1.97196 * 0.501255 / math.sqrt(200), abs=1e-5)


def test_pass_at_k_is_the_chance_that_one_of_k_passes():
    tried = [[1, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]]
    assert Summary(tried).pass_at(1) == pytest.approx((0.25 + 1 + 0) / 3)
    assert Summary(tried).pass_at(2) == pytest.approx((0.5 + 1 + 0) / 3)
    assert Summary(tried).pass_at(4) == pytest.approx(2 / 3)
    assert Summary(tried).pass_all(1) == Summary(tried).pass_at(1)
    assert Summary(tried).pass_all(2) == pytest.approx(1 / 3)
    assert Summary([[1, 1, 0]]).pass_all(2) == pytest.approx(1 / 3)


def test_tasks_that_were_scored_too_seldom_are_left_out_and_counted():
    summary = Summary([[1, 0], [1], []])
    assert (summary.pass_at(2), summary.too_few(2), summary.too_few(1)) == (1.0, 2, 1)
    assert summary.pass_at(3) is None


def test_what_passes_is_for_the_caller_to_say():
    assert Summary([[0.4], [0.6]]).pass_at(1) == 0
    assert Summary([[0.4], [0.6]]).pass_at(1, least=0.5) == 0.5


# Against SciPy.


@pytest.mark.parametrize("freedom", [1, 2, 3, 7, 19, 49, 199, 1999, 100_000])
def test_the_quantile_of_students_t_is_scipys(freedom):
    assert t_quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-8)


@pytest.mark.parametrize("n", [1, 2, 5, 20, 199])
def test_the_interval_of_a_share_is_scipys(n):
    for passed in {0, 1, n // 3, n // 2, n - 1, n}:
        wanted = stats.binomtest(passed, n).proportion_ci(0.95, "exact")
        assert share_interval(passed, n) == pytest.approx((wanted.low, wanted.high), abs=1e-9)


@given(st.floats(0.5, 500), st.floats(0.5, 500), st.floats(0.001, 0.999))
def test_the_beta_function_is_scipys(a, b, x):
    assert beta_share(a, b, x) == pytest.approx(stats.beta.cdf(x, a, b), abs=1e-10)


def test_the_interval_of_a_mean_is_scipys():
    chosen = random.Random(7)
    for n in (2, 3, 10, 50, 300):
        means = [chosen.gauss(0, 3) for _ in range(n)]
        wanted = stats.t.interval(0.95, n - 1, loc=fmean(means), scale=stats.sem(means))
        assert Summary([[mean] for mean in means]).interval == pytest.approx(wanted, rel=1e-7)


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_pass_at_k_is_what_all_choices_of_k_attempts_give(k):
    for returns in ([1, 0, 0, 1, 0], [0] * 5, [1] * 5, [0, 0, 0, 0, 1, 1, 1]):
        choices = list(itertools.combinations(returns, k))
        assert Summary([returns]).pass_at(k) == pytest.approx(fmean(map(any, choices)))
        assert Summary([returns]).pass_all(k) == pytest.approx(fmean(map(all, choices)))
