"""Operations of models whose number is known, and the peaks they are held against."""

import pytest
import torch
from torch import nn

from hpcdist.machine.peaks import peak_flops_per_s
from hpcdist.rank.model import count_flops


def test_a_layer_takes_two_operations_per_weight_forward_and_twice_that_backward():
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.BatchNorm1d(32), nn.Linear(32, 10))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    # The first layer's input needs no gradient.
    assert count_flops(model, torch.randn(8, 64)) == 2 * (2 * 64 * 32 + 3 * 32 * 10)
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize(
    ("gpu", "precision", "tera"),
    [
        ("NVIDIA H200", "bf16-mixed", 989.5),
        ("NVIDIA H100 80GB HBM3", "tf32", 494.5),
        ("NVIDIA A100-SXM4-80GB", "fp32", 19.5),
        ("Tesla V100-SXM2-16GB", "fp16-mixed", None),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", "fp32", None),
    ],
)
def test_the_peak_of_a_gpu_is_that_of_its_data_sheet(gpu, precision, tera):
    expected = None if tera is None else pytest.approx(tera * 1e12)
    assert peak_flops_per_s(gpu, precision) == expected
