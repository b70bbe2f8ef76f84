from __future__ import annotations

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
