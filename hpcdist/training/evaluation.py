"""Evaluation over the test data, shared by the ranks, every sample counted once.

The batches are the same for any number of ranks, each is computed by one rank, and what they give
is summed up in their order: so the loss and the number of right answers are exactly those that a
single process with as many threads finds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor

from hpcdist.data.batches import BatchSource
from hpcdist.data.order import Share

_BATCH_SIZE = 128  # a constant, not train.batch_size: see above


@dataclass(frozen=True, kw_only=True)
class Score:
    """The result of an evaluation, over all ranks."""

    loss: float
    """Mean over the samples."""
    accuracy: float
    """Share of right answers."""
    samples: int


def evaluate(
    predict: Callable[[Tensor], Tensor],
    source: BatchSource,
    num_samples: int,
    device: torch.device,
    *,
    rank: int,
    world_size: int,
    together: bool = False,
    after_batch: Callable[[], None],
) -> Score:
    """Score `predict` on all of the test data; all ranks get the same result.

    `together`: all ranks must call `predict` equally often, so one that has no batch left takes
    the very first again, and leaves it out. `after_batch` is called after each batch of this rank.
    """
    num_batches = -(-num_samples // _BATCH_SIZE)
    num_turns = -(-num_batches // world_size)
    numbers = range(rank, num_turns * world_size if together else num_batches, world_size)
    shares = []
    for number in numbers:
        begin = number * _BATCH_SIZE if number < num_batches else 0
        end = min(begin + _BATCH_SIZE, num_samples)
        shares.append(Share(begin=begin, end=end, filled_end=end))
    counts = torch.zeros(num_batches, 2, dtype=torch.float64, device=device)
    batches = source.epoch(torch.arange(num_samples), shares, 0)
    for number, handed in zip(numbers, batches, strict=True):
        batch = source.bring(handed)
        logits, labels = predict(batch.images).float(), batch.labels
        if number < num_batches:
            losses = F.cross_entropy(logits, labels, reduction="none")
            counts[number, 0] = losses.sum(dtype=torch.float64)
            counts[number, 1] = (logits.argmax(dim=1) == labels).sum()
        after_batch()
    source.close()  # its workers would be idle until the next evaluation
    if world_size > 1:
        dist.all_reduce(counts)  # adds zeros to each row, which rounds nothing
    loss, right = (counts.sum(dim=0) / num_samples).tolist()
    return Score(loss=loss, accuracy=right, samples=num_samples)
