"""How samples become windows."""

import pytest

from hpcdist.agent.sampler import Sample, Windows


def sample(length_s, *, cpus_busy=1.0, gpus=()):
    return Sample(length_s, {"cpus_busy": cpus_busy}, gpus)


def test_means_weigh_each_sample_by_the_time_that_it_stands_for():
    windows = Windows(5.0)
    windows.add(sample(10_000.0), time_s=1.0)
    assert windows.add(sample(1.0, cpus_busy=1.0), time_s=2.0) is None
    assert windows.add(sample(3.0, cpus_busy=3.0), time_s=3.0) is None
    window = windows.close()
    assert (window.time_s, window.wall_s, window.samples) == (3.0, 4.0, 2)
    assert window.cpus_busy == 2.5
    assert windows.close() is None


def test_what_only_some_samples_tell_is_their_mean_and_what_none_tells_is_left_out():
    windows = Windows(5.0)
    windows.add(sample(10_000.0), time_s=0.0)
    told = [{"power_w": 100.0, "energy_j": 150.0}, {"utilization": 0.5}]
    windows.add(sample(2.0, gpus=told), time_s=1.0)
    windows.add(sample(2.0, gpus=[{"energy_j": 250.0}, {}]), time_s=2.0)
    first, second = windows.close().gpus
    assert (first.power_w, first.energy_j, first.utilization) == (100.0, 400.0, None)
    assert (second.utilization, second.energy_j) == (0.5, None)


@pytest.mark.parametrize(("every_s", "first_s"), [(5.0, 0.5), (1.0, 0.5), (0.4, 0.4)])
def test_samples_begin_close_to_each_other_and_a_day_stays_below_a_thousand_lines(every_s, first_s):
    windows = Windows(every_s)
    assert windows.next_in_s() == first_s
    lines, passed_s = 0, 0.0
    while passed_s < 86_400:
        length_s = windows.next_in_s()
        passed_s += length_s
        lines += windows.add(sample(length_s), time_s=passed_s) is not None
    assert windows.next_in_s() == every_s
    assert 500 < lines < 1_000
