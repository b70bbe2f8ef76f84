"""Warm-up is found where it is, whatever its length and shape, and not where there is none."""

import math
import random
from statistics import fmean

import pytest

from hpcdist.summary import summarize
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


def test_after_a_slow_ramp_the_mean_is_that_of_the_steady_steps():
    ramp = [1 + 2 * math.exp(-index / 6) for index in range(60)]
    for seed in range(20):
        times_s = noisy(ramp, noise=0.02, seed=seed)
        assert fmean(times_s[warm_up_length(times_s) :]) == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize("num", [4, 6, 12, 50])
def test_noise_alone_loses_only_the_first_window_and_does_not_make_a_run_faster(num):
    lengths, means = [], []
    for seed in range(300):
        times_s = noisy([1.0] * num, noise=0.05, seed=seed)
        lengths.append(warm_up_length(times_s))
        means.append(fmean(times_s[lengths[-1] :]))
    assert lengths.count(1) > 280
    assert fmean(means) == pytest.approx(1, abs=4 * 0.05 / math.sqrt(300 * (num / 2)))


def test_a_run_that_slows_down_keeps_its_fast_beginning():
    assert warm_up_length(noisy([1.0] * 20 + [1.5] * 25, noise=0.01, seed=1)) == 1


@pytest.mark.parametrize(
    ("times_s", "found"),
    [([], 0), ([1.0], 0), ([9.0, 1.0], 1), ([1.0, 1.0, 1.0], 1), ([1.0] * 40, 1)],
    ids=["none", "one", "two", "three", "all equal"],
)
def test_of_few_or_equal_windows_the_first_goes_and_one_alone_stays(times_s, found):
    assert warm_up_length(times_s) == found


def test_the_summary_says_how_many_steps_were_left_out(make_run, events):
    run = make_run("slow-start")
    rates = [20.0, 50.0, 50.0, 50.0, 100.0, 101.0, 99.0, 100.0, 101.0, 99.0]
    events.write(run, 0, [events.start(0, world_size=1), *events.steady(rates, steps=7)])
    (found,) = summarize([run], {}).runs
    assert found.warm_up_steps == 4 * 7
    assert found.samples_per_s.mean == pytest.approx(100, rel=0.001)


def test_warm_up_counts_by_the_lowest_rank_in_all_attempts(make_run, events):
    run = make_run("restarted")
    steady = events.steady([100.0] * 4)
    for attempt in (0, 1):
        events.write(run, 0, [events.start(0, world_size=1), *steady], attempt=attempt)
    (found,) = summarize([run], {}).runs
    assert found.warm_up_steps == 2 * 10
