"""How far this rank's training is: what the module, its data and the callback all go by."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from hpcdist.data.order import EpochPlan
from hpcdist.training.checkpoint.checkpoint import Position


@dataclass(kw_only=True)
class Progress:
    """The position, and what this rank adds up over an epoch or the part of it that it runs."""

    plan: EpochPlan
    device: torch.device
    position: Position = field(default_factory=Position)
    """As the torch loop counts it: an epoch whose samples are used up is not done before its
    evaluation is."""
    samples: int = 0
    global_samples: int = 0
    begin_s: float = field(default_factory=time.perf_counter)
    loss_sum: Tensor = field(default_factory=lambda: torch.zeros(()))

    @property
    def is_at_epoch_end(self) -> bool:
        """Whether all samples of the epoch are used."""
        return self.position.samples >= self.plan.num_samples

    @property
    def epochs_done(self) -> int:
        """Epochs whose samples are all used."""
        return self.position.epoch + self.is_at_epoch_end

    def begin_epoch(self) -> None:
        """What follows belongs to a new epoch, or to what is left of one."""
        self.samples = self.global_samples = 0
        self.loss_sum = torch.zeros((), device=self.device)
        self.begin_s = time.perf_counter()

    def step(self, end: int) -> None:
        """One optimizer step is done, up to this sample of the epoch."""
        self.global_samples += end - self.position.samples
        self.position = replace(self.position, step=self.position.step + 1, samples=end)

    def end_epoch(self) -> None:
        """The epoch's samples are used, and its evaluation is done."""
        self.position = Position(step=self.position.step, epoch=self.position.epoch + 1)
