"""A model in numbers: digests of its parameters, and its floating-point operations."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from hpcdist.rank.context import RankContext
from hpcdist.rank.timing import Timer, is_sharded
from hpcdist.runs.events import Digest


def digest_of(tensors: Iterable[Tensor]) -> str:
    """Return one digest of the bytes of all tensors, in their order; of a shard, its own part."""
    digest = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        local: Any = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        values = local.detach().cpu().contiguous().view(-1)
        digest.update(values.view(torch.uint8).numpy())
    return digest.hexdigest()


class Digester:
    """Writes a `digest` event after the first step and every `record.digest` steps, in no step."""

    def __init__(
        self, context: RankContext, timer: Timer, model: nn.Module, *, first_step: int
    ) -> None:
        self._context, self._timer, self._model = context, timer, model
        self._first = first_step + 1

    def step(self, step: int, *, loss: Any = None) -> None:
        every = self._context.job.record.digest
        if not every or (step != self._first and step % every):
            return
        parameters = list(self._model.parameters())
        self._context.events.write(
            Digest(
                step=step,
                parameters=digest_of(parameters),
                is_sharded=is_sharded(parameters),
                loss=None if loss is None else float(loss),
            )
        )
        self._timer.begin()


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
