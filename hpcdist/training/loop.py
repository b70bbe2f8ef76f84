"""The training loop, from the job to the last evaluation, whatever the strategy."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor, nn

from hpcdist.base.errors import HpcdistError
from hpcdist.data.arrays import Samples
from hpcdist.data.batches import make_batches
from hpcdist.data.catalog import load_data
from hpcdist.data.order import LEAST_BATCH, EpochPlan, Share, epoch_order
from hpcdist.job.spec import TrainJob
from hpcdist.rank.context import RankContext
from hpcdist.rank.model import Digester, count_flops
from hpcdist.rank.profiling import Profiler
from hpcdist.rank.timing import call_when_ready, make_timer, warm_up
from hpcdist.runs.events import Epoch, Flops, Memory, Resume, Save, Setup
from hpcdist.training.checkpoint import checkpoint
from hpcdist.training.checkpoint import files as checkpoint_files
from hpcdist.training.evaluation import Score, record_epoch, score_model
from hpcdist.training.models import count_parameters, make_model, pick_num_threads, seed_all
from hpcdist.training.strategies import PRECISIONS, STRATEGIES, build_optimizer, learning_rate


@dataclass(frozen=True, kw_only=True)
class Position:
    """The position of a training. An epoch whose samples are all used is not done before its
    evaluation is."""

    step: int = 0
    """Optimizer steps done."""
    epoch: int = 0
    """Epochs done."""
    samples: int = 0
    """Samples of the epoch in progress that are used, over all ranks."""
    best: float | None = None
    """Loss or accuracy of the best evaluation, by train.monitor; None: there was none."""
    num_worse: int = 0
    """Evaluations since the best."""


class Milestones:
    """The position of a training, and what is due there."""

    def __init__(self, job: TrainJob, plan: EpochPlan) -> None:
        self._train, self._checkpoint, self._plan = job.train, job.checkpoint, plan
        self.position = Position()

    @property
    def total_steps(self) -> int:
        steps = self._train.epochs * self._plan.num_steps()
        return min(steps, self._train.max_steps or steps)

    @property
    def epochs_done(self) -> int:
        """Epochs whose samples are all used."""
        return self.position.epoch + self.is_at_epoch_end

    @property
    def is_at_epoch_end(self) -> bool:
        """All samples of the epoch are used."""
        return self.position.samples >= self._plan.num_samples

    @property
    def has_lost_patience(self) -> bool:
        patience = self._train.patience
        return patience is not None and self.position.num_worse >= patience

    @property
    def is_finished(self) -> bool:
        """No step is left to train."""
        is_last = self.epochs_done >= self._train.epochs
        is_last = is_last or self.position.step >= (self._train.max_steps or math.inf)
        return is_last or self.has_lost_patience

    @property
    def is_step_to_save(self) -> bool:
        """checkpoint.every_steps asks for a checkpoint at this step."""
        every = self._checkpoint.every_steps
        return bool(every) and self.position.step % every == 0

    @property
    def is_to_evaluate(self) -> bool:
        every = self._train.evaluate_every_epochs
        is_due = self.is_at_epoch_end and self.epochs_done % (every or 1) == 0
        return every > 0 and (self.is_finished or is_due)

    @property
    def why_early(self) -> str | None:
        """Why the training ends before its last epoch; None where it does not."""
        if self.position.epoch >= self._train.epochs or not self.has_lost_patience:
            return None
        return (
            f"the training ends early, after {self.position.num_worse} evaluations without a "
            f"better {self._train.monitor} than {self.position.best:.4g}; see train.patience"
        )

    def begin_next_epoch(self) -> None:
        self.position = replace(self.position, epoch=self.position.epoch + 1, samples=0)

    def judge(self, score: Score) -> None:
        """Note whether an evaluation is the best so far."""
        best, is_accuracy = self.position.best, self._train.monitor == "accuracy"
        value = score.accuracy if is_accuracy else score.loss
        is_better = best is None or (value > best if is_accuracy else value < best)
        if is_better and not math.isnan(value):
            self.position = replace(self.position, best=value, num_worse=0)
        else:
            self.position = replace(self.position, num_worse=self.position.num_worse + 1)


class Trainer:
    """One rank's part in a training."""

    def __init__(self, context: RankContext, job: TrainJob) -> None:
        """Load the data, and build and spread the model; the ranks are in their process group."""
        self.context, self.job = context, job
        self.device = device = torch.device(context.device)
        self._precision = PRECISIONS[job.train.precision]
        self._strategy = STRATEGIES[job.strategy]
        data = load_data(job.data, seed=job.train.seed)

        is_sharded = self._strategy.is_sharded
        model, memory_format = make_model(job, data, device, is_sharded=is_sharded)
        num_parameters = count_parameters(model)
        # One that is cut up comes to the device in parts: it may not fit there as a whole.
        self.model = model if is_sharded else model.to(device)

        # Batches.
        self.plan = plan_epochs(job, context, len(data.train))
        self._source, test_source = (
            make_batches(part, device, job.data, memory_format=memory_format)
            for part in (data.train, data.test)
        )

        # A few samples to try the model with, the same on all ranks.
        first = data.train.probe(self.plan.least_batch).to(device, memory_format=memory_format)
        weigh_model(self.model, first, context, job)  # before it is cut up

        # The model as it is called, and what trains it.
        self._autocast = self._precision.autocasting(device)
        score = partial(score_model, self.model, test_source, len(data.test), context)
        self._score = partial(score, autocast=self._autocast, together=is_sharded)
        self._module = self._strategy.wrap(self.model, context, job.train)
        self._optimizer = build_optimizer(self.model, job.train)
        self._scaler = torch.amp.GradScaler(device.type, enabled=self._precision.scales_gradients)
        last_gradient = warm_up(self._module, first, self._autocast, num_classes=data.num_classes)
        # A single rank has nobody to wait for: what DDP does at the end is a part of its backward.
        self._tells_waiting = context.world_size > 1 and self._strategy.tells_last_gradient
        self._last_gradient = last_gradient if self._tells_waiting else None

        self.identity = describe_training(job, context)
        self.due = Milestones(job, self.plan)
        self._saved: Position | None = None
        self._has_noted_memory = False
        context.events.write(Setup(parameters=num_parameters, total_steps=self.due.total_steps))

    def restore(self, path: Path) -> None:
        """Take over a checkpoint, and record what keeps the rest from being exact."""
        context = self.context
        state = checkpoint.load_state(path)
        differing = compare_trainings(state["identity"], self.identity, path.name)
        apart = self._strategy.is_sharded
        checkpoint.load_tensors(path, self.model, self._optimizer, apart=apart)
        if state["scaler"] and self._scaler.is_enabled():
            self._scaler.load_state_dict(state["scaler"])
        self.due.position = position = Position(**state["position"])
        if state["monitor"] != self.job.train.monitor:
            self.due.position = replace(position, best=None, num_worse=0)
        context.events.write(
            Resume(
                checkpoint=path.name,
                step=position.step,
                epoch=position.epoch,
                exact=not differing,
            )
        )
        if context.rank == 0:
            at = f"step {position.step}, epoch {position.epoch}"
            context.say(f"going on from {path.name}: {at}")
            if differing:
                context.note(f"the resume is not bit for bit exact: {'; '.join(differing)}")

    # Training.

    def train(self) -> bool:
        """Train from the position to the end, and write what happens.

        False where the agent asked to stop before: then a checkpoint is saved.
        """
        first_step = self.due.position.step
        self.timer = make_timer(self.context, first_step=first_step)
        Profiler(self.context, self.timer)
        self._digester = Digester(self.context, self.timer, self.model, first_step=first_step)
        if self._last_gradient is not None:  # what follows in a backward pass is waiting
            call_when_ready(self._last_gradient, self.timer.note_last_gradient)
        self._module.train()
        if self.due.is_finished and self.due.position.samples:
            self._begin_sums()
            self._end_epoch()  # stopped after the last step: what follows is due
        while not self.due.is_finished:
            if not self._train_epoch():
                return False
        self.timer.finish()
        setting = self.job.checkpoint
        if (setting.every_epochs or setting.every_steps) and self._saved != self.due.position:
            self._save()
        return True

    def _train_epoch(self) -> bool:
        """Train to the end of the epoch; False where the agent asked to stop before."""
        steps, batches = self.begin_epoch()
        for end, shares in steps:
            self._step(end, shares, batches)
            if self.context.progress.should_stop():
                self.timer.finish()
                if self._saved != self.due.position:
                    self._save()
                if self.context.rank == 0:
                    step = self.due.position.step
                    self.context.say(f"stopped at step {step}, as was asked; a checkpoint is saved")
                return False
            if self.due.is_finished:
                break
            if self.due.is_step_to_save and not self.due.is_at_epoch_end:
                self._save()
                self.timer.mark("checkpoint")
        is_complete = self.due.is_at_epoch_end
        self._end_epoch()
        every = self.job.checkpoint.every_epochs
        is_due = self.due.is_step_to_save or (every and self.due.position.epoch % every == 0)
        if is_complete and is_due and self._saved != self.due.position:
            self._save()
        return True

    def begin_epoch(self) -> tuple[list[tuple[int, list[Share]]], Iterator[Samples]]:
        """Begin an epoch, or what is left of it: returns its steps, and all of their batches."""
        self._begin_sums()
        position, plan = self.due.position, self.plan
        self.timer.set_epoch(position.epoch)
        steps = list(plan.steps(position.samples))
        order = epoch_order(
            plan.num_samples,
            seed=self.job.train.seed,
            epoch=position.epoch,
            most_filled=plan.least_batch,
        )
        shares = [share for _, shares in steps for share in shares]
        batches = self._source.epoch(order, shares, position.epoch)
        return steps, batches

    def _begin_sums(self) -> None:
        self._loss_sum = torch.zeros((), device=self.device)
        self._samples = self._global_samples = 0
        self._begin_s = time.perf_counter()

    def _step(self, end: int, shares: list[Share], batches: Iterator[Samples]) -> None:
        """Take an optimizer step, after which so many samples of the epoch are used."""
        position, timer = self.due.position, self.timer
        # By rank and step, so that a resume draws what the training would have drawn.
        drawn = hash((self.job.train.seed, self.context.rank, position.step))  # of integers
        seed_all(drawn & 0xFFFFFFFF, self.device)
        num_samples = end - position.samples
        # Gradients are averaged over ranks: the mean of all samples.
        scale = self.context.world_size / num_samples
        own_samples = 0
        for share in shares:
            is_last = share is shares[-1]
            batch = next(batches)
            timer.mark("data_wait")
            if not self._source.on_device:
                batch = self._source.bring(batch)
                timer.mark("host_to_device")
            if len(shares) > 1:
                self._strategy.set_sync(self._module, is_on=is_last)
            loss_sum = self._forward_backward(share, batch, scale)
            if is_last and self._tells_waiting:
                timer.mark_backward()
            else:
                timer.mark("forward_backward")
            own_samples += share.count
            if is_last:
                rate = self._optimize()
            self._loss_sum += loss_sum
        self._samples += own_samples
        self._global_samples += num_samples
        self.due.position = replace(position, step=position.step + 1, samples=end)
        timer.mark("optimizer")
        loss = loss_sum / shares[-1].count if shares[-1].count else None
        timer.step(samples=own_samples, loss=loss, learning_rate=rate)
        self._digester.step(self.due.position.step, loss=loss)

    def _forward_backward(self, share: Share, batch: Samples, scale: float) -> Tensor:
        """Add the gradients of one batch; returns the sum of its losses."""
        with self._autocast:
            logits, labels = self._module(batch.images), batch.labels
            if share.count < len(labels):  # samples beyond the own ones have no part in the loss
                logits, labels = logits[: share.count], labels[: share.count]
            loss_sum = F.cross_entropy(logits.float(), labels, reduction="sum")
        torch.autograd.backward(self._scaler.scale(loss_sum * scale))
        return loss_sum.detach()

    def _optimize(self) -> float:
        """Take the step with the gradients that are there; returns its learning rate."""
        position, train = self.due.position, self.job.train
        epochs_done = position.epoch + position.samples / self.plan.num_samples
        rate = learning_rate(train, step=position.step, epochs_done=epochs_done)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._scaler.step(self._optimizer)
        self._scaler.update()
        if not self._has_noted_memory:
            self._has_noted_memory = True
            self.context.events.write(measure_memory(self.model, self._optimizer))
        self._optimizer.zero_grad(set_to_none=True)  # nothing is filled with zeros and added to
        return rate

    def _end_epoch(self) -> None:
        """Evaluate where that is due, count the epoch where it is complete, and record it."""
        self.timer.wait()
        time_s = time.perf_counter() - self._begin_s
        score = None
        if self.due.is_to_evaluate:
            self._strategy.align_buffers(self.model)
            score = self._score()
            self.due.judge(score)
        if self.due.is_at_epoch_end:
            self.due.begin_next_epoch()
        position = self.due.position
        loss = float(self._loss_sum) / self._samples if self._samples else None
        event = Epoch(epoch=position.epoch, step=position.step, loss=loss, epoch_time_s=time_s)
        begun_of = self.due.total_steps if position.samples else None
        epochs, num = self.job.train.epochs, self._global_samples
        record_epoch(self.context, event, score, epochs=epochs, begun_of=begun_of, num_samples=num)
        if self.job.train.keep_best and score and not position.num_worse:
            self._save(is_best=True)
        if self.due.why_early is not None and self.context.rank == 0:
            self.context.note(self.due.why_early)

    def _save(self, *, is_best: bool = False) -> None:
        """Save a checkpoint; called by all ranks. Those of copies of the model are rank 0's."""
        context, together = self.context, self._strategy.is_sharded
        begin_s = time.perf_counter()
        self._saved = self.due.position
        path = context.run.checkpoints_folder / checkpoint_files.file_name(self.due.position.step)
        if together or context.rank == 0:
            state = {
                "scaler": self._scaler.state_dict(),
                "position": asdict(self.due.position),
                "monitor": self.job.train.monitor,
                "identity": self.identity,
            }
            tensors = checkpoint.flatten(self.model, self._optimizer)
            is_current = context.is_current
            checkpoint.save(path, tensors, state, is_current=is_current, together=together)
        if context.rank == 0:
            if is_best:
                checkpoint_files.mark_best(path)
            checkpoint_files.remove_old(path.parent, self.job.checkpoint.keep)
            save_time_s = time.perf_counter() - begin_s
            context.events.write(Save(step=self.due.position.step, save_time_s=save_time_s))


