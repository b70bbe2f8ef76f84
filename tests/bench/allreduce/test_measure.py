"""A measured all-reduce, in a group of one, and the check of its sums."""

import pytest
import torch
import torch.distributed as dist

from hpcdist.bench.allreduce import measure
from hpcdist.bench.allreduce.measure import measure_all_reduce
from hpcdist.job.spec import Allreduce


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("iterations", "max_time_s", "least"), [(50, 600, 50), (2_000_000, 0.01, 3)]
)
def test_a_measurement_has_as_many_calls_as_wanted_and_as_there_is_time_for(
    group, iterations, max_time_s, least
):
    effort = Allreduce(iterations=iterations, warmup=2, max_time_s=max_time_s)
    cell = measure_all_reduce(torch.zeros(8), effort)
    assert cell.keys == {"size_bytes": 32}
    assert least <= cell.repeats <= max(least, iterations - 1)
    assert cell.rate == 0.0  # one rank sends nothing


def added_up(number, num_ranks, dtype=torch.float32, leave_out=()):
    """What an all-reduce gives, with rounding after each addition."""
    total = torch.zeros(number, dtype=dtype)
    for rank in range(num_ranks):
        own = torch.empty(number, dtype=dtype)
        measure._fill(own, rank=rank, num_ranks=num_ranks)
        if rank not in leave_out:
            total += own
    return total


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("num_ranks", [1, 2, 3, 4, 300])
def test_right_sums_pass_in_every_type(dtype, num_ranks):
    measure._require_sums(added_up(2_500, num_ranks, dtype), rank=0, num_ranks=num_ranks)


def test_a_rank_that_is_left_out_and_parts_in_exchanged_places_are_seen():
    for lost in range(4):
        with pytest.raises(measure.WrongSumError):
            measure._require_sums(added_up(64, 4, leave_out={lost}), rank=0, num_ranks=4)
    total = added_up(4_096, 4)
    exchanged = torch.cat([total[1_024:2_048], total[:1_024], total[2_048:]])
    with pytest.raises(measure.WrongSumError):
        measure._require_sums(exchanged, rank=0, num_ranks=4)


def test_the_error_names_the_rank_the_size_and_the_first_wrong_number(monkeypatch):
    monkeypatch.setattr(measure, "_BLOCK_NUMBERS", 64)
    total = added_up(1_000, 4)
    total[700] += 1
    total[701] = 0
    expected = (
        "rank 2 has wrong sums over 4 ranks, of 4,000 bytes: 2 of 1,000 numbers; "
        "the first, number 700, is 4 and must be 3"
    )
    with pytest.raises(measure.WrongSumError, match=f"^{expected}$"):
        measure._require_sums(total, rank=2, num_ranks=4)
