"""The order of samples in an epoch, and each rank's share of it.

The order of an epoch depends on the seed and the epoch alone, never on the number of ranks: the
global batch of a step is the next piece of that order, and every rank takes its share of it. So N
ranks with batches of B see in each step what one rank with batches of N x B sees, a position in the
epoch means the same for any number of ranks, and every sample is used exactly once per epoch. The
last global batch may be small; its samples are spread evenly, and some ranks may get none. Where
ranks are lost, the steps stay what they were: each takes the same samples, in more batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

LEAST_BATCH = 2
"""Batch norm cannot train on one value per channel."""


def derive_seed(*parts: int) -> int:
    """Return a 32-bit seed (the most that torch's CPU generator uses) made of several numbers."""
    return int(np.random.SeedSequence(parts).generate_state(1)[0])


def epoch_order(
    num_samples: int, *, seed: int, epoch: int, most_filled: int = LEAST_BATCH
) -> Tensor:
    """Return the samples' indices in the order in which this epoch uses them. After the last come
    the first again, as what `Share.filled_end` may need."""
    generator = torch.Generator().manual_seed(derive_seed(seed, epoch))
    order = torch.randperm(num_samples, generator=generator)
    return torch.cat((order, order[:most_filled]))


@dataclass(frozen=True, kw_only=True)
class Share:
    """One rank's share of one global batch: positions in the epoch's order."""

    begin: int
    end: int
    """After the last position; own samples are those between."""
    filled_end: int
    """After the last position that is computed; what lies past `end` has no part in the loss.

    A rank with less than `EpochPlan.least_batch` samples computes some more, so that it takes part
    in the collectives and batch norm has something to work with; as does one whose samples cannot
    be cut into `EpochPlan.parts`.
    """

    @property
    def count(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True, kw_only=True)
class EpochPlan:
    """The optimizer steps of an epoch, or of what is left of it."""

    num_samples: int
    batch_size: int
    """Samples per rank and batch."""
    accumulate: int
    """Batches per optimizer step."""
    rank: int
    world_size: int
    full_world_size: int = 0
    """Ranks that the job has asked for: more than `world_size` where some are lost."""
    least_batch: int = LEAST_BATCH
    """Samples that a rank computes at least."""
    parts: int = 1
    """Equal parts that a rank's batch is cut into, as data_parallel does for its GPUs: cut into
    unequal ones, the last could have a single sample."""

    @property
    def samples_per_step(self) -> int:
        """Samples of a full optimizer step, over all ranks."""
        ranks = max(self.full_world_size, self.world_size)
        return self.batch_size * ranks * self.accumulate

    def num_steps(self) -> int:
        """Optimizer steps of an epoch."""
        return -(-self.num_samples // self.samples_per_step)

    def steps(self, position: int = 0) -> Iterator[tuple[int, list[Share]]]:
        """Each optimizer step from `position` on: the position after it, and this rank's shares."""
        global_batch = self.batch_size * self.world_size
        for begin in range(position, self.num_samples, self.samples_per_step):
            end = min(begin + self.samples_per_step, self.num_samples)
            firsts = range(begin, end, global_batch)
            yield end, [self._share(first, min(first + global_batch, end)) for first in firsts]

    def _share(self, first: int, last: int) -> Share:
        length = last - first
        begin = first + length * self.rank // self.world_size
        end = first + length * (self.rank + 1) // self.world_size
        least = min(self.least_batch, self.batch_size, self.num_samples)
        filled = -(-max(end - begin, least) // self.parts) * self.parts
        return Share(begin=begin, end=end, filled_end=begin + filled)
