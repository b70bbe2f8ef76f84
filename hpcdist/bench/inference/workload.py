"""The inference benchmark: time per batch by batch size, and by how a batch is spread over GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcdist.base.errors import JobError
from hpcdist.bench.cells import Findings, TimedCell, timed_cell
from hpcdist.bench.inference.conclusions import (
    DATA_PARALLEL,
    PROCESS_PER_GPU,
    conclude,
    inference_table,
)
from hpcdist.bench.ranks import BenchmarkRank, process_group
from hpcdist.data.catalog import check_data, find_data_set
from hpcdist.job.check import check_each_once
from hpcdist.job.spec import InferenceJob
from hpcdist.rank.context import RankContext, Workload
from hpcdist.training.checks import check_model, is_torchvision, try_model

if TYPE_CHECKING:
    from hpcdist.bench.inference.measure import Strategy


_ON_CPUS = {
    True: "not measured, as launch.device is cpu, and nn.DataParallel would take the GPUs here",
    False: "nn.DataParallel spreads a batch over GPUs only; on CPUs it calls the model, and what "
    "is measured is the same as single",
}
"""Sentence on nn.DataParallel on CPUs, by whether the machine has GPUs."""


class InferenceWorkload(Workload[InferenceJob]):
    """Measures every strategy with every batch size."""

    def check(self) -> None:
        check_model(self.job.model)
        for key in ("batch_sizes", "strategies"):
            values = getattr(self.job.inference, key)
            if not values:
                raise JobError(f"inference.{key} is empty", hint="list at least one")
            often = "inference.repeats says how often it is timed"
            check_each_once(f"inference.{key}", values, hint=often)
        if self.job.inference.image_shape is None:  # else images are random
            check_data(self.job.data)

    def try_code(self) -> None:
        try_model(self.job.model, self.job.data)

    def prepare(self) -> None:
        if self.job.inference.image_shape is None:
            find_data_set(self.job.data).prepare(self.job.data)

    def preload(self) -> list[str]:
        """Return what measures, and torchvision where model or data need it."""
        modules = ["hpcdist.bench.inference.measure"]
        if is_torchvision(self.job.model.name):
            modules.append("torchvision")
        return modules

    def run(self, context: RankContext) -> None:
        import torch

        torch.set_num_threads(context.num_threads)
        # gloo also on GPUs: a rank that waits in NCCL would keep its GPU busy, which is measured.
        with process_group(context, "gloo"), torch.no_grad():
            _InferenceRank(context, self.job).run()


class _InferenceRank(BenchmarkRank):
    def __init__(self, context: RankContext, job: InferenceJob) -> None:
        import torch

        from hpcdist.bench.inference.measure import Strategy, load_images
        from hpcdist.training.models import build_model, pick_memory_format, seed_all

        self._setting, self._device = job.inference, torch.device(context.device)
        precision = self._setting.precision
        super().__init__(context, inference_table(job.model.name, precision, self._device.type))
        images, num_classes = load_images(job)
        channels, height, width = images.shape[1:]
        seed_all(0, self._device)  # the same in all ranks
        model = build_model(job.model, (channels, height, width), num_classes).eval()
        self._memory_format = pick_memory_format(
            model,
            tensor_cores=precision != "fp32",
            device=self._device,
        )
        self._images = images
        model = model.to(self._device).to(memory_format=self._memory_format)
        names = dict.fromkeys(self._setting.strategies)
        if DATA_PARALLEL in names and self._device.type == "cpu":
            self.note(f"{DATA_PARALLEL}: {_ON_CPUS[torch.cuda.is_available()]}")
            if torch.cuda.is_available():
                del names[DATA_PARALLEL]
        elif DATA_PARALLEL in names and context.num_nodes > 1:
            self.note(f"{DATA_PARALLEL}: one process reaches the GPUs of one node, node 0's")
        self._strategies = [Strategy(name, model, context, precision) for name in names]

    def run(self) -> None:
        # What is compared is measured in turn, because the speed of a machine drifts.
        tried = [(size, form) for size in self._setting.batch_sizes for form in self._strategies]
        plan = [(size, form) for size, form in tried if form.can_take(size)]
        if small := [str(size) for size, form in tried if not form.can_take(size)]:
            self.note(
                f"{PROCESS_PER_GPU}: not measured with {', '.join(small)} per batch, fewer than "
                f"the {self.context.world_size} ranks"
            )
        self.measure_all(plan, self._measure)

    def find(self) -> Findings:
        return Findings(conclusions=conclude(self.cells("inference")))

    def _measure(self, planned: tuple[int, Strategy]) -> None:
        import torch

        from hpcdist.bench.inference.measure import time_calls

        size, form = planned
        timed = None
        if form.uses_all_ranks or self.context.rank == 0:
            # The first images, repeated where there are fewer.
            images = self._images[torch.arange(size) % len(self._images)]
            images = images.contiguous(memory_format=self._memory_format)
            timed = time_calls(
                form,
                form.share(images.pin_memory() if self._device.type == "cuda" else images),
                self._setting,
                largest=self.largest if form.uses_all_ranks else float,
                alive=self.context.progress.alive,
            )
        outcomes: list[list[float] | None] = self.gather(timed)
        measured = outcomes if form.uses_all_ranks else outcomes[:1]
        keys: dict[str, int | str] = {"batch_size": size, "strategy": form.name}
        self.record(to_cell(keys, form.devices, measured))


def to_cell(
    keys: dict[str, int | str], devices: int, outcomes: list[list[float] | None]
) -> TimedCell:
    """Make the cell from what the ranks that took part measured."""
    timed = [outcome for outcome in outcomes if outcome is not None]
    more: dict[str, float] = {"devices": devices}
    if len(timed) < len(outcomes):
        return TimedCell(table="inference", keys=keys, more=more, note="out of memory")
    # A batch is done when its last share is.
    cold_s, *slowest_s = map(max, zip(*timed, strict=True))
    return timed_cell(
        "inference",
        keys,
        slowest_s,
        amount=float(keys["batch_size"]),
        more=more | {"first_call_time_s": cold_s},
    )
