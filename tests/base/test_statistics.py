"""Means and their ratios: against printed tables, scipy, and the bounds that draws stay within."""

import itertools
import math
import random

import pytest

from hpcdist.base.statistics import (
    Interval,
    Measure,
    differs,
    holm,
    measure,
    quantile,
    ratios,
    ratios_of_all,
    spread_measure,
    two_sided,
)


def over_runs(*values):
    return measure(values)


def over_windows(mean, sd, count):
    return spread_measure(mean, sd, count, over="windows")


def ratio(mine, baseline):
    (only,) = ratios([(mine, baseline)])
    return only


ALONE = Measure(mean=180.0)
HUNDRED = over_runs(98.0, 100.0, 102.0)


def test_relative_errors_of_both_sides_add_up_in_squares():
    found = ratio(over_runs(178.0, 180.0, 182.0), over_runs(97.0, 100.0, 103.0))
    assert found.mean == pytest.approx(1.8)
    assert found.sd == pytest.approx(1.8 * math.hypot(2 / 180, 3 / 100))
    assert found.interval.low * found.interval.high == pytest.approx(found.mean**2)
    assert found.over == "runs"
    half = found.times(0.5)
    assert (half.mean, half.sd) == (pytest.approx(0.9), pytest.approx(found.sd / 2))
    assert half.interval.low == pytest.approx(found.interval.low / 2)


@pytest.mark.parametrize(
    ("mine", "base", "over", "half"),
    [
        (ALONE, HUNDRED, "runs", 4.3027 * 0.02 * math.sqrt(1 + 1 / 3)),
        (over_windows(180, 50, 9), HUNDRED, "runs", 4.3027 * 0.02 * math.sqrt(1 + 1 / 3)),
        (over_runs(180.0, 180.0), over_runs(100.0, 100.0), "runs", 0.0),
        (ALONE, Measure(mean=100.0), None, None),
    ],
    ids=["a single run", "windows", "equal runs", "no spread"],
)
def test_a_side_without_repeats_spreads_as_the_other_one(mine, base, over, half):
    found = ratio(mine, base)
    assert (found.over, found.interval is None) == (over, half is None)
    if half is None:
        assert differs(found) is None
    else:
        assert math.log(found.interval.high / 1.8) == pytest.approx(half, rel=1e-3, abs=1e-12)


def test_welch_has_the_textbook_answer():
    # Equal sizes and relative spreads: the degrees of freedom are those of the pooled test, 8.
    mine = spread_measure(12.0, 0.12, 5, over="runs")
    found = ratio(mine, spread_measure(10.0, 0.1, 5, over="runs"))
    error = math.sqrt(2 / 5) * 0.01
    assert found.p == pytest.approx(two_sided(math.log(1.2) / error, 8))
    assert found.interval.high == pytest.approx(1.2 * math.exp(2.306004 * error))


def test_all_is_as_scipy_has_it():
    stats = pytest.importorskip("scipy.stats")
    for freedom in (1, 1.37, 2.5, 8, 41.9, 1000, 1e4, math.inf):
        for t in (0.0, 1e-3, 0.7, 2.0, 8.0, 40.0):
            assert two_sided(t, freedom) == pytest.approx(2 * stats.t.sf(t, freedom), rel=1e-9)
        assert quantile(0.95, freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-9)


def test_the_interval_of_a_mean_is_known_from_two_values_on():
    # sd 2, standard error 2 / sqrt(3), t(2) 4.3027
    assert (HUNDRED.mean, HUNDRED.sd, HUNDRED.count, HUNDRED.over) == (100.0, 2.0, 3, "runs")
    ends = HUNDRED.interval.low, HUNDRED.interval.high
    assert ends == pytest.approx((100 - 4.9683, 100 + 4.9683), abs=1e-4)
    assert measure([98.0]) == Measure(mean=98.0)
    assert measure([5.0, 5.0]).interval == Interval(low=5.0, high=5.0)


def test_of_several_p_values_holm_adjusts_each():
    # From the page "Holm-Bonferroni method" of Wikipedia; the first and the last are below 5 %.
    judged = holm((0.01, 0.04, 0.03, 0.005))
    assert [p for p, _ in judged] == pytest.approx((0.03, 0.06, 0.06, 0.02))
    # The fourth is held against 5 % / 4, the first against 5 % / 3, and then it ends at 5 % / 2.
    limits = [0.05 / 3, 0.05 / 2, 0.05 / 2, 0.05 / 4]
    assert [1 - confidence for _, confidence in judged] == pytest.approx(limits)
    assert holm([]) == []


def test_an_interval_leaves_out_1_exactly_where_the_two_differ_also_among_several():
    rng = random.Random(7)
    for _ in range(20):
        base = over_runs(*(rng.gauss(100, 2) for _ in range(3)))
        pairs = [
            (over_runs(*(rng.gauss(mean, 2) for _ in range(3))), base)
            for mean in (100, 102, 104, 108, 115)
        ]
        for one, alone in zip(ratios(pairs), itertools.starmap(ratio, pairs), strict=True):
            assert differs(one) is not (one.interval.low <= 1 <= one.interval.high)
            assert one.interval.low <= alone.interval.low
            assert one.interval.high >= alone.interval.high


def test_every_two_of_several_are_one_comparison():
    measures = [over_runs(*(mean + shift for shift in (-1, 0, 1))) for mean in (100, 101, 110)]
    compared = ratios_of_all(measures)
    assert compared.keys() == set(itertools.permutations(range(3), 2))
    assert [differs(compared[pair]) for pair in ((0, 1), (0, 2), (2, 1))] == [False, True, True]
    # Their variances, nearly equal, are one of 2 + 2 + 2 degrees of freedom.
    t = math.log(1.1) / math.sqrt(sum(0.01**2 / mean**2 for mean in (1, 1.01, 1.1)) / 3 * 2 / 3)
    assert compared[0, 2].p == pytest.approx(3 * two_sided(t, 6.0), rel=0.1)


def test_a_side_of_another_kind_is_not_pooled_with_the_others():
    wild, *calm = over_runs(80.0, 100.0, 120.0), over_runs(99, 100, 101), over_runs(109, 110, 111)
    calm.append(over_runs(119, 120, 121))
    compared = ratios_of_all([wild, *calm])
    assert compared[1, 3].p == pytest.approx(6 * ratio(calm[0], calm[2]).p)
    assert differs(compared[0, 3]) is False