def plan_epochs(job: TrainJob, context: RankContext, num_samples: int) -> EpochPlan:
    parts = max(1, context.num_gpus)
    return EpochPlan(
        num_samples=num_samples,
        batch_size=job.batch_size_per_rank,
        accumulate=job.train.accumulate,
        rank=context.rank,
        world_size=context.world_size,
        full_world_size=job.num_ranks,
        least_batch=LEAST_BATCH * parts,
        parts=parts,
    )


def weigh_model(model: nn.Module, first: Samples, context: RankContext, job: TrainJob) -> None:
    """Record the operations that a sample takes, and use as many threads as they are worth."""
    picks_threads = job.train.num_threads is None and not context.device.startswith("cuda")
    if picks_threads or job.record.flops:
        flops = count_flops(model, first.images)
        if flops is not None and job.record.flops:
            context.events.write(Flops(per_sample=flops, precision=job.train.precision))
        if picks_threads:
            step_flop = flops and flops * job.batch_size_per_rank
            torch.set_num_threads(pick_num_threads(step_flop, available=context.num_threads))


def measure_memory(model: nn.Module, optimizer: torch.optim.Optimizer) -> Memory:
    """Return what a training holds on this rank while its gradients are there."""

    def size(values: Iterable[Any]) -> int:
        # Those that are cut up over the ranks are DTensors, whose import costs time.
        own = (value.to_local() if hasattr(value, "to_local") else value for value in values)
        return sum(tensor.nbytes for tensor in own if hasattr(tensor, "nbytes"))

    kept = (value for state in optimizer.state.values() for value in state.values())
    return Memory(
        parameter_bytes=size([*model.parameters(), *model.buffers()]),
        gradient_bytes=size(parameter.grad for parameter in model.parameters()),
        optimizer_bytes=size(kept),
    )


