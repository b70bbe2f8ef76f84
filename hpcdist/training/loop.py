"""The training loop: epochs, optimizer steps and what is between them, whatever the strategy."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor, nn

from hpcdist.data.arrays import DataSet, Samples
from hpcdist.data.batches import make_batches
from hpcdist.data.catalog import load_data
from hpcdist.data.images.memory import share_decoded
from hpcdist.data.order import LEAST_BATCH, EpochPlan, Share, epoch_order
from hpcdist.job.spec import TrainJob
from hpcdist.rank.context import RankContext
from hpcdist.rank.timing import call_when_ready, make_timer, warm_up
from hpcdist.training.checkpoint.resume import (
    Loaded,
    describe_training,
    load_start,
    require_same_training,
)
from hpcdist.training.checkpoint.saving import Saver
from hpcdist.training.checkpoint.state import seed_rank, set_rng_state, take_over
from hpcdist.training.evaluation import Score, Scoring, evaluate, in_evaluation
from hpcdist.training.memory import MemoryLog
from hpcdist.training.model.building import (
    build_noted,
    compile_module,
    recompute_blocks,
    set_num_threads,
)
from hpcdist.training.model.models import count_parameters, pick_memory_format
from hpcdist.training.optimization import (
    PRECISIONS,
    Schedule,
    build_optimizer,
    set_rate,
)
from hpcdist.training.progress import BadFileNotes, Progress
from hpcdist.training.strategies import STRATEGIES, Place


class Trainer:
    """One rank's part in a training."""

    def __init__(
        self, context: RankContext, job: TrainJob, model: nn.Module, data: DataSet
    ) -> None:
        """Bring model and data to the device; the ranks are in their process group."""
        self.context = context
        self.job = job
        self.device = torch.device(context.device)
        self._precision = PRECISIONS[job.train.precision]
        self._precision.begin(self.device)
        self.plan = EpochPlan(
            num_samples=len(data.train),
            batch_size=job.batch_size_per_rank,
            accumulate=job.train.accumulate,
            rank=context.rank,
            world_size=context.world_size,
            least_batch=LEAST_BATCH * max(1, context.num_gpus),
            parts=max(1, context.num_gpus),
        )
        self.progress = Progress(context, job, self.plan)
        self.progress.note(self._precision.note(self.device))
        self.progress.note_device_transform()
        self._autocast = self._precision.autocasting(self.device)
        self._memory_format = pick_memory_format(
            model,
            setting=job.train.channels_last,
            sharded=STRATEGIES[job.strategy].is_sharded,
            tensor_cores=self._precision.uses_tensor_cores,
            device=self.device,
        )
        model = model.to(self._precision.weights).to(memory_format=self._memory_format)
        # One that is cut up comes to the device in parts: it may not fit there as a whole.
        self.model = model if STRATEGIES[job.strategy].is_sharded else model.to(self.device)
        self._take_data(data)
        batch = self._first_samples(data)
        if job.train.num_threads is None:
            with self._autocast:
                set_num_threads(
                    self.model,
                    batch.images,
                    batch_size=job.batch_size_per_rank,
                    available=context.num_threads,
                )
        self._build(job)
        self._seed_rank()
        self._last_parameter = warm_up(
            self._wrapped, batch, self._autocast, num_classes=data.num_classes
        )

    def _take_data(self, data: DataSet) -> None:
        job, context = self.job, self.context
        source = partial(
            make_batches,
            device=self.device,
            data=job.data,
            memory_format=self._memory_format,
            report_bad=BadFileNotes(context),
        )
        self._batches = source(data.train)
        test = data.test
        if isinstance(test, Samples):
            test = test.to(self.device, memory_format=self._memory_format)
        self._scoring = Scoring(test, self.device, source)

    def _first_samples(self, data: DataSet) -> Samples:
        """Return a few to try the model with: the same on all ranks."""
        number = LEAST_BATCH * max(1, self.context.num_gpus)
        batch = data.train.probe(number).to(self.device, memory_format=self._memory_format)
        return replace(batch, images=batch.images.to(self._precision.weights))

    def _build(self, job: TrainJob) -> None:
        """Spread the model, and make what trains and saves it."""
        if job.train.activation_checkpointing:
            recompute_blocks(self.model)
        self._strategy = STRATEGIES[job.strategy]
        # A single rank has nobody to wait for: what DDP does at the end is a part of its backward.
        self._times_communication = (
            self._strategy.tells_last_gradient and self.context.world_size > 1
        )
        place = Place(device=self.device, num_gpus=self.context.num_gpus, train=job.train)
        self._wrapped = self._strategy.wrap(self.model, place)
        self._call = compile_module(self._wrapped, self.device, setting=job.train.compile)
        self.progress.note(self._strategy.note(place))
        self._optimizer = build_optimizer(self.model, job.train)
        self._scaler = self._precision.make_scaler(self.device)
        self._schedule = Schedule(train=job.train)
        self._memory = MemoryLog(self.context.events, self.device)
        self._identity = describe_training(job, self.context)
        self._saver = Saver(
            self.context,
            keep=job.checkpoint.keep,
            model=self.model,
            optimizer=self._optimizer,
            scaler=self._scaler,
            identity=self._identity,
            in_parts=self._strategy.is_sharded,
        )

    def restore(self, loaded: Loaded) -> None:
        """Take over a checkpoint, and record what keeps the rest from being exact."""
        state = loaded.state
        require_same_training(state["identity"], self._identity, loaded.path.name)
        take_over(self.model, self._optimizer, loaded.weights(self.model, self._optimizer))
        self._restore_scaler(state.get("scaler"))
        self.progress.position = loaded.position
        self.progress.write_resume(loaded.path.name, state["identity"], self._identity)
        if len(state["rng"]) == self.context.world_size:
            set_rng_state(state["rng"][self.context.rank], self.device)
        else:
            self._seed_rank()

    def _restore_scaler(self, state: dict[str, Any] | None) -> None:
        if state and self._scaler.is_enabled():
            self._scaler.load_state_dict(state)

    def train(self) -> bool:
        """Train from the position to the end, and write what happens.

        False where the agent asked to stop before: then a checkpoint is saved.
        """
        self._timer = make_timer(self.context, first_step=self.progress.position.step)
        if self._times_communication and self._last_parameter is not None:
            call_when_ready(self._last_parameter, self._timer.note_last_gradient)
        self._wrapped.train()
        progress = self.progress
        if progress.is_finished and progress.position.samples:
            self._end_epoch()  # stopped after the last step: what follows is due
        while not progress.is_finished:
            if not self._train_epoch():
                self._stop()
                return False
        self._end()
        if progress.is_end_to_save:
            self._save()
        return True

    def _end(self) -> None:
        self._timer.finish()
        self._memory.end(step=self.progress.position.step)

    def _save(self) -> None:
        self._saver.save(self.progress.position)
        self.progress.saved = self.progress.position

    def _seed_rank(self) -> None:
        rank, step = self.context.rank, self.progress.position.step
        seed_rank(self.job.train.seed, rank=rank, step=step, device=self.device)

    # One epoch.

    def _train_epoch(self) -> bool:
        """Train to the end of the epoch; False where the agent asked to stop before."""
        progress = self.progress
        progress.begin_epoch()
        self._timer.set_epoch(progress.position.epoch)
        steps = list(self.plan.steps(progress.position.samples))
        batches = self._epoch_batches([share for _, shares in steps for share in shares])
        self._timer.begin()
        for end, shares in steps:
            self._step(end, shares, batches)
            if progress.should_stop():
                return False
            if progress.is_at_max_steps:
                break
            if progress.is_step_to_save and not progress.is_at_epoch_end:
                self._save()
                self._timer.mark("checkpoint")
        self._end_epoch()
        return True

    def _stop(self) -> None:
        """Save where the training is, unless that was done at this very step."""
        self._end()
        if self.progress.saved != self.progress.position:
            self._save()
        self.progress.write_stop()

    def _epoch_batches(self, shares: list[Share]) -> Iterator[Samples]:
        seed, epoch = self.job.train.seed, self.progress.position.epoch
        order = epoch_order(
            self.plan.num_samples, seed=seed, epoch=epoch, most_filled=self.plan.least_batch
        )
        return self._batches.epoch(order, shares, epoch)

    def _end_epoch(self) -> None:
        progress = self.progress
        self._timer.wait()
        progress.end_steps()
        score = self._evaluate() if progress.is_evaluation_due else None
        is_complete = progress.is_at_epoch_end
        progress.end_epoch(score)
        if is_complete and progress.is_epoch_to_save:
            self._save()

    # One step.

    def _step(self, end: int, shares: list[Share], batches: Iterator[Samples]) -> None:
        begin = self.progress.position.samples
        world_size = self.context.world_size
        scale = world_size / (end - begin)  # gradients are averaged over ranks: mean of all samples
        for share in shares[:-1]:
            with self._strategy.without_sync(self._wrapped):
                loss_sum = self._forward_backward(share, next(batches), scale)
            self._timer.mark("forward_backward")
            self.progress.add_loss(loss_sum, share.count)
        share = shares[-1]
        loss_sum = self._forward_backward(share, next(batches), scale)
        if self._times_communication:
            self._timer.mark_backward()
        else:
            self._timer.mark("forward_backward")
        self._optimize()
        self.progress.add_loss(loss_sum, share.count)
        self.progress.step(end)
        self._timer.mark("optimizer")
        samples = sum(share.count for share in shares)
        self._timer.step(samples=samples, loss=loss_sum / share.count if share.count else None)

    def _forward_backward(self, share: Share, batch: Samples, scale: float) -> Tensor:
        """Add the gradients of one batch; returns the sum of its losses."""
        self._timer.mark("data_wait")
        if not self._batches.on_device:
            batch = self._batches.bring(batch)
            self._timer.mark("host_to_device")
        with self._autocast:
            logits: Tensor = self._call(batch.images.to(self._precision.weights)).float()
            if share.count < len(batch):
                logits, labels = logits[: share.count], batch.labels[: share.count]
            else:
                labels = batch.labels
            loss_sum = F.cross_entropy(logits, labels, reduction="sum")
        torch.autograd.backward(self._scaler.scale(loss_sum * scale))
        return loss_sum.detach()

    def _optimize(self) -> None:
        step = self.progress.position.step
        rate = self._schedule.rate(step=step, epochs_done=self.progress.exact_epochs_done)
        set_rate(self._optimizer, rate)
        if self.job.train.clip_norm is not None:
            self._clip(self.job.train.clip_norm)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._memory.step(self.model, self._optimizer, step=step)
        self._optimizer.zero_grad(set_to_none=True)  # nothing is filled with zeros and added to

    def _clip(self, norm: float) -> None:
        """The norm is that of all parameters, also of the parts on other ranks."""
        self._scaler.unscale_(self._optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), norm)

    def _evaluate(self) -> Score:
        begin_s = time.perf_counter()
        self._strategy.align_buffers(self._wrapped)
        with in_evaluation(self.model), self._autocast:
            score = evaluate(
                self._predict,
                self._scoring,
                rank=self.context.rank,
                world_size=self.context.world_size,
                together=self._strategy.is_sharded,
                after_batch=self.progress.tell_alive,
            )
        self.progress.write_evaluation(score, begin_s)
        return score

    def _predict(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(images.to(self._precision.weights))
        return logits


def train(context: RankContext, job: TrainJob, *, has_group: bool, begin_s: float) -> bool:
    """Train in this rank, from the checkpoint to go on from or from the start.

    False where the agent asked to stop before the end: then a checkpoint is saved. The set-up began
    at `begin_s` of time.perf_counter.
    """
    data = load_data(job.data, seed=job.train.seed, device=context.device)
    share_decoded(data, context, job, has_group=has_group)
    model = build_noted(job, data, context.events)
    parameters = count_parameters(model)
    trainer = Trainer(context, job, model, data)
    trainer.progress.write_setup(
        data, parameters=parameters, setup_time_s=time.perf_counter() - begin_s
    )
    loaded = load_start(context, job, has_group=has_group)
    if loaded is not None:
        trainer.restore(loaded)
    return trainer.train()
