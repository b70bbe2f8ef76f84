"""Times in words."""

import pytest

from hpcdist.base.statistics import Interval, Measure
from hpcdist.base.text import interval_text, show_mean_sd


@pytest.mark.parametrize(
    ("mean_s", "sd_s", "text"),
    [
        (0.0331, 0.00041, "33.1 ± 0.4 ms"),
        (0.168, 0.204, "168 ± 204 ms"),
        (1.5, 0.012, "1.50 ± 0.01 s"),
        (2e-5, 1e-7, "20.0 ± 0.1 µs"),
        (0.0331, None, "33.1 ms"),
    ],
)
def test_mean_and_sd_have_one_unit_and_as_many_decimals(mean_s, sd_s, text):
    assert show_mean_sd(mean_s, sd_s) == text


def test_the_interval_of_a_positive_mean_is_not_said_to_begin_below_zero():
    measure = Measure(mean=10.0, interval=Interval(low=-5.0, high=25.0))
    assert interval_text(measure, 0) == "10 (0 to 25)"
