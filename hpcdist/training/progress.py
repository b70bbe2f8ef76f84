"""Progress of a training: its position, what is due, what is recorded; for both trainers."""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from hpcdist.data.arrays import BadFile
from hpcdist.data.order import EpochPlan
from hpcdist.job.spec import TrainingJob
from hpcdist.rank.context import RankContext
from hpcdist.runs.events import Epoch, Evaluation, Resume
from hpcdist.training.checkpoint.checkpoint import Position
from hpcdist.training.checkpoint.resume import describe_differences
from hpcdist.training.evaluation import Score

_NAMED = 20
"""Skipped files that are named; whoever has more looks for all of them."""

_COUNTED = frozenset(10**power for power in range(2, 9))


class Progress:
    """The position of a training, and what this rank adds up over an epoch, or a part of it."""

    def __init__(self, context: RankContext, job: TrainingJob, plan: EpochPlan) -> None:
        self.context = context
        self.job = job
        self.plan = plan
        self.device = torch.device(context.device)
        self.position = Position()
        """An epoch whose samples are all used is not done before its evaluation is."""
        self.saved: Position | None = None
        """The position of the last checkpoint."""
        self.begin_epoch()

    def begin_epoch(self) -> None:
        """Add up anew: a new epoch begins, or what is left of one."""
        self.loss_sum = torch.zeros((), device=self.device)
        self.samples = self.global_samples = 0
        self._begin_s = time.perf_counter()
        self.epoch_time_s = 0.0

    def add_loss(self, loss_sum: Tensor, samples: int) -> None:
        self.loss_sum += loss_sum
        self.samples += samples

    def step(self, end: int) -> None:
        """Count an optimizer step, after which so many samples of the epoch are used."""
        self.global_samples += end - self.position.samples
        self.position = replace(self.position, step=self.position.step + 1, samples=end)

    def end_steps(self) -> None:
        """Note the time: the steps of the epoch are done, and all of this rank's work."""
        self.epoch_time_s = time.perf_counter() - self._begin_s

    def end_epoch(self, score: Score | None) -> None:
        """Count the epoch where it is complete, record it, and print its line."""
        if self.is_at_epoch_end:
            self.position = Position(step=self.position.step, epoch=self.position.epoch + 1)
        loss = float(self.loss_sum) / self.samples if self.samples else None
        self.context.events.write(
            Epoch(
                epoch=self.position.epoch,
                step=self.position.step,
                loss=loss,
                epoch_time_s=self.epoch_time_s,
            )
        )
        if self.context.rank != 0:
            return
        line = f"epoch {self.position.epoch}/{self.job.train.epochs}"
        if self.position.samples:
            line += f" and {self.position.samples:,} samples"
        if loss is not None:
            own = " (rank 0)" if self.context.world_size > 1 else ""  # all else is of all ranks
            line += f"  loss {loss:.4f}{own}"
        if score:
            line += f"  accuracy {100 * score.accuracy:.2f} %"
        if loss is not None:
            line += f"  {self.global_samples / self.epoch_time_s:,.0f} samples/s"
        self.context.say(line)

    # What is due.

    @property
    def total_steps(self) -> int:
        steps = self.job.train.epochs * self.plan.num_steps()
        return min(steps, self.job.train.max_steps or steps)

    @property
    def epochs_done(self) -> int:
        """Epochs whose samples are all used."""
        return self.position.epoch + self.is_at_epoch_end

    @property
    def is_at_epoch_end(self) -> bool:
        """All samples of the epoch are used."""
        return self.position.samples >= self.plan.num_samples

    @property
    def is_at_max_steps(self) -> bool:
        limit = self.job.train.max_steps
        return limit is not None and self.position.step >= limit

    @property
    def is_finished(self) -> bool:
        """No step is left to train."""
        return self.epochs_done >= self.job.train.epochs or self.is_at_max_steps

    @property
    def is_evaluation_due(self) -> bool:
        """An evaluation is due where the steps of an epoch, or of the training, end."""
        every = self.job.train.evaluate_every_epochs
        if not every:
            return False
        return self.is_finished or (self.is_at_epoch_end and self.epochs_done % every == 0)

    @property
    def is_step_to_save(self) -> bool:
        """checkpoint.every_steps asks for a checkpoint at this step."""
        every = self.job.checkpoint.every_steps
        return bool(every) and self.position.step % every == 0

    @property
    def is_epoch_to_save(self) -> bool:
        """A checkpoint is asked for after an epoch that is counted."""
        every = self.job.checkpoint.every_epochs
        by_epoch = bool(every) and self.position.epoch % every == 0
        return by_epoch or self.is_step_to_save

    @property
    def is_end_to_save(self) -> bool:
        """The last state is to be saved, and is not yet."""
        setting = self.job.checkpoint
        return bool(setting.every_epochs or setting.every_steps) and self.saved != self.position

    def should_stop(self) -> bool:
        return self.context.progress.should_stop()

    # What is told.

    def tell_alive(self) -> None:
        """Tell the agent that the rank makes progress, though no step is done."""
        self.context.progress.alive()

    def note(self, message: str | None) -> None:
        """Note what holds for all ranks, once."""
        if message is not None and self.context.rank == 0:
            self.context.note(message)

    def write_resume(self, checkpoint: str, before: dict[str, Any], now: dict[str, Any]) -> None:
        """Record that the training goes on, and what differs between both descriptions."""
        position, context = self.position, self.context
        differing = describe_differences(before, now)
        context.events.write(
            Resume(
                checkpoint=checkpoint,
                step=position.step,
                epoch=position.epoch,
                exact=not differing,
                world_size_before=before["world_size"],
            )
        )
        if context.rank != 0:
            return
        context.say(f"going on from {checkpoint}: step {position.step}, epoch {position.epoch}")
        if differing:
            context.note(f"the resume is not bit for bit exact: {'; '.join(differing)}")

    def write_evaluation(self, score: Score) -> None:
        self.context.events.write(
            Evaluation(epoch=self.epochs_done, step=self.position.step, **asdict(score))
        )


class BadFileNotes:
    """Names the files that this rank skips, each once, in the notes of the run."""

    def __init__(self, context: RankContext) -> None:
        self._context = context
        self._number = 0

    def __call__(self, bad: BadFile) -> None:
        """Note a file that is no image."""
        self._number += 1
        if self._number <= _NAMED:
            self._context.note(f"skipped, with no part in the loss: {bad}")
        elif self._number in _COUNTED:
            self._context.note(f"{self._number:,} files are skipped so far")
        elif self._number == _NAMED + 1:
            self._context.note(
                f"more than {_NAMED} files are skipped; hpcdist data check names all of them"
            )
