import pytest
import torch

from hpcdist.job.spec import Model
from hpcdist.rank.model import count_flops
from hpcdist.training.models import build_model, pick_num_threads


@pytest.mark.parametrize(
    ("side", "batch_size", "available", "expected"),
    [(8, 32, 4, 1), (28, 64, 4, 4), (28, 32, 4, 2), (28, 64, 1, 1)],
    ids=["digits", "FashionMNIST", "FashionMNIST in small batches", "one CPU"],
)
def test_a_rank_takes_as_many_threads_as_its_model_has_work_for(
    side, batch_size, available, expected
):
    model = build_model(Model(), (1, side, side), 10)
    flops = count_flops(model, torch.zeros(2, 1, side, side))
    picked = pick_num_threads(flops * batch_size, available=available)
    assert picked == expected
    assert model.training
