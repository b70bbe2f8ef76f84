"""Bandwidths by the definitions of nccl-tests, and percentiles."""

import pytest

from hpcdist.bench.allreduce.bandwidth import algorithm_bandwidth, bus_bandwidth, percentile


def test_algorithm_bandwidth_is_size_over_time():
    assert algorithm_bandwidth(256_000_000, 0.5) == 512e6


@pytest.mark.parametrize(("ranks", "factor"), [(1, 0.0), (2, 1.0), (4, 1.5), (8, 1.75)])
def test_bus_bandwidth_counts_what_each_rank_must_send(ranks, factor):
    assert bus_bandwidth(1_000, 1e-3, ranks) == pytest.approx(factor * 1e6)


def test_no_time_gives_no_bandwidth():
    assert bus_bandwidth(1_000, 0.0, 4) == 0.0


@pytest.mark.parametrize(
    ("share", "value"), [(0.0, 1.0), (0.5, 10.0), (0.95, 19.0), (1.0, 20.0)], ids=str
)
def test_a_percentile_is_the_smallest_value_that_enough_do_not_exceed(share, value):
    assert percentile([float(number) for number in range(20, 0, -1)], share) == value
