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
from torch import Tensor, nn

from hpcdist.data.arrays import Samples

_BATCH_SIZE = 128  # a constant, not train.batch_size: see above


@dataclass(frozen=True, kw_only=True)
class Score:
    """What an evaluation finds, over all ranks."""

    loss: float
    """Mean over the samples."""
    accuracy: float
    """Share of right answers."""
    samples: int


def evaluate(
    predict: Callable[[Tensor], Tensor],
    test: Samples,
    *,
    rank: int,
    world_size: int,
    device: torch.device,
    together: bool = False,
    after_batch: Callable[[], None],
) -> Score:
    """Score `predict` on all of `test`; all ranks get the same result, with one all-reduce.

    `together`: all ranks must call `predict` equally often, so one that has no batch left takes its
    very first again, and leaves it out. `after_batch` is called after each batch of this rank.
    """
    scoring = Scoring(test, device)
    end = -(-scoring.num_batches // world_size) * world_size if together else scoring.num_batches
    for index in range(rank, end, world_size):
        batch = scoring.batch(index if index < scoring.num_batches else 0)
        logits = predict(batch.images)
        if index < scoring.num_batches:
            scoring.add(index, logits, batch.labels)
        after_batch()
    return scoring.score(world_size)


class Scoring:
    """The test data in batches, and what the ranks find in them."""

    def __init__(self, test: Samples, device: torch.device) -> None:
        self.num_batches = -(-len(test) // _BATCH_SIZE)
        self._test = test
        self._device = device
        self._found = torch.zeros(self.num_batches, 3, dtype=torch.float64, device=device)

    def batch(self, index: int) -> Samples:
        """One of the batches, on the device."""
        begin = index * _BATCH_SIZE
        return self._test.between(begin, begin + _BATCH_SIZE).to(self._device)

    def add(self, index: int, logits: Tensor, labels: Tensor) -> None:
        """What this rank found in a batch."""
        self._found[index] = _count(logits.float(), labels)

    def score(self, world_size: int) -> Score:
        """Add up what all ranks found, with one all-reduce, and begin anew."""
        found, self._found = self._found, torch.zeros_like(self._found)
        if world_size > 1:
            dist.all_reduce(found)  # adds zeros to each row, which rounds nothing
        loss, right, samples = found.sum(dim=0).tolist()
        return Score(loss=loss / samples, accuracy=right / samples, samples=int(samples))


def _count(logits: Tensor, labels: Tensor) -> Tensor:
    """Sum of the losses, number of right answers, number of samples."""
    loss = F.cross_entropy(logits, labels, reduction="none").sum(dtype=torch.float64)
    right = (logits.argmax(dim=1) == labels).sum(dtype=torch.float64)
    return torch.stack((loss, right, torch.full_like(loss, len(labels))))


class in_evaluation:  # noqa: N801 - used as a with statement
    """The model in evaluation mode, without gradients; in training mode again afterwards."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._inference = torch.inference_mode()

    def __enter__(self) -> None:
        self._model.eval()
        self._inference.__enter__()

    def __exit__(self, *exception: object) -> None:
        self._inference.__exit__(*exception)
        self._model.train()
