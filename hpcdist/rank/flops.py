"""Floating-point operations of a model: off the clock."""

from __future__ import annotations

import torch
from torch import Tensor, nn


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
