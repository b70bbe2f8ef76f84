from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from hpcdist.runs.events import Window
from hpcdist.summary.figures import timing
from hpcdist.summary.figures.timing import StepTotals


def windows_of(made: list[dict[str, Any]]) -> list[Window]:
    return [msgspec.convert(window, Window, str_keys=True) for window in made]


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


def test_percentiles_of_equal_steps_are_that_time_exactly(events):
    totals = StepTotals()
    totals.add(windows_of([events.window(step=7, times_s=[0.0123] * 7, samples=1)]))
    time = timing.step_time(totals)
    assert time is not None
    assert (time.p50, time.p95) == (0.0123, 0.0123)
    assert time.sd == pytest.approx(0, abs=1e-9)


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
