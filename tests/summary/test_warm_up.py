"""Warm-up is found where it is, whatever its length and shape, and not where there is none."""

import random

import pytest

from hpcdist.summary.figures.timing import warm_up_length


def noisy(times_s, *, noise, seed):
    rng = random.Random(seed)
    return [time_s * (1 + rng.gauss(0, noise)) for time_s in times_s]


@pytest.mark.parametrize("noise", [0.002, 0.02], ids=["quiet", "noisy"])
@pytest.mark.parametrize(
    ("warm_up", "steady"),
    [
        pytest.param([5.0], 30, id="the first window"),
        pytest.param([3.0] * 8, 60, id="a level, such as while kernels are tried"),
        pytest.param([1.3] * 20, 30, id="four tenths of the run"),
        pytest.param([40.0, 1.5, 1.5, 1.5], 16, id="compiled first, then slow caches"),
    ],
)
def test_a_warm_up_of_known_length_is_left_out_whole(warm_up, steady, noise):
    for seed in range(20):
        found = warm_up_length(noisy(warm_up + [1.0] * steady, noise=noise, seed=seed))
        assert len(warm_up) <= found <= len(warm_up) + steady // 2


@pytest.mark.parametrize(
    ("times_s", "found"),
    [([], 0), ([1.0], 0), ([9.0, 1.0], 1), ([1.0] * 40, 1), ([1.0] * 20 + [1.5] * 25, 1)],
    ids=["none", "one", "two", "all equal", "slower later"],
)
def test_of_few_or_equal_windows_the_first_goes_and_one_alone_stays(times_s, found):
    assert warm_up_length(times_s) == found
