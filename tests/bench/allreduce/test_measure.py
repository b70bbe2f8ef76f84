"""A measured all-reduce that is told to leave, in a group of one."""

import pytest
import torch
import torch.distributed as dist

from hpcdist.bench.allreduce.measure import Effort, measure_all_reduce

EFFORT = Effort(iterations=2_000_000, warmup=2, max_time_s=600, check=True)


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def leaving_at(number):
    """Says so when it is asked for the `number`th time."""
    asked = iter(range(1, number))
    return lambda: next(asked, None) is None


def test_what_was_measured_until_then_is_kept(group):
    # Twice in the warm-up, then before each chunk.
    measured = measure_all_reduce(torch.zeros(8), EFFORT, is_to_leave=leaving_at(4))
    assert measured is not None
    assert not measured.is_whole
    fields = measured.to_event()
    assert 0 < fields["iterations"] == len(measured.times_s) < measured.planned
    assert fields["mean_time_s"] * fields["iterations"] == pytest.approx(measured.total_time_s)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_before_the_first_chunk_there_is_nothing_to_keep(group, number):
    assert measure_all_reduce(torch.zeros(8), EFFORT, is_to_leave=leaving_at(number)) is None


def test_nobody_who_stays_measures_less(group):
    effort = Effort(iterations=50, warmup=1, max_time_s=600, check=False)
    measured = measure_all_reduce(torch.zeros(8), effort)
    assert measured is not None
    assert measured.is_whole
    assert len(measured.times_s) == 50
