"""Student's t: against printed tables, and against scipy where that is installed."""

import math

import pytest

from hpcdist.base.student import (
    Interval,
    Sample,
    as_spread,
    f_quantile,
    interval_of,
    quantile,
    two_sided,
    welch,
)

TABLE = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 9: 2.262, 29: 2.045, 120: 1.980}
"""Two-sided, 95 %; from any textbook."""


@pytest.mark.parametrize(("freedom", "t"), TABLE.items())
def test_quantiles_are_those_of_the_tables(freedom, t):
    assert quantile(0.95, freedom) == pytest.approx(t, abs=5e-4)
    assert two_sided(t, freedom) == pytest.approx(0.05, abs=1e-4)


def test_one_degree_of_freedom_is_the_cauchy_distribution_and_infinitely_many_the_normal_one():
    for t in (0.1, 1.0, 3.0, 100.0):
        assert two_sided(t, 1) == pytest.approx(1 - 2 * math.atan(t) / math.pi, rel=1e-10)
        assert two_sided(t, math.inf) == pytest.approx(math.erfc(t / 2**0.5))
    assert quantile(0.95, math.inf) == pytest.approx(1.959964, abs=1e-6)
    assert two_sided(0.0, 7) == 1.0


def test_all_is_as_scipy_has_it():
    stats = pytest.importorskip("scipy.stats")
    for freedom in (1, 1.37, 2.5, 8, 41.9, 1000, 1e4):
        for t in (0.0, 1e-3, 0.7, 2.0, 8.0, 40.0):
            assert two_sided(t, freedom) == pytest.approx(2 * stats.t.sf(t, freedom), rel=1e-9)
        assert quantile(0.95, freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-9)
    first, second = [98.0, 101.0, 103.0], [92.0, 95.5, 91.0, 94.0]
    expected = stats.ttest_ind(second, first, equal_var=False)
    found = welch(sample(first), sample(second))
    assert found.p == pytest.approx(expected.pvalue)
    low, high = expected.confidence_interval(0.95)
    assert (found.interval.low, found.interval.high) == pytest.approx((low, high))


def sample(values):
    mean = sum(values) / len(values)
    sd = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
    return Sample(mean=mean, sd=sd, count=len(values))


def test_the_interval_of_a_mean_is_known_from_two_values_on():
    # sd 2, standard error 2 / sqrt(3), t(2) 4.3027
    found = interval_of([98.0, 100.0, 102.0])
    assert (found.low, found.high) == pytest.approx((100 - 4.9683, 100 + 4.9683), abs=1e-4)
    assert interval_of([98.0]) is None
    assert interval_of([5.0, 5.0]) == Interval(low=5.0, high=5.0)


def test_intervals_overlap_where_they_share_a_value():
    one = Interval(low=1.0, high=2.0)
    assert one.overlaps(Interval(low=2.0, high=3.0))
    assert one.overlaps(Interval(low=0.0, high=9.0))
    assert not one.overlaps(Interval(low=2.1, high=3.0))
    assert not Interval(low=2.1, high=3.0).overlaps(one)


def test_welch_has_the_textbook_answer():
    # Equal sizes and spreads: the degrees of freedom are those of the pooled test, 8.
    found = welch(Sample(mean=10.0, sd=1.0, count=5), Sample(mean=12.0, sd=1.0, count=5))
    error = math.sqrt(2 / 5)
    assert found.mean == 2.0
    assert found.p == pytest.approx(two_sided(2 / error, 8))
    assert found.interval.high == pytest.approx(2 + 2.306004 * error, abs=1e-5)


def test_a_single_value_is_taken_to_spread_as_the_others_do():
    many, one = Sample(mean=100.0, sd=2.0, count=4), Sample(mean=94.0, sd=0.0, count=1)
    found = as_spread(many, one, spread=many)
    error = 2 * math.sqrt(1 + 1 / 4)
    assert found.p == pytest.approx(two_sided(6 / error, 3))
    assert found.interval.low == pytest.approx(-6 - 3.182446 * error, abs=1e-5)


def test_values_that_do_not_spread_differ_surely_or_not_at_all():
    flat = Sample(mean=10.0, sd=0.0, count=3)
    assert welch(flat, flat).p == 1.0
    assert welch(flat, Sample(mean=11.0, sd=0.0, count=3)).p == 0.0


F_TABLE = {(1, 1): 161.45, (1, 10): 4.965, (2, 5): 5.786, (5, 2): 19.296, (10, 10): 2.978}
"""95 %; from any textbook."""


@pytest.mark.parametrize(("freedoms", "ratio"), F_TABLE.items())
def test_quantiles_of_f_are_those_of_the_tables(freedoms, ratio):
    assert f_quantile(0.95, *freedoms) == pytest.approx(ratio, rel=3e-4)
