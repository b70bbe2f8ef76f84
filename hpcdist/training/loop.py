"""The training loop: epochs, optimizer steps and what is between them, whatever the strategy."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor, nn

from hpcdist.data.arrays import DataSet, Samples
from hpcdist.data.batches import make_batches
from hpcdist.data.images.device_transforms import device_note
from hpcdist.data.order import LEAST_BATCH, EpochPlan, Share, epoch_order
from hpcdist.job.spec import TrainJob
from hpcdist.rank.context import RankContext
from hpcdist.rank.timing import call_when_ready, make_timer, warm_up
from hpcdist.training.bad_files import BadFileNotes
from hpcdist.training.checkpoint.checkpoint import Position
from hpcdist.training.checkpoint.resume import (
    Loaded,
    describe_training,
    differences,
    require_same_training,
)
from hpcdist.training.checkpoint.saving import Saver
from hpcdist.training.checkpoint.state import seed_rank, set_rng_state, take_over
from hpcdist.training.epoch_line import epoch_line
from hpcdist.training.evaluation import Score, Scoring, evaluate, in_evaluation
from hpcdist.training.memory import MemoryLog
from hpcdist.training.model.building import compile_module, pick_num_threads, recompute_blocks
from hpcdist.training.model.models import pick_memory_format
from hpcdist.training.optimization import (
    PRECISIONS,
    Schedule,
    build_optimizer,
    set_rate,
)
from hpcdist.training.strategies import STRATEGIES, Place


@dataclass
class _EpochTotals:
    """What this rank adds up over an epoch, or the part of it that it runs."""

    loss_sum: Tensor
    begin_s: float
    samples: int = 0
    global_samples: int = 0


class Trainer:
    """One rank's part in a training."""

    def __init__(
        self, context: RankContext, job: TrainJob, model: nn.Module, data: DataSet
    ) -> None:
        """Bring model and data to the device; the ranks are in their process group."""
        self.context = context
        self.job = job
        self.device = torch.device(context.device)
        self.position = Position()
        self._precision = PRECISIONS[job.train.precision]
        self._precision.begin(self.device)
        self._note(self._precision.note(self.device))
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
        self._note(device_note(job.data, context.device))
        self._take_data(data)
        batch = self._first_samples(data)
        self._choose_threads(batch)
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
            tell_bad=BadFileNotes(context),
        )
        self._batches = source(data.train)
        test = data.test
        if isinstance(test, Samples):
            test = test.to(self.device, memory_format=self._memory_format)
        self._scoring = Scoring(test, self.device, source)
        self.plan = EpochPlan(
            num_samples=len(data.train),
            batch_size=job.batch_size_per_rank,
            accumulate=job.train.accumulate,
            rank=context.rank,
            world_size=context.world_size,
            least_batch=LEAST_BATCH * max(1, context.num_gpus),
            parts=max(1, context.num_gpus),
        )

    def _first_samples(self, data: DataSet) -> Samples:
        """A few to try the model with: the same on all ranks."""
        number = LEAST_BATCH * max(1, self.context.num_gpus)
        batch = data.train.probe(number).to(self.device, memory_format=self._memory_format)
        return replace(batch, images=batch.images.to(self._precision.weights))

    def _choose_threads(self, batch: Samples) -> None:
        if self.device.type != "cpu" or self.job.train.num_threads is not None:
            return
        with self._autocast:
            number = pick_num_threads(
                self.model,
                batch.images,
                batch_size=self.job.batch_size_per_rank,
                available=self.context.num_threads,
            )
        torch.set_num_threads(number)

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
        self._note(self._strategy.note(place))
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

    def _note(self, message: str | None) -> None:
        if message is not None and self.context.rank == 0:
            self.context.note(message)

    def restore(self, loaded: Loaded) -> list[str]:
        """Take over a checkpoint; returns what keeps the rest from being bit for bit the same."""
        state = loaded.state
        require_same_training(state["identity"], self._identity, loaded.path.name)
        take_over(self.model, self._optimizer, loaded.weights(self.model, self._optimizer))
        self._restore_scaler(state.get("scaler"))
        self.position = loaded.position
        differing = differences(state["identity"], self._identity)
        if len(state["rng"]) == self.context.world_size:
            set_rng_state(state["rng"][self.context.rank], self.device)
        else:
            self._seed_rank()
        return differing

    def _restore_scaler(self, state: dict[str, Any] | None) -> None:
        if state and self._scaler.is_enabled():
            self._scaler.load_state_dict(state)

    def train(self) -> bool:
        """Train from the position to the end, and write what happens.

        False where the agent asked to stop before: then a checkpoint is saved.
        """
        self._timer = make_timer(self.context, first_step=self.position.step)
        if self._times_communication and self._last_parameter is not None:
            call_when_ready(self._last_parameter, self._timer.note_last_gradient)
        self._wrapped.train()
        if self._is_finished() and self.position.samples:
            self._end_epoch(self._begin_epoch())  # stopped after the last step: what follows is due
        while not self._is_finished():
            if not self._train_epoch():
                self._stop()
                return False
        self._timer.finish()
        self._memory.end(step=self.position.step)
        setting = self.job.checkpoint
        if (setting.every_epochs or setting.every_steps) and self._saver.saved != self.position:
            self._saver.save(self.position)
        return True

    def total_steps(self) -> int:
        """Optimizer steps of the whole run."""
        steps = self.job.train.epochs * self.plan.num_steps()
        return min(steps, self.job.train.max_steps or steps)

    def _seed_rank(self) -> None:
        rank, step = self.context.rank, self.position.step
        seed_rank(self.job.train.seed, rank=rank, step=step, device=self.device)

    # One epoch.

    def _begin_epoch(self) -> _EpochTotals:
        self._timer.set_epoch(self.position.epoch)
        return _EpochTotals(
            loss_sum=torch.zeros((), device=self.device), begin_s=time.perf_counter()
        )

    def _train_epoch(self) -> bool:
        """Train to the end of the epoch; False where the agent asked to stop before."""
        totals = self._begin_epoch()
        steps = list(self.plan.steps(self.position.samples))
        batches = self._epoch_batches([share for _, shares in steps for share in shares])
        self._timer.begin()
        for end, shares in steps:
            self._step(end, shares, batches, totals)
            if self._should_stop():
                return False
            if self._is_at_max_steps():
                break
            if self._is_step_to_save() and not self._is_at_epoch_end():
                self._saver.save(self.position)
                self._timer.mark("checkpoint")
        self._end_epoch(totals)
        return True

    def _stop(self) -> None:
        """Save where the training is, unless that was done at this very step."""
        self._timer.finish()
        self._memory.end(step=self.position.step)
        if self._saver.saved != self.position:
            self._saver.save(self.position)
        self.context.events.write("stop", step=self.position.step, epoch=self.position.epoch)
        if self.context.rank == 0:
            self.context.say(
                f"stopped at step {self.position.step}, as was asked; a checkpoint is saved"
            )

    def _epoch_batches(self, shares: list[Share]) -> Iterator[Samples]:
        seed, epoch = self.job.train.seed, self.position.epoch
        order = epoch_order(
            self.plan.num_samples, seed=seed, epoch=epoch, most_filled=self.plan.least_batch
        )
        return self._batches.epoch(order, shares, epoch)

    def _end_epoch(self, totals: _EpochTotals) -> None:
        self._timer.wait()
        epoch_time_s = time.perf_counter() - totals.begin_s
        loss = float(totals.loss_sum) / totals.samples if totals.samples else None
        complete = self._is_at_epoch_end()
        if complete:
            self.position = Position(step=self.position.step, epoch=self.position.epoch + 1)
        epoch = self.position.epoch
        score = self._evaluate() if self._is_epoch_to_evaluate(complete=complete) else None
        self.context.events.write(
            "epoch", epoch=epoch, step=self.position.step, loss=loss, epoch_time_s=epoch_time_s
        )
        self._say_epoch(loss, score, totals.global_samples / epoch_time_s)
        if self._is_epoch_to_save(complete=complete):
            self._saver.save(self.position)

    def _say_epoch(self, loss: float | None, score: Score | None, samples_per_s: float) -> None:
        if self.context.rank == 0:
            self.context.say(
                epoch_line(
                    self.position,
                    epochs=self.job.train.epochs,
                    world_size=self.context.world_size,
                    loss=loss,
                    score=score,
                    samples_per_s=samples_per_s,
                )
            )

    # One step.

    def _step(
        self, end: int, shares: list[Share], batches: Iterator[Samples], totals: _EpochTotals
    ) -> None:
        begin = self.position.samples
        world_size = self.context.world_size
        scale = world_size / (end - begin)  # gradients are averaged over ranks: mean of all samples
        for share in shares[:-1]:
            with self._strategy.without_sync(self._wrapped):
                loss_sum = self._forward_backward(share, next(batches), scale)
            self._timer.mark("forward_backward")
            totals.loss_sum += loss_sum
        share = shares[-1]
        loss_sum = self._forward_backward(share, next(batches), scale)
        if self._times_communication:
            self._timer.mark_backward()
        else:
            self._timer.mark("forward_backward")
        self._optimize(begin)
        totals.loss_sum += loss_sum
        samples = sum(share.count for share in shares)
        totals.samples += samples
        totals.global_samples += end - begin
        self.position = Position(
            step=self.position.step + 1, epoch=self.position.epoch, samples=end
        )
        self._timer.mark("optimizer")
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

    def _optimize(self, begin: int) -> None:
        epochs_done = self.position.epoch + begin / self.plan.num_samples
        set_rate(
            self._optimizer, self._schedule.rate(step=self.position.step, epochs_done=epochs_done)
        )
        if self.job.train.clip_norm is not None:
            self._clip(self.job.train.clip_norm)
        self._scaler.step(self._optimizer)
        self._scaler.update()
        self._memory.step(self.model, self._optimizer, step=self.position.step)
        self._optimizer.zero_grad(set_to_none=True)  # nothing is filled with zeros and added to

    def _clip(self, norm: float) -> None:
        """The norm is that of all parameters, also of the parts on other ranks."""
        self._scaler.unscale_(self._optimizer)
        nn.utils.clip_grad_norm_(self.model.parameters(), norm)

    # What is done between steps.

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
                after_batch=self._tell_alive,
            )
        self.context.events.write(
            "evaluate",
            epoch=self.position.epoch,
            step=self.position.step,
            evaluate_time_s=time.perf_counter() - begin_s,
            **asdict(score),
        )
        return score

    def _predict(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(images.to(self._precision.weights))
        return logits

    def _tell_alive(self) -> None:
        if self.context.progress is not None:
            self.context.progress.alive()

    # When.

    def _should_stop(self) -> bool:
        return self.context.progress is not None and self.context.progress.should_stop()

    def _is_finished(self) -> bool:
        return self.position.epoch >= self.job.train.epochs or self._is_at_max_steps()

    def _is_at_max_steps(self) -> bool:
        limit = self.job.train.max_steps
        return limit is not None and self.position.step >= limit

    def _is_at_epoch_end(self) -> bool:
        return self.position.samples >= self.plan.num_samples

    def _is_step_to_save(self) -> bool:
        every = self.job.checkpoint.every_steps
        return bool(every) and self.position.step % every == 0

    def _is_epoch_to_save(self, *, complete: bool) -> bool:
        every = self.job.checkpoint.every_epochs
        by_epoch = complete and bool(every) and self.position.epoch % every == 0
        return by_epoch or (complete and self._is_step_to_save())

    def _is_epoch_to_evaluate(self, *, complete: bool) -> bool:
        every = self.job.train.evaluate_every_epochs
        if not every:
            return False
        return self._is_finished() or (complete and self.position.epoch % every == 0)
