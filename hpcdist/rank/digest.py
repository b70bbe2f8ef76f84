"""Digests of a model's parameters: cheap numbers by which replicas, or two runs, are told apart.

A digest is the sum of the bit patterns of all numbers, taken as integers, each times an odd weight
that its place has, modulo 2**64. A weight that is odd loses no bit, so that any single bit counts,
and no two places have the same, so that the order counts. Sums of integers come out the same in
whatever order a device adds. It is taken on the device, and waited for once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from hpcdist.rank.context import RankContext
from hpcdist.rank.timing import Timer

_NUMBERS_AT_ONCE = 1 << 20
"""Numbers of a tensor that are looked at together; more would take memory of the device."""
_MASK = (1 << 64) - 1
_ODD = 0x9E3779B97F4A7C15 - (1 << 64)
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@torch.no_grad()
def digest_of(tensors: Iterable[Tensor]) -> int:
    """Return one digest of all tensors, in their order."""
    weights: dict[torch.device, Tensor] = {}
    sums = []
    for tensor in tensors:
        bits = _bits(tensor)
        if bits.device not in weights:
            weights[bits.device] = _weights(bits.device)
        sums.append(_sum(bits, weights[bits.device]))
    digest = 0
    for value in torch.stack([value.cpu() for value in sums]).tolist() if sums else ():
        digest = (digest * _ODD + value + 1) & _MASK
    return digest


class Digester:
    """Writes a `digest` event each so many steps; its time belongs to no step."""

    def __init__(
        self, context: RankContext, timer: Timer, model: nn.Module, *, first_step: int
    ) -> None:
        self._context = context
        self._timer = timer
        self._model = model
        self._first = first_step + 1

    def step(self, step: int, *, loss: Any = None) -> None:
        """Write a digest of the parameters after the first step, and each so many."""
        if step != self._first and step % self._context.job.record.digest:
            return
        parameters = list(self._model.parameters())
        self._context.events.write(
            "digest",
            step=step,
            parameters=f"{digest_of(parameters):016x}",
            is_sharded=any(map(_is_shard, parameters)),
            loss=None if loss is None else float(loss),
        )
        self._timer.begin()


def make_digester(
    context: RankContext, timer: Timer, model: nn.Module, *, first_step: int
) -> Digester | None:
    """Return what writes digests where the job has them written."""
    if not context.job.record.digest:
        return None
    return Digester(context, timer, model, first_step=first_step)


def _sum(bits: Tensor, weights: Tensor) -> Tensor:
    total = torch.full((), len(bits), dtype=torch.int64, device=bits.device)
    for block in torch.split(bits, _NUMBERS_AT_ONCE):
        total = total * _ODD + (block.long() * weights[: len(block)]).sum()
    return total


def _weights(device: torch.device) -> Tensor:
    """Return odd numbers that look random, one per place in a block."""
    numbers = torch.arange(1, _NUMBERS_AT_ONCE + 1, dtype=torch.int64, device=device) * _ODD
    for factor, shift in ((0x3F58476D1CE4E5B9, 31), (0x14D049BB133111EB, 27), (_ODD, 29)):
        numbers = (numbers ^ (numbers >> shift)) * factor
    return numbers | 1


def _bits(tensor: Tensor) -> Tensor:
    """Return the numbers of a tensor, of a shard those that are here, as integers."""
    local: Any = getattr(tensor, "to_local", None)
    tensor = tensor.detach() if local is None else local().detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    return tensor.contiguous().view(-1).view(_INTEGERS[tensor.element_size()])


def _is_shard(parameter: Tensor) -> bool:
    """Return whether a parameter is a part of one, which other ranks have other parts of."""
    return hasattr(parameter, "to_local") or type(parameter).__name__ == "FlatParameter"
