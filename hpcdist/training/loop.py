"""The training loop, from the job to the last evaluation, whatever the strategy."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor, nn

from hpcdist.base.errors import HpcdistError
from hpcdist.data.arrays import Samples
from hpcdist.data.batches import make_batches
from hpcdist.data.catalog import load_data
from hpcdist.data.order import LEAST_BATCH, EpochPlan, Share, epoch_order
from hpcdist.job.spec import TrainingJob, TrainJob, job_to_dict
from hpcdist.rank.context import RankContext
from hpcdist.rank.model import Digester, count_flops
from hpcdist.rank.profiling import Profiler
from hpcdist.rank.timing import call_when_ready, make_timer, warm_up
from hpcdist.runs.events import Epoch, Evaluation, Flops, Memory, Resume, Save, Setup
from hpcdist.training.checkpoint import checkpoint
from hpcdist.training.checkpoint import files as checkpoint_files
from hpcdist.training.evaluation import Score, evaluate
from hpcdist.training.models import (
    build_model,
    compile_module,
    count_parameters,
    pick_memory_format,
    pick_num_threads,
    recompute_blocks,
)
from hpcdist.training.optimization import PRECISIONS, build_optimizer, learning_rate
from hpcdist.training.strategies import STRATEGIES


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


@dataclass(frozen=True, kw_only=True)
class Best:
    """The best evaluation so far, by train.monitor."""

    value: float | None = None
    """Loss or accuracy; None: there was no evaluation."""
    epoch: int = 0
    num_worse: int = 0
    """Evaluations since then."""

    def judge(self, score: Score, monitor: str, epoch: int) -> Best:
        """Return what is best after one evaluation more."""
        value = score.accuracy if monitor == "accuracy" else score.loss
        is_better = not math.isnan(value) and (
            self.value is None
            or (value > self.value if monitor == "accuracy" else value < self.value)
        )
        if is_better:
            return Best(value=value, epoch=epoch)
        return replace(self, num_worse=self.num_worse + 1)


class Trainer:
    """One rank's part in a training."""

    def __init__(self, context: RankContext, job: TrainJob) -> None:
        """Load the data, and build and spread the model; the ranks are in their process group."""
        self.context, self.job = context, job
        self.device = device = torch.device(context.device)
        self._precision = PRECISIONS[job.train.precision]
        self._precision.begin()
        self._strategy = STRATEGIES[job.strategy]
        data = load_data(job.data, seed=job.train.seed)

        # The same weights in all ranks.
        checkpoint.seed_weights(job.train.seed)
        model = build_model(job.model, data.image_shape, data.num_classes)
        num_parameters = count_parameters(model)
        memory_format = pick_memory_format(
            model,
            setting=job.train.channels_last,
            sharded=self._strategy.is_sharded,
            tensor_cores=self._precision.name != "fp32",
            device=device,
        )
        model = model.to(self._precision.weights).to(memory_format=memory_format)
        # One that is cut up comes to the device in parts: it may not fit there as a whole.
        self.model = model if self._strategy.is_sharded else model.to(device)

        # Batches.
        parts = max(1, context.num_gpus)
        self.plan = EpochPlan(
            num_samples=len(data.train),
            batch_size=job.batch_size_per_rank,
            accumulate=job.train.accumulate,
            rank=context.rank,
            world_size=context.world_size,
            least_batch=LEAST_BATCH * parts,
            parts=parts,
        )
        self._source, self._test_source = (
            make_batches(part, device, job.data, memory_format=memory_format)
            for part in (data.train, data.test)
        )
        self._num_test_samples = len(data.test)

        # A few samples to try the model with, the same on all ranks.
        first = data.train.probe(self.plan.least_batch).to(device, memory_format=memory_format)
        first = replace(first, images=first.images.to(self._precision.weights))
        # Before it is cut up, or computes a part of its forward pass twice.
        flops = count_flops(self.model, first.images) if job.record.flops else None
        if flops is not None:
            context.events.write(Flops(per_sample=flops, precision=self._precision.name))
        if job.train.num_threads is None and device.type == "cpu":
            num_threads = pick_num_threads(
                self.model,
                first.images,
                batch_size=job.batch_size_per_rank,
                available=context.num_threads,
            )
            torch.set_num_threads(num_threads)

        # The model as it is called, and what trains it.
        if job.train.activation_checkpointing:
            recompute_blocks(self.model)
        self._autocast = self._precision.autocasting(device)
        self._module = self._strategy.wrap(self.model, context, job.train)
        self._call = compile_module(self._module, device, setting=job.train.compile)
        self._optimizer = build_optimizer(self.model, job.train)
        self._scaler = torch.amp.GradScaler(device.type, enabled=self._precision.scales_gradients)
        last_gradient = warm_up(self._module, first, self._autocast, num_classes=data.num_classes)
        # A single rank has nobody to wait for: what DDP does at the end is a part of its backward.
        self._tells_waiting = context.world_size > 1 and self._strategy.tells_last_gradient
        self._last_gradient = last_gradient if self._tells_waiting else None

        self.identity = describe_training(job, context)
        self.position = Position()
        self.best = Best()
        self._saved: Position | None = None
        self._has_noted_memory = False
        for note in (self._precision.note(device), self._strategy.note(context)):
            if note is not None and context.rank == 0:
                context.note(note)
        context.events.write(Setup(parameters=num_parameters, total_steps=self.total_steps))

    def restore(self, path: Path, *, has_group: bool) -> None:
        """Take over a checkpoint, and record what keeps the rest from being exact."""
        context = self.context
        state = checkpoint.load_state(path, has_group=has_group)
        require_same_training(state["identity"], self.identity, path.name)
        checkpoint.load_tensors(
            path,
            self.model,
            self._optimizer,
            has_group=has_group,
            apart=self._strategy.is_sharded,
        )
        if state["scaler"] and self._scaler.is_enabled():
            self._scaler.load_state_dict(state["scaler"])
        self.position = position = Position(**state["position"])
        if state["monitor"] == self.job.train.monitor:
            self.best = Best(**state["best"])
        differing = describe_differences(state["identity"], self.identity)
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
        self.seed(state["rng"])

    def seed(self, states: list[dict[str, Any]]) -> None:
        """Go on with the random generators of a checkpoint of as many ranks, or seed them anew."""
        if len(states) == self.context.world_size:
            checkpoint.set_rng_state(states[self.context.rank], self.device)
        else:
            seed, step = self.job.train.seed, self.position.step
            checkpoint.seed_rank(seed, rank=self.context.rank, step=step)

    # Training.

    def train(self) -> bool:
        """Train from the position to the end, and write what happens.

        False where the agent asked to stop before: then a checkpoint is saved.
        """
        first_step = self.position.step
        self.timer = make_timer(self.context, first_step=first_step)
        Profiler(self.context, self.timer)
        self._digester = Digester(self.context, self.timer, self.model, first_step=first_step)
        if self._last_gradient is not None:  # what follows in a backward pass is waiting
            call_when_ready(self._last_gradient, self.timer.note_last_gradient)
        self._module.train()
        if self.is_finished and self.position.samples:
            self._begin_sums()
            self._end_epoch()  # stopped after the last step: what follows is due
        while not self.is_finished:
            if not self._train_epoch():
                return False
        self.timer.finish()
        if self._saves_at_all and self._saved != self.position:
            self._save()
        return True

    def _train_epoch(self) -> bool:
        """Train to the end of the epoch; False where the agent asked to stop before."""
        steps, batches = self.begin_epoch()
        for end, shares in steps:
            self._step(end, shares, batches)
            if self.context.progress.should_stop():
                self._stop()
                return False
            if self.is_at_max_steps:
                break
            if self._is_step_to_save and not self.is_at_epoch_end:
                self._save()
                self.timer.mark("checkpoint")
        is_complete = self.is_at_epoch_end
        self._end_epoch()
        every = self.job.checkpoint.every_epochs
        is_due = self._is_step_to_save or (every and self.position.epoch % every == 0)
        if is_complete and is_due and self._saved != self.position:
            self._save()
        return True

    def begin_epoch(self) -> tuple[list[tuple[int, list[Share]]], Iterator[Samples]]:
        """Begin an epoch, or what is left of it: returns its steps, and all of their batches."""
        self._begin_sums()
        position, plan = self.position, self.plan
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
        position, timer = self.position, self.timer
        num_samples = end - position.samples
        # Gradients are averaged over ranks: the mean of all samples.
        scale = self.context.world_size / num_samples
        own_samples = 0
        for share in shares:
            is_last = share is shares[-1]
            batch = self._next_batch(batches)
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
        self.position = replace(position, step=position.step + 1, samples=end)
        timer.mark("optimizer")
        loss = loss_sum / shares[-1].count if shares[-1].count else None
        timer.step(samples=own_samples, loss=loss, learning_rate=rate)
        self._digester.step(self.position.step, loss=loss)

    def _next_batch(self, batches: Iterator[Samples]) -> Samples:
        """Wait for the next batch, and bring it to the device."""
        batch = next(batches)
        self.timer.mark("data_wait")
        if not self._source.on_device:
            batch = self._source.bring(batch)
            self.timer.mark("host_to_device")
        return batch

    def _forward_backward(self, share: Share, batch: Samples, scale: float) -> Tensor:
        """Add the gradients of one batch; returns the sum of its losses."""
        with self._autocast:
            logits, labels = self._call(batch.images.to(self._precision.weights)), batch.labels
            if share.count < len(labels):  # samples beyond the own ones have no part in the loss
                logits, labels = logits[: share.count], labels[: share.count]
            loss_sum = F.cross_entropy(logits.float(), labels, reduction="sum")
        torch.autograd.backward(self._scaler.scale(loss_sum * scale))
        return loss_sum.detach()

    def _optimize(self) -> float:
        """Take the step with the gradients that are there; returns its learning rate."""
        position, train = self.position, self.job.train
        epochs_done = position.epoch + position.samples / self.plan.num_samples
        rate = learning_rate(train, step=position.step, epochs_done=epochs_done)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        if train.clip_norm is not None:
            self._scaler.unscale_(self._optimizer)
            # The norm is that of all parameters, also of the parts on other ranks.
            nn.utils.clip_grad_norm_(self.model.parameters(), train.clip_norm)
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
        every = self.job.train.evaluate_every_epochs
        at_epoch = self.is_at_epoch_end and self.epochs_done % (every or 1) == 0
        score = None
        if every and (self.is_finished or at_epoch):
            score = self._evaluate()
            self.best = self.best.judge(score, self.job.train.monitor, self.epochs_done)
        if self.is_at_epoch_end:
            self.position = Position(step=self.position.step, epoch=self.position.epoch + 1)
        self._report_epoch(score, time_s)
        if self.job.train.keep_best and score and not self.best.num_worse:
            self._save(is_best=True)
        is_early = self.position.epoch < self.job.train.epochs and self.has_lost_patience
        if is_early and self.context.rank == 0:
            monitor, best = self.job.train.monitor, self.best
            self.context.note(
                f"the training ends early, after {best.num_worse} evaluations without a better "
                f"{monitor} than {best.value:.4g} (epoch {best.epoch}); see train.patience"
            )

    def _evaluate(self) -> Score:
        self._strategy.align_buffers(self.model)
        self.model.eval()
        with torch.inference_mode(), self._autocast:
            score = evaluate(
                lambda images: self.model(images.to(self._precision.weights)),
                self._test_source,
                self._num_test_samples,
                self.device,
                rank=self.context.rank,
                world_size=self.context.world_size,
                together=self._strategy.is_sharded,
                after_batch=self.context.progress.alive,
            )
        self.model.train()
        self.context.events.write(
            Evaluation(epoch=self.epochs_done, step=self.position.step, **asdict(score))
        )
        return score

    def _report_epoch(self, score: Score | None, time_s: float) -> None:
        """Record an epoch, or what there was of it, and print its line."""
        context, position = self.context, self.position
        loss = float(self._loss_sum) / self._samples if self._samples else None
        context.events.write(
            Epoch(epoch=position.epoch, step=position.step, loss=loss, epoch_time_s=time_s)
        )
        if context.rank != 0:
            return
        line = f"epoch {position.epoch}/{self.job.train.epochs}"
        if position.samples:
            line = f"step {position.step:,}/{self.total_steps:,} in epoch {position.epoch + 1}"
        if loss is not None:
            own = " (rank 0)" if context.world_size > 1 else ""  # all else is of all ranks
            line += f"  loss {loss:.4f}{own}"
        if score:
            line += f"  accuracy {100 * score.accuracy:.2f} %"
        if loss is not None:
            line += f"  {self._global_samples / time_s:,.0f} samples/s"
        context.say(line)

    def _stop(self) -> None:
        """End before the end, with the position saved, unless that was done at this very step."""
        self.timer.finish()
        if self._saved != self.position:
            self._save()
        if self.context.rank == 0:
            step = self.position.step
            self.context.say(f"stopped at step {step}, as was asked; a checkpoint is saved")

    def _save(self, *, is_best: bool = False) -> None:
        """Save a checkpoint; called by all ranks. Those of copies of the model are rank 0's."""
        context, together = self.context, self._strategy.is_sharded
        begin_s = time.perf_counter()
        self._saved = self.position
        own = checkpoint.get_rng_state(self.device)
        states: list[Any] = [own] * context.world_size
        if context.world_size > 1:
            dist.gather_object(own, states if context.rank == 0 else None, dst=0)
        path = context.run.checkpoints_folder / checkpoint_files.file_name(self.position.step)
        if together or context.rank == 0:
            state = {
                "scaler": self._scaler.state_dict(),
                "position": asdict(self.position),
                "best": asdict(self.best),
                "monitor": self.job.train.monitor,
                "rng": states,
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
            context.events.write(Save(step=self.position.step, save_time_s=save_time_s))

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
    def has_lost_patience(self) -> bool:
        patience = self.job.train.patience
        return patience is not None and self.best.num_worse >= patience

    @property
    def is_finished(self) -> bool:
        """No step is left to train."""
        is_last = self.epochs_done >= self.job.train.epochs
        return is_last or self.is_at_max_steps or self.has_lost_patience

    @property
    def _is_step_to_save(self) -> bool:
        """checkpoint.every_steps asks for a checkpoint at this step."""
        every = self.job.checkpoint.every_steps
        return bool(every) and self.position.step % every == 0

    @property
    def _saves_at_all(self) -> bool:
        setting = self.job.checkpoint
        return bool(setting.every_epochs or setting.every_steps)


def measure_memory(model: nn.Module, optimizer: torch.optim.Optimizer) -> Memory:
    """Return what a training holds on this rank while its gradients are there."""

    def size(values: Iterator[Any]) -> int:
        # Those that are cut up over the ranks are DTensors, whose import costs time.
        own = (value.to_local() if hasattr(value, "to_local") else value for value in values)
        return sum(tensor.nbytes for tensor in own if hasattr(tensor, "nbytes"))

    return Memory(
        parameter_bytes=size(iter([*model.parameters(), *model.buffers()])),
        gradient_bytes=size(parameter.grad for parameter in model.parameters()),
        optimizer_bytes=size(
            value for state in optimizer.state.values() for value in state.values()
        ),
    )


# What makes two trainings the same, so that one can go on from the checkpoint of the other.

_NO_MATTER = {
    *("data.root", "data.workers"),
    *("data.pin_memory", "data.prefetch_factor", "data.persistent_workers"),
    "data.multiprocessing_context",
    *("train.evaluate_every_epochs", "train.num_threads"),
    *("train.patience", "train.keep_best", "train.monitor"),
}
"""Keys that change nothing about the weights; threads are taken from what is in effect."""

_RUN_LENGTH = {"train.epochs", "train.max_steps"}
"""Matter only where the learning rate depends on how much of the run is done."""

_NEEDED = ("model", "data.name", "data.train_samples", "train.optimizer")
"""Keys that must be equal: else a checkpoint is of no use."""


def describe_training(job: TrainingJob, context: RankContext) -> dict[str, Any]:
    """All that the weights after a step depend on, as a flat dict of dotted key and value."""
    flat: dict[str, Any] = {}
    for section in ("model", "data", "train"):
        values = msgspec.to_builtins(getattr(job, section))
        flat |= {f"{section}.{key}": value for key, value in values.items()}
    left_out = _NO_MATTER | (_RUN_LENGTH if job.train.schedule == "constant" else set())
    flat = {key: value for key, value in flat.items() if key not in left_out}
    flat["strategy"] = job_to_dict(job)["strategy"]
    flat["world_size"] = context.world_size
    flat["num_threads"] = torch.get_num_threads()
    is_gpu = context.device.startswith("cuda")
    flat["device"] = torch.cuda.get_device_name() if is_gpu else context.device
    flat["torch"] = str(torch.__version__)
    return flat


def describe_differences(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return the differences, one phrase each: `world_size 4, now 2`."""
    return [
        f"{key} {before.get(key)}, now {now.get(key)}"
        for key in now | before
        if before.get(key) != now.get(key)
    ]


def require_same_training(before: dict[str, Any], now: dict[str, Any], checkpoint: str) -> None:
    """Raise HpcdistError where the checkpoint is of another model, data set or optimizer."""
    wrong = [phrase for phrase in describe_differences(before, now) if phrase.startswith(_NEEDED)]
    if wrong:
        raise HpcdistError(
            f"{checkpoint} belongs to another training: {'; '.join(wrong)}",
            hint="set checkpoint.resume to a checkpoint of this job, or leave it out",
        )


def train(context: RankContext, job: TrainJob, *, has_group: bool) -> bool:
    """Train in this rank, from the checkpoint to go on from or from the start.

    False where the agent asked to stop before the end: then a checkpoint is saved.
    """
    trainer = Trainer(context, job)
    path = checkpoint.find_start(context, job.checkpoint.resume, has_group=has_group)
    if path is None:
        trainer.seed([])
    else:
        trainer.restore(path, has_group=has_group)
    return trainer.train()
