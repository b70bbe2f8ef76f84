"""Floating-point operations of a model, and what its device could do at most: off the clock."""

from __future__ import annotations

import time

import torch
from torch import Tensor, nn

from hpcdist.rank.context import RankContext
from hpcdist.runs.events import Flops

_SIZE = 512
_PRODUCTS = 8


def count_flops(model: nn.Module, images: Tensor) -> float | None:
    """Return the operations of both passes for one image; None where they cannot be counted.

    Matrix products, convolutions and attention count, as torch's FlopCounterMode has them; a
    product and a sum are two. Nothing is computed: tensors on the device `meta` have shapes alone.
    """
    from torch.utils.flop_counter import FlopCounterMode

    parameters = {
        name: nn.Parameter(value.detach().to("meta"), requires_grad=value.requires_grad)
        for name, value in model.named_parameters()
    }
    buffers = {name: value.to("meta") for name, value in model.named_buffers()}
    was_training = model.training
    model.eval()  # running means and random generators stay as they are
    try:
        with FlopCounterMode(display=False) as counter:
            outputs = torch.func.functional_call(
                model, {**parameters, **buffers}, (images.to("meta"),)
            )
            torch.autograd.backward(outputs.sum())
    except Exception:  # noqa: BLE001 - a model of the user's: it may look at values, which are none
        return None
    finally:
        model.train(was_training)
    return counter.get_total_flops() / len(images) or None


PRODUCTS_IN = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16-mixed": torch.bfloat16,
    "bf16-true": torch.bfloat16,
    "fp16-mixed": torch.float16,
}
"""Names of precisions -> the format in which matrices are multiplied."""


def write_flops(context: RankContext, *, per_sample: float, precision: str) -> None:
    """Record what a model takes for one sample, and what this rank's CPUs could do; off the
    clock."""
    on_cpu = torch.device(context.device).type == "cpu"
    peak_per_s = measure_cpu_peak(PRODUCTS_IN[precision]) if on_cpu else None
    context.events.write(Flops(per_sample=per_sample, precision=precision, peak_per_s=peak_per_s))


def measure_cpu_peak(dtype: torch.dtype) -> float:
    """Return the operations per second of a matrix product with the threads of this rank: the best
    of several, while the other ranks of the node do the same."""
    left, right = torch.ones(_SIZE, _SIZE, dtype=dtype), torch.ones(_SIZE, _SIZE, dtype=dtype)
    times_s = []
    for _ in range(_PRODUCTS):
        begin_s = time.perf_counter()
        torch.mm(left, right)
        times_s.append(time.perf_counter() - begin_s)
    return 2 * _SIZE**3 / min(times_s)
