"""Evaluation over the test data, shared by the ranks, every sample counted once.

The batches are the same for any number of ranks, each is computed by one rank, and what they give
is summed up in their order: so the loss and the number of right answers are exactly those that a
single process with as many threads finds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor, nn

from hpcdist.data.arrays import IGNORED_LABEL, Samples
from hpcdist.data.order import Share
from hpcdist.data.workers import BatchSource

if TYPE_CHECKING:
    from hpcdist.data.images.samples import ImageSamples, PixelSamples

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
    scoring: Scoring,
    *,
    rank: int,
    world_size: int,
    together: bool = False,
    after_batch: Callable[[], None],
) -> Score:
    """Score `predict` on all of the test data; all ranks get the same result, with one all-reduce.

    `together`: all ranks must call `predict` equally often, so one that has no batch left takes its
    very first again, and leaves it out. `after_batch` is called after each batch of this rank.
    """
    end = -(-scoring.num_batches // world_size) * world_size if together else scoring.num_batches
    numbers = range(rank, end, world_size)
    for number, batch in zip(numbers, scoring.batches(numbers), strict=True):
        logits = predict(batch.images)
        if number < scoring.num_batches:
            scoring.add(number, logits, batch.labels)
        after_batch()
    return scoring.score(world_size)


class Scoring:
    """The test data in batches, and what the ranks find in them."""

    def __init__(
        self,
        test: Samples | ImageSamples | PixelSamples,
        device: torch.device,
        make_source: Callable[[Samples | ImageSamples | PixelSamples], BatchSource],
    ) -> None:
        """`make_source` gives the batches of a part of the data set, see `make_batches`."""
        self.num_batches = -(-len(test) // _BATCH_SIZE)
        self._num_samples = len(test)
        self._source = _Slices(test.to(device)) if isinstance(test, Samples) else make_source(test)
        self._counts = torch.zeros(self.num_batches, 3, dtype=torch.float64, device=device)

    def batches(self, numbers: Sequence[int]) -> Iterator[Samples]:
        """These batches, on the device; the first of all for a number that is too large."""
        begins = [number * _BATCH_SIZE if number < self.num_batches else 0 for number in numbers]
        ends = [min(begin + _BATCH_SIZE, self._num_samples) for begin in begins]
        shares = [
            Share(begin=begin, end=end, filled_end=end)
            for begin, end in zip(begins, ends, strict=True)
        ]
        try:
            for batch in self._source.epoch(torch.arange(self._num_samples), shares, 0):
                yield self._source.bring(batch)
        finally:
            self._source.close()  # its workers would be idle until the next evaluation

    def add(self, index: int, logits: Tensor, labels: Tensor) -> None:
        """Count the right answers in a batch of this rank."""
        self._counts[index] = _count(logits.float(), labels)

    def score(self, world_size: int) -> Score:
        """Add up what all ranks found, with one all-reduce, and begin anew."""
        counts, self._counts = self._counts, torch.zeros_like(self._counts)
        if world_size > 1:
            dist.all_reduce(counts)  # adds zeros to each row, which rounds nothing
        loss, right, samples = counts.sum(dim=0).tolist()
        counted = max(1.0, samples)  # none where all files are bad
        return Score(loss=loss / counted, accuracy=right / counted, samples=int(samples))


class _Slices(BatchSource):
    """Batches of samples in memory, in their own order: without a copy."""

    def __init__(self, samples: Samples) -> None:
        self._samples = samples

    def epoch(self, order: Tensor, shares: Sequence[Share], epoch: int) -> Iterator[Samples]:  # noqa: ARG002
        return (self._samples.between(share.begin, share.filled_end) for share in shares)


def _count(logits: Tensor, labels: Tensor) -> Tensor:
    """Sum of the losses, number of right answers, number of samples; ignored ones left out."""
    loss = F.cross_entropy(logits, labels, reduction="none").sum(dtype=torch.float64)
    right = (logits.argmax(dim=1) == labels).sum(dtype=torch.float64)
    return torch.stack((loss, right, (labels != IGNORED_LABEL).sum(dtype=torch.float64)))


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
