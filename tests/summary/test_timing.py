from __future__ import annotations

import random
import statistics
from typing import Any

import msgspec
import pytest

from hpcdist.summary.figures import timing
from hpcdist.summary.figures.timing import Spans, StepTotals
from hpcdist.summary.read.records import Window


def windows_of(made: list[dict[str, Any]]) -> list[Window]:
    return [msgspec.convert(window, Window, str_keys=True) for window in made]


def spans(*made: tuple[int, int, float, int]) -> Spans:
    """From (first step, last step, seconds, samples) of each."""
    firsts, lasts, wall_s, samples = map(list, zip(*made, strict=True))
    nothing = [0.0] * len(made)
    return Spans(firsts, lasts, wall_s, samples, wall_s, nothing, nothing)


def spans_at(rates: list[float], *, samples: int = 100, steps: int = 10) -> Spans:
    return spans(
        *(
            (index * steps, (index + 1) * steps, samples / rate, samples)
            for index, rate in enumerate(rates)
        )
    )


def kept(windows: list[Window]) -> list[int]:
    return [window.step for window in timing.drop_warm_up(windows)]


@pytest.mark.parametrize(
    ("rates", "steps_kept"),
    [
        pytest.param([], [], id="no windows"),
        pytest.param([50], [10], id="a single window stays"),
        pytest.param([100, 100], [20], id="the first goes even where it is like the rest"),
        pytest.param([10, 100, 101, 99, 100], [20, 30, 40, 50], id="a slow first"),
        pytest.param(
            [10, 50, 100, 101, 99, 98, 100, 102],
            [30, 40, 50, 60, 70, 80],
            id="a slow second as well",
        ),
        pytest.param(
            [10, 20, 30, 40, 50, 60, 70, 80],
            [50, 60, 70, 80],
            id="at most half, where it never settles",
        ),
        pytest.param(
            [10, 300, 100, 101, 99, 98, 100, 102],
            [20, 30, 40, 50, 60, 70, 80],
            id="a second that is faster stays",
        ),
    ],
)
def test_warm_up_is_the_first_window_and_those_that_are_slower_than_the_rest(
    events, rates, steps_kept
):
    assert kept(windows_of(events.steady(rates))) == steps_kept


def test_windows_without_steps_or_time_are_no_windows(events):
    first, second = windows_of(events.steady([100, 100]))
    empty = msgspec.structs.replace(first, steps=0)
    timeless = msgspec.structs.replace(first, wall_s=0.0)
    assert kept([empty, timeless, first, second]) == [20]
    assert kept([empty, timeless]) == []


def test_throughput_of_ranks_of_unequal_speed_is_the_sum_of_their_rates():
    rate = timing.throughput([[spans_at([100, 100, 100]), spans_at([40, 40])]])
    assert rate is not None
    assert rate.mean == pytest.approx(140)
    assert rate.sd == pytest.approx(0, abs=1e-9)


def test_sd_of_windows_of_equal_length_is_that_of_a_sample():
    # Equal lengths of 1 s, so the weights are equal.
    rates = [90.0, 110.0, 100.0, 104.0]
    made = [(10 * i, 10 * i + 10, 1.0, int(rate)) for i, rate in enumerate(rates)]
    rate = timing.throughput([[spans(*made)]])
    assert rate is not None
    assert rate.mean == pytest.approx(statistics.mean(rates))
    assert rate.sd == pytest.approx(statistics.stdev(rates))


def test_windows_count_by_their_length():
    rate = timing.throughput([[spans((0, 10, 1.0, 100), (10, 50, 3.0, 600))]])
    assert rate is not None
    assert rate.mean == pytest.approx(175)
    # Weighted variance: (1 * 75**2 + 3 * 25**2) / 4 = 1875, times 2 / 1.
    assert rate.sd == pytest.approx(3750**0.5)


def test_windows_of_ranks_that_begin_elsewhere_are_lined_up_by_steps():
    # The second rank's windows are cut at steps 5 and 15; it makes 10 samples/s, then 20.
    first = spans((0, 10, 1.0, 100), (10, 20, 1.0, 100))
    second = spans((0, 5, 1.0, 10), (5, 15, 2.0, 20), (15, 20, 1.0, 20))
    rates, weights_s = zip(*timing.rates_by_window([first, second]), strict=True)
    assert rates == pytest.approx((100 + 20 / 2.0, 100 + 30 / 2.0))
    assert weights_s == (1.0, 1.0)


