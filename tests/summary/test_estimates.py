"""Ratios of means: against the bounds that repeated draws really stay within."""

import math
import random
from statistics import fmean, stdev

import pytest

from hpcdist.base.estimates import Measured, differ, estimate, ratio


def over_runs(*values):
    return Measured(mean=fmean(values), sd=stdev(values), count=len(values), over="runs")


def over_windows(mean, sd, count):
    return Measured(mean=mean, sd=sd, count=count, over="windows")


def alone(mean):
    return Measured(mean=mean, sd=0.0, count=1, over=None)


def test_relative_errors_of_both_sides_add_up_in_squares():
    mine, theirs = over_runs(178.0, 180.0, 182.0), over_runs(97.0, 100.0, 103.0)
    found = ratio(mine, theirs)
    assert found.mean == pytest.approx(1.8)
    assert found.sd == pytest.approx(1.8 * math.hypot(2 / 180, 3 / 100))
    parts = [(2 / 180) ** 2 / 3, (3 / 100) ** 2 / 3]
    freedom = sum(parts) ** 2 / sum(part**2 / 2 for part in parts)
    assert 2 < freedom < 4
    # t(2) is 4.303 and t(4) is 2.776, so the half width lies between those.
    half = math.log(found.interval.high / found.mean)
    assert 2.776 < half / math.sqrt(sum(parts)) < 4.303
    assert found.interval.low * found.interval.high == pytest.approx(found.mean**2)
    assert found.over == "runs"


@pytest.mark.parametrize(
    ("counts", "variations"),
    [((3, 3), (0.02, 0.02)), ((3, 5), (0.05, 0.01)), ((2, 3), (0.01, 0.05)), ((5, 5), (0.1, 0.1))],
    ids=["alike", "the larger one spreads", "the baseline spreads", "both spread widely"],
)
def test_of_many_draws_95_in_100_intervals_hold_the_truth(counts, variations):
    rng = random.Random(8)

    def draw(mean, place):
        values = [mean * (1 + rng.gauss(0, variations[place])) for _ in range(counts[place])]
        return over_runs(*values)

    found = [ratio(draw(180, 0), draw(100, 1)).interval for _ in range(1_000)]
    assert 930 <= sum(one.low <= 1.8 <= one.high for one in found) <= 990


def test_the_inverse_ratio_has_the_inverse_bounds_also_where_little_is_known():
    one, other = over_runs(100.0, 60.0), over_runs(100.0, 140.0)
    there, back = ratio(one, other), ratio(other, one)
    assert 0 < there.interval.low < there.mean < there.interval.high
    assert there.interval.low == pytest.approx(1 / back.interval.high)


def test_a_single_run_is_taken_to_spread_as_the_repeats_of_the_other_side():
    repeated = over_runs(98.0, 100.0, 102.0)
    for found in (ratio(over_windows(180, 50, 9), repeated), ratio(alone(180), repeated)):
        assert found.over == "runs"
        assert found.sd == pytest.approx(1.8 * math.hypot(0.02, 0.02))
        half = 4.3027 * 0.02 * math.sqrt(1 + 1 / 3)
        assert found.interval.high == pytest.approx(1.8 * math.exp(half), rel=1e-4)


def test_single_runs_have_the_spread_of_their_windows_and_say_so():
    found = ratio(over_windows(180, 1.8, 100), over_windows(100, 1.0, 100))
    assert found.over == "windows"
    assert math.log(found.interval.high / 1.8) == pytest.approx(
        1.972 * math.hypot(0.001, 0.001), rel=1e-3
    )


def test_without_any_spread_there_is_no_interval():
    assert ratio(alone(180), alone(100)).interval is None
    assert ratio(alone(180), over_windows(100, 1, 9)).interval is None
    assert estimate(alone(1)).interval is None
    assert differ(estimate(alone(1)), estimate(over_runs(1.0, 2.0))) is None


def test_runs_that_are_all_equal_have_an_interval_of_no_width():
    found = ratio(over_runs(180.0, 180.0), over_runs(100.0, 100.0))
    assert (found.interval.low, found.interval.high) == (1.8, 1.8)


def test_means_differ_where_their_intervals_do_not_overlap():
    one = estimate(over_runs(98.0, 100.0, 102.0))
    assert differ(one, estimate(over_runs(178.0, 180.0, 182.0))) is True
    assert differ(one, estimate(over_runs(101.0, 103.0, 105.0))) is False


def test_in_another_unit_all_of_it_is_as_many_times_as_large():
    whole = ratio(over_runs(178.0, 180.0, 182.0), over_runs(97.0, 100.0, 103.0))
    half = whole.times(0.5)
    assert (half.mean, half.sd) == (pytest.approx(0.9), pytest.approx(whole.sd / 2))
    assert half.interval.low == pytest.approx(whole.interval.low / 2)
    assert half.over == "runs"
