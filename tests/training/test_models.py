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


def test_the_same_seed_makes_the_same_weights_and_another_others():
    def draw(seed):
        seed_all(seed, torch.device("cpu"))
        return torch.cat([p.flatten() for p in build_model(Model(), (1, 8, 8), 10).parameters()])

    assert draw(3).equal(draw(3))
    assert not draw(3).equal(draw(4))


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
