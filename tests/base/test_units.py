"""Times in words."""

import pytest

from hpcdist.base.statistics import Interval, Measure
from hpcdist.base.text import format_time, interval_text


@pytest.mark.parametrize(
    ("time_s", "text"),
    [(0.0331, "33.1 ms"), (0.168, "168 ms"), (1.5, "1.50 s"), (2e-5, "20.0 µs")],
)
def test_a_time_has_three_digits_in_the_unit_that_suits_it(time_s, text):
    assert format_time(time_s) == text


def test_the_interval_of_a_positive_mean_is_not_said_to_begin_below_zero():
    measure = Measure(mean=10.0, interval=Interval(low=-5.0, high=25.0))
    assert interval_text(measure, 0) == "10 (0 to 25)"
