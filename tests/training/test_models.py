import pytest
import torch

from hpcdist.job.spec import Model
from hpcdist.rank.model import count_flops
from hpcdist.training.models import build_model, pick_memory_format, pick_num_threads, seed_all


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 33, 70), (4, 1, 1)], ids=str)
def test_our_model_takes_images_of_any_size(shape):
    model = build_model(Model(), shape, 7)
    assert model(torch.randn(2, *shape)).shape == (2, 7)
    device = torch.device("cpu")
    layouts = [
        pick_memory_format(net, tensor_cores=False, device=device)
        for net in (model, model.classifier)
    ]
    assert layouts == [torch.channels_last, torch.contiguous_format]


def test_torchvision_models_take_small_gray_images():
    model = build_model(Model(name="googlenet"), (1, 8, 8), 10).train()
    assert model(torch.randn(2, 1, 8, 8)).shape == (2, 10)


DRAWING = """
import random
import numpy
import torch
from torch import nn

class Net(nn.Linear):
    def __init__(self):
        super().__init__(64, 10)
        drawn = random.random(), numpy.random.random(), float(torch.rand(()))
        self.drawn = nn.Parameter(torch.tensor(drawn))
"""


def test_all_ranks_draw_the_same_weights_from_any_generator(tmp_path, monkeypatch):
    """Also with fsdp, which does not bring them in line."""
    (tmp_path / "net_that_draws.py").write_text(DRAWING)
    monkeypatch.chdir(tmp_path)

    def draw(seed):
        seed_all(seed, torch.device("cpu"))
        return build_model(Model(name="net_that_draws:Net"), (1, 8, 8), 10).drawn.tolist()

    assert draw(3) == draw(3)
    assert {*draw(3)}.isdisjoint(draw(4))


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
    assert pick_num_threads(flops * batch_size, available=available) == expected
    assert model.training