def test_a_missing_window_takes_its_steps_out_of_the_sd_and_not_out_of_the_mean():
    windows = [(0, 10, 1.0, 100), (10, 20, 1 / 1.2, 100), (20, 30, 1.25, 100), (30, 40, 1.0, 100)]
    whole = spans(*windows)
    torn = spans(windows[0], windows[1], windows[3])
    assert [rate for rate, _ in timing.rates_by_window([whole, torn])] == [200, 240, 200]
    rate = timing.throughput([[torn]])
    assert rate is not None
    assert rate.mean == pytest.approx(300 / (1 + 1 / 1.2 + 1))


def test_attempts_count_by_the_time_they_stepped():
    rate = timing.throughput([[spans((0, 10, 1.0, 100))], [spans((5, 35, 3.0, 600))]])
    assert rate is not None
    assert rate.mean == pytest.approx((100 + 600) / 4)


def test_step_times_are_those_of_all_steps(events):
    rng = random.Random(1)
    steps = [[rng.lognormvariate(-4, 0.3) for _ in range(40)] for _ in range(5)]
    totals = StepTotals()
    for index, times_s in enumerate(steps, 1):
        totals.add(windows_of([events.window(step=40 * index, times_s=times_s, samples=1)]))
    every = sorted(time_s for times_s in steps for time_s in times_s)
    time = timing.step_time(totals)
    assert time is not None
    assert time.mean == pytest.approx(statistics.mean(every))
    assert time.sd == pytest.approx(statistics.stdev(every))
    assert time.p50 == pytest.approx(every[99], rel=0.01)
    assert time.p95 == pytest.approx(every[189], rel=0.01)


def test_percentiles_of_equal_steps_are_that_time_exactly(events):
    totals = StepTotals()
    totals.add(windows_of([events.window(step=7, times_s=[0.0123] * 7, samples=1)]))
    time = timing.step_time(totals)
    assert time is not None
    assert (time.p50, time.p95) == (0.0123, 0.0123)
    assert time.sd == pytest.approx(0, abs=1e-9)


def test_a_single_step_has_no_spread(events):
    totals = StepTotals()
    totals.add(windows_of([events.window(step=1, times_s=[0.5], samples=8)]))
    time = timing.step_time(totals)
    assert time is not None
    assert time.sd is None
    assert timing.step_time(StepTotals()) is None


def drawn_windows(seed: int, num: int) -> list[Window]:
    """Windows of ten steps each, of which one is missing."""
    drawing = random.Random(seed)
    return [
        msgspec.convert(
            {
                "event": "steps",
                "step": 10 * number,
                "steps": 10,
                "wall_s": (wall_s := drawing.uniform(0.9, 1.1)),
                "samples": 640,
                "step_time_s": {"sum": wall_s, "sumsq": wall_s**2 / 10, "min": 0.08, "max": 0.2},
                "phases_s": {"exposed_communication": 0.1, "checkpoint": 0.01},
            },
            Window,
        )
        for number in range(1, num + 1)
        if number != 400
    ]


def test_joined_spans_hold_the_same_steps_times_and_samples_and_nothing_that_is_missing() -> None:
    whole = timing.to_spans(drawn_windows(0, 1000))
    joined = timing.to_spans(drawn_windows(0, 1000), most=300)
    assert 250 <= len(joined) <= 300
    assert list(joined.last_steps)[-3:] == [9920, 9960, 10000]
    assert 3990 in joined.last_steps
    assert 4000 in joined.first_steps
    for column in ("wall_s", "samples", "stepped_s", "waited_s", "saved_s"):
        assert sum(getattr(joined, column)) == pytest.approx(sum(getattr(whole, column)))
    done = sum(map(int.__sub__, joined.last_steps, joined.first_steps))
    assert done == 9990


def test_ranks_of_unequal_warm_up_are_in_step_where_their_spans_are_joined_and_rates_stay() -> None:
    windows = [drawn_windows(seed, 1000) for seed in range(8)]
    whole = [timing.to_spans(own[seed:]) for seed, own in enumerate(windows)]
    joined = [timing.to_spans(own[seed:], most=300) for seed, own in enumerate(windows)]
    assert {tuple(own.last_steps[-100:]) for own in joined} == {(*joined[0].last_steps[-100:],)}
    rate, expected = timing.throughput([joined]), timing.throughput([whole])
    assert rate is not None
    assert expected is not None
    assert rate.mean == pytest.approx(expected.mean, rel=1e-9)
    assert rate.sd == pytest.approx(expected.sd, rel=0.1)
    assert rate.count == expected.count
