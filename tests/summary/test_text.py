from __future__ import annotations

import pytest

from hpcdist.base import text


@pytest.mark.parametrize(
    ("values", "decimals"),
    [
        ([], 2),
        ([0.0], 2),
        ([12_589.0, 402.0], 0),
        ([155.5, 6.3], 1),
        ([26.29, 6.3], 2),
        ([5.0], 2),
        ([0.05], 4),
    ],
)
def test_a_column_shows_three_digits_of_its_smallest_and_four_of_its_largest(values, decimals):
    assert text.decimals_for(values) == decimals


@pytest.mark.parametrize(
    ("values", "decimals"),
    [([], 2), ([219.0, 93.0], 1), ([1_067.0, 33.0], 0), ([60.0, 0.0102], 3), ([0.0], 2)],
)
def test_a_column_of_large_and_small_shows_two_digits_of_its_smallest(values, decimals):
    assert text.column_decimals(values) == decimals


@pytest.mark.parametrize(
    ("time_s", "unit"), [(90.0, "s"), (1.0, "s"), (0.2, "ms"), (5e-5, "µs"), (1e-9, "µs")]
)
def test_times_are_shown_in_the_largest_unit_that_they_fill(time_s, unit):
    assert text.time_unit(time_s)[1] == unit


@pytest.mark.parametrize(
    ("shares", "percents"),
    [
        ([0.576, 0.145, 0.016], [58, 14, 2]),
        ([0.405, 0.155, 0.145], [41, 15, 14]),
        ([0.5, -0.2, 0.104], [50, -20, 10]),
        ([-0.006, -0.006, 0.004], [0, -1, 0]),
        ([0.0, 0.0], [0, 0]),
        ([], []),
    ],
)
def test_whole_percents_add_up_to_their_sum(shares, percents):
    named = {str(place): share for place, share in enumerate(shares)}
    assert list(text.whole_percents(named).values()) == percents
    assert sum(percents) == round(100 * sum(shares))