# What makes two trainings the same, so that one can go on from the checkpoint of the other.

_NO_MATTER = {
    *("data.root", "data.workers", "data.download"),
    *("data.pin_memory", "data.prefetch_factor", "data.multiprocessing_context"),
    *("train.evaluate_every_epochs", "train.num_threads"),
    *("train.patience", "train.keep_best", "train.monitor"),
}
"""Keys that change nothing about the weights; threads are taken from what is in effect."""

_RUN_LENGTH = {"train.epochs", "train.max_steps"}
"""Matter only where the learning rate depends on how much of the run is done."""

_NEEDED = ("model", "data.name", "data.train_samples", "train.optimizer")
"""Keys that must be equal: else a checkpoint is of no use."""


def describe_training(job: TrainJob, context: RankContext) -> dict[str, Any]:
    """All that the weights after a step depend on, as a flat dict of dotted key and value."""
    flat: dict[str, Any] = {}
    for section in ("model", "data", "train"):
        values = msgspec.to_builtins(getattr(job, section))
        flat |= {f"{section}.{key}": value for key, value in values.items()}
    left_out = _NO_MATTER | (_RUN_LENGTH if job.train.schedule == "constant" else set())
    flat = {key: value for key, value in flat.items() if key not in left_out}
    flat["strategy"] = job.strategy
    flat["world_size"] = context.world_size
    flat["num_threads"] = torch.get_num_threads()
    is_gpu = context.device.startswith("cuda")
    flat["device"] = torch.cuda.get_device_name() if is_gpu else context.device
    flat["torch"] = str(torch.__version__)
    return flat


def compare_trainings(before: dict[str, Any], now: dict[str, Any], name: str) -> list[str]:
    """Return what differs, in words; HpcdistError where a checkpoint by this name is of no use."""
    differing = [
        f"{key} {before.get(key)}, now {now.get(key)}"
        for key in now | before
        if before.get(key) != now.get(key)
    ]
    if wrong := [phrase for phrase in differing if phrase.startswith(_NEEDED)]:
        raise HpcdistError(
            f"{name} belongs to another training: {'; '.join(wrong)}",
            hint="set checkpoint.resume to a checkpoint of this job, or leave it out",
        )
    return differing


def train(context: RankContext, job: TrainJob) -> bool:
    """Train in this rank, from the checkpoint to go on from or from the start.

    False where the agent asked to stop before the end: then a checkpoint is saved.
    """
    trainer = Trainer(context, job)
    path = checkpoint.find_start(context, job.checkpoint.resume)
    if path is not None:
        trainer.restore(path)
    return trainer.train()
