"""One rank's part of a training, whichever trainer drives it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch import Tensor, nn

from hpcdist.data.arrays import Samples
from hpcdist.data.batches import make_batches
from hpcdist.data.catalog import load_data
from hpcdist.data.order import LEAST_BATCH, EpochPlan, Share, epoch_order
from hpcdist.job.spec import TrainingJob
from hpcdist.rank.context import RankContext
from hpcdist.rank.model import Digester, count_flops
from hpcdist.rank.profiling import Profiler
from hpcdist.rank.timing import Timer, call_when_ready, make_timer, warm_up
from hpcdist.runs.events import Flops, Save, Setup
from hpcdist.training.checkpoint import files as checkpoint_files
from hpcdist.training.checkpoint.resume import describe_training
from hpcdist.training.checkpoint.state import get_rng_state, seed_rank, set_rng_state
from hpcdist.training.checks import strategy_of
from hpcdist.training.evaluation import Scoring
from hpcdist.training.memory import MemoryLog
from hpcdist.training.model.building import build_seeded, pick_num_threads
from hpcdist.training.model.models import count_parameters, pick_memory_format
from hpcdist.training.optimization import PRECISIONS, learning_rate
from hpcdist.training.progress import BadFileNotes, Progress
from hpcdist.training.strategies import STRATEGIES


class TrainingRank:
    """The data, the model and the records of a rank, and what both trainers do with them."""

    timer: Timer

    def __init__(self, context: RankContext, job: TrainingJob) -> None:
        """Load the data and build the model; the ranks are in their process group."""
        self.context = context
        self.job = job
        self.device = torch.device(context.device)
        data = load_data(job.data, seed=job.train.seed)
        model = build_seeded(job, data)
        self._num_parameters = count_parameters(model)
        self._num_test_samples = len(data.test)
        self.precision = PRECISIONS[job.train.precision]
        self.precision.begin(self.device)
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
        self.progress = Progress(context, job, self.plan)
        self.progress.note(self.precision.note(self.device))
        self.strategy = STRATEGIES[strategy_of(job, context.world_size)]
        memory_format = pick_memory_format(
            model,
            setting=job.train.channels_last,
            sharded=self.strategy.is_sharded,
            tensor_cores=self.precision.name != "fp32",
            device=self.device,
        )
        model = model.to(self.precision.weights).to(memory_format=memory_format)
        # One that is cut up comes to the device in parts: it may not fit there as a whole.
        self.model = model if self.strategy.is_sharded else model.to(self.device)
        make_source = partial(
            make_batches,
            device=self.device,
            data=job.data,
            memory_format=memory_format,
            report_bad=BadFileNotes(context),
        )
        self._source = make_source(data.train)
        test = data.test
        if isinstance(test, Samples):
            test = test.to(self.device, memory_format=memory_format)
        self._scoring = Scoring(test, self.device, make_source)
        # A few to try the model with, the same on all ranks.
        first = data.train.probe(self.plan.least_batch)
        first = first.to(self.device, memory_format=memory_format)
        self._first = replace(first, images=first.images.to(self.precision.weights))
        self._num_classes = data.num_classes
        # Before it is cut up, or computes a part of its forward pass twice.
        flops = count_flops(self.model, self._first.images) if job.record.flops else None
        if flops is not None:
            context.events.write(Flops(per_sample=flops, precision=self.precision.name))
        if job.train.num_threads is None and self.device.type == "cpu":
            num_threads = pick_num_threads(
                self.model,
                self._first.images,
                batch_size=job.batch_size_per_rank,
                available=context.num_threads,
            )
            torch.set_num_threads(num_threads)
        self.autocast = self.precision.autocasting(self.device)
        self.memory = MemoryLog(context.events, self.device)
        self.identity = describe_training(job, context)
        self._learning_rate: float | None = None
        self.times_communication = False
        """The timer is told of the last gradient: what follows in a backward pass is waiting."""

    def write_setup(self, begin_s: float) -> None:
        """Record that all is ready for the first step; the set-up began at `begin_s`."""
        self.context.events.write(
            Setup(
                setup_time_s=time.perf_counter() - begin_s,
                parameters=self._num_parameters,
                train_samples=self.plan.num_samples,
                test_samples=self._num_test_samples,
                steps_per_epoch=self.plan.num_steps(),
                total_steps=self.progress.total_steps,
            )
        )

    def start_timer(self) -> None:
        first_step = self.progress.position.step
        self.timer = make_timer(self.context, first_step=first_step)
        Profiler(self.context, self.timer)
        self._digester = Digester(self.context, self.timer, self.model, first_step=first_step)

    def warm_up(self, wrapped: nn.Module) -> nn.Parameter | None:
        """Try the model on a few samples; returns the parameter whose gradient is ready last."""
        return warm_up(wrapped, self._first, self.autocast, num_classes=self._num_classes)

    def time_communication(self, last: nn.Parameter | None) -> None:
        """Have the timer told where a step waits for others after its last gradient."""
        # A single rank has nobody to wait for: what DDP does at the end is a part of its backward.
        if self.context.world_size == 1:
            return
        if last is None or not self.strategy.tells_last_gradient:
            return
        self.times_communication = True
        call_when_ready(last, self.timer.note_last_gradient)

    def seed(self, states: list[dict[str, Any]]) -> None:
        """Go on with the random generators of a checkpoint of as many ranks, or seed them anew."""
        if len(states) == self.context.world_size:
            set_rng_state(states[self.context.rank], self.device)
        else:
            seed = self.job.train.seed
            step = self.progress.position.step
            seed_rank(seed, rank=self.context.rank, step=step, device=self.device)

    # Steps.

    def begin_epoch(self) -> tuple[list[tuple[int, list[Share]]], Iterator[Samples]]:
        """Begin an epoch, or what is left of it: returns its steps, and all of their batches."""
        self.progress.begin_epoch()
        position, plan = self.progress.position, self.plan
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
        self.timer.begin()
        return steps, batches

    def next_batch(self, batches: Iterator[Samples]) -> Samples:
        """Wait for the next batch, and bring it to the device."""
        batch = next(batches)
        self.timer.mark("data_wait")
        if not self._source.on_device:
            batch = self._source.bring(batch)
            self.timer.mark("host_to_device")
        return batch

    def sum_losses(self, logits: Tensor, labels: Tensor, num_samples: int) -> Tensor:
        """Return the sum over the rank's own samples: those beyond have no part in the loss."""
        if num_samples < len(labels):
            logits, labels = logits[:num_samples], labels[:num_samples]
        return F.cross_entropy(logits.float(), labels, reduction="sum")

    def mark_backward(self, *, is_last: bool) -> None:
        """Note the end of a backward pass, the last of its step or another."""
        if is_last and self.times_communication:
            self.timer.mark_backward()
        else:
            self.timer.mark("forward_backward")

    def set_rate(self, optimizer: torch.optim.Optimizer) -> None:
        """Give all parameters the learning rate of the next step."""
        position = self.progress.position
        epochs_done = position.epoch + position.samples / self.plan.num_samples
        rate = learning_rate(self.job.train, step=position.step, epochs_done=epochs_done)
        for group in optimizer.param_groups:
            group["lr"] = rate
        self._learning_rate = rate

    def end_step(self, *, samples: int, loss: Tensor | None) -> None:
        """Record a step of so many own samples, with the loss of its last batch."""
        rate = self._learning_rate
        self.timer.step(samples=samples, loss=loss, learning_rate=rate)
        self._digester.step(self.progress.position.step, loss=loss)

    # The end of an epoch, and of the training.

    def end_epoch(self) -> None:
        """Evaluate where that is due, count the epoch where it is complete, and record it."""
        self.timer.wait()
        self.progress.end_steps()
        if not self.progress.is_evaluation_due:
            self.progress.end_epoch(None)
            return
        self.strategy.align_buffers(self.model)
        self.model.eval()
        with torch.inference_mode(), self.autocast:
            score = self._scoring.evaluate(
                lambda images: self.model(images.to(self.precision.weights)),
                rank=self.context.rank,
                world_size=self.context.world_size,
                together=self.strategy.is_sharded,
                after_batch=self.progress.tell_alive,
            )
        self.model.train()
        self.progress.write_evaluation(score)
        self.progress.end_epoch(score)

    def finish(self) -> None:
        """Record the last window of steps, and what was held."""
        self.timer.finish()
        self.memory.end()

    def stop(self, save: Callable[[], None]) -> None:
        """End before the end, with the position saved, unless that was done at this very step."""
        self.finish()
        if self.progress.saved != self.progress.position:
            save()
        if self.context.rank == 0:
            step = self.progress.position.step
            self.context.say(f"stopped at step {step}, as was asked; a checkpoint is saved")

    # Checkpoints.

    def save(self, suffix: str, write: Callable[[Path], None]) -> None:
        """Save a checkpoint, which `write` writes; called by all ranks."""
        begin_s = time.perf_counter()
        position = self.progress.saved = self.progress.position
        folder = self.context.run.checkpoints_folder
        path = folder / checkpoint_files.file_name(position.step, suffix)
        write(path)
        if self.context.rank != 0:
            return
        checkpoint_files.remove_old(folder, self.job.checkpoint.keep)
        self.context.events.write(
            Save(
                step=position.step,
                save_time_s=time.perf_counter() - begin_s,
            )
        )

    def describe_state(self) -> dict[str, Any]:
        """Return all that a training goes on from but weights and optimizer; called by all ranks.
        The states of the random generators, `rng`, are there on rank 0 alone."""
        own = get_rng_state(self.device)
        states: list[Any] = [own] * self.context.world_size
        if self.context.world_size > 1:
            dist.gather_object(own, states if self.context.rank == 0 else None, dst=0)
        return {
            "position": asdict(self.progress.position),
            "rng": states,
            "identity": self.identity,
        }
