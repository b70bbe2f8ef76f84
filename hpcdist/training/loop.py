"""The training loop: epochs, optimizer steps and what is between them, whatever the strategy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from hpcdist.data.arrays import Samples
from hpcdist.data.order import Share
from hpcdist.job.spec import TrainJob
from hpcdist.rank.context import RankContext
from hpcdist.training.checkpoint import checkpoint
from hpcdist.training.checkpoint import files as checkpoint_files
from hpcdist.training.checkpoint.checkpoint import Position
from hpcdist.training.checkpoint.resume import find_start, require_same_training
from hpcdist.training.checkpoint.state import flatten, take_over
from hpcdist.training.model.building import compile_module, recompute_blocks
from hpcdist.training.optimization import build_optimizer
from hpcdist.training.ranks import TrainingRank


class Trainer(TrainingRank):
    """One rank's part in a training by the torch loop."""

    def __init__(self, context: RankContext, job: TrainJob) -> None:
        """Spread the model, and make what trains it; the ranks are in their process group."""
        super().__init__(context, job)
        if job.train.activation_checkpointing:
            recompute_blocks(self.model)
        self._module = self.strategy.wrap(self.model, context, job.train)
        self._call = compile_module(self._module, self.device, setting=job.train.compile)
        self.progress.note(self.strategy.note(context))
        self._optimizer = build_optimizer(self.model, job.train)
        self._scaler = torch.amp.GradScaler(
            self.device.type, enabled=self.precision.scales_gradients
        )
        self._last_parameter = self.warm_up(self._module)

    def restore(self, path: Path) -> None:
        """Take over a checkpoint, and record what keeps the rest from being exact."""
        state = weights = checkpoint.load(path)
        require_same_training(state["identity"], self.identity, path.name)
        if checkpoint_files.is_in_parts(path):
            from hpcdist.training.checkpoint import sharded

            weights = sharded.read(path, self.model, self._optimizer)
        take_over(self.model, self._optimizer, weights)
        if state.get("scaler") and self._scaler.is_enabled():
            self._scaler.load_state_dict(state["scaler"])
        self.progress.position = Position(**state["position"])
        self.progress.write_resume(path.name, state["identity"], self.identity)
        self.seed(state["rng"])

    def train(self) -> bool:
        """Train from the position to the end, and write what happens.

        False where the agent asked to stop before: then a checkpoint is saved.
        """
        self.start_timer()
        self.time_communication(self._last_parameter)
        self._module.train()
        progress = self.progress
        if progress.is_finished and progress.position.samples:
            self._end_epoch()  # stopped after the last step: what follows is due
        while not progress.is_finished:
            if not self._train_epoch():
                self.stop(self._save)
                return False
        self.finish()
        if progress.is_end_to_save:
            self._save()
        return True

    def _train_epoch(self) -> bool:
        """Train to the end of the epoch; False where the agent asked to stop before."""
        progress = self.progress
        steps, batches = self.begin_epoch()
        for end, shares in steps:
            self._step(end, shares, batches)
            if progress.should_stop():
                return False
            if progress.is_at_max_steps:
                break
            if progress.is_step_to_save and not progress.is_at_epoch_end:
                self._save()
                self.timer.mark("checkpoint")
        self._end_epoch()
        return True

    def _end_epoch(self) -> None:
        is_complete = self.progress.is_at_epoch_end
        self.end_epoch()
        if is_complete and self.progress.is_epoch_to_save:
            self._save()

    def _step(self, end: int, shares: list[Share], batches: Iterator[Samples]) -> None:
        num_samples = end - self.progress.position.samples
        # Gradients are averaged over ranks: the mean of all samples.
        scale = self.context.world_size / num_samples
        for share in shares[:-1]:
            with self.strategy.without_sync(self._module):
                loss_sum = self._forward_backward(share, self.next_batch(batches), scale)
            self.mark_backward(is_last=False)
            self.progress.add_loss(loss_sum, share.count)
        share = shares[-1]
        loss_sum = self._forward_backward(share, self.next_batch(batches), scale)
        self.mark_backward(is_last=True)
        self._optimize()
        self.progress.add_loss(loss_sum, share.count)
        self.progress.step(end)
        self.timer.mark("optimizer")
        samples = sum(share.count for share in shares)
        self.end_step(samples=samples, loss=loss_sum / share.count if share.count else None)

    def _forward_backward(self, share: Share, batch: Samples, scale: float) -> Tensor:
        """Add the gradients of one batch; returns the sum of its losses."""
        with self.autocast:
            logits = self._call(batch.images.to(self.precision.weights))
            loss_sum = self.sum_losses(logits, batch.labels, share.count)
        torch.autograd.backward(self._scaler.scale(loss_sum * scale))
        return loss_sum.detach()

    def _optimize(self) -> None:
        self.set_rate(self._optimizer)
        if self.job.train.clip_norm is not None:
            self._scaler.unscale_(self._optimizer)
            # The norm is that of all parameters, also of the parts on other ranks.
            nn.utils.clip_grad_norm_(self.model.parameters(), self.job.train.clip_norm)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self.memory.step(self.model, self._optimizer)
        self._optimizer.zero_grad(set_to_none=True)  # nothing is filled with zeros and added to

    def _save(self) -> None:
        suffix = checkpoint_files.IN_PARTS if self.strategy.is_sharded else checkpoint_files.WHOLE
        self.save(suffix, self._write_checkpoint)

    def _write_checkpoint(self, path: Path) -> None:
        state = {
            "format": checkpoint.FORMAT,
            "scaler": self._scaler.state_dict(),
            **self.describe_state(),
        }
        is_current = self.context.is_current
        if self.strategy.is_sharded:
            from hpcdist.training.checkpoint import sharded

            tensors = flatten(self.model, self._optimizer)
            sharded.save(path, tensors, state, is_current=is_current)
        elif self.context.rank == 0:
            state["model"] = self.model.state_dict()
            state["optimizer"] = self._optimizer.state_dict()
            checkpoint.save(path, state, is_current=is_current)


def train(context: RankContext, job: TrainJob, *, has_group: bool, begin_s: float) -> bool:
    """Train in this rank, from the checkpoint to go on from or from the start.

    False where the agent asked to stop before the end: then a checkpoint is saved. The set-up began
    at `begin_s` of time.perf_counter.
    """
    trainer = Trainer(context, job)
    trainer.write_setup(begin_s)
    path = find_start(context, job, has_group=has_group)
    if path is None:
        trainer.seed([])
    else:
        trainer.restore(path)
    return trainer.train()
