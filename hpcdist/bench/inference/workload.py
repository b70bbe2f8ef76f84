"""The inference benchmark: time per batch by batch size, and by how a batch is spread over GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from hpcdist.base.errors import JobError
from hpcdist.base.text import show_mean_sd, show_time
from hpcdist.bench.benchmark import timed_fields
from hpcdist.bench.inference.figures import PROCESS_PER_GPU, InferenceCell, compare_with_single
from hpcdist.bench.ranks import BenchmarkRank, process_group
from hpcdist.data.catalog import check_data, download_data, find_data_set
from hpcdist.job.check import check_each_once
from hpcdist.job.spec import InferenceJob
from hpcdist.rank.context import RankContext, Workload
from hpcdist.training.checks import check_model, is_torchvision

if TYPE_CHECKING:
    from hpcdist.bench.inference.measure import Images, Single, Timed

PLOT_NAME = "inference.png"


class InferenceWorkload(Workload[InferenceJob]):
    """Measures every strategy with every batch size."""

    def check(self) -> None:
        check_model(self.job.model, self.job.data)
        for key in ("batch_sizes", "strategies"):
            values = getattr(self.job.inference, key)
            if not values:
                raise JobError(f"inference.{key} is empty", hint="list at least one")
            often = "inference.repeats says how often it is timed"
            check_each_once(f"inference.{key}", values, hint=often)
        num_ranks = self.job.resources.nodes * self.job.resources.gpus
        largest = max(self.job.inference.batch_sizes)
        if PROCESS_PER_GPU in self.job.inference.strategies and largest < num_ranks:
            raise JobError(
                f"inference.batch_sizes are at most {largest}, but process_per_gpu shares a batch "
                f"out to {num_ranks} ranks",
                hint=f"add a batch size of {num_ranks} or more, or use fewer ranks",
            )
        if self._needs_data:
            check_data(self.job.data)

    @property
    def _needs_data(self) -> bool:
        """Return True without a shape of random images: they are those of the data set then."""
        return self.job.inference.image_shape is None

    def prepare(self) -> None:
        data = self.job.data
        if self._needs_data and not find_data_set(data).is_complete(data):
            download_data(data)

    def preload(self) -> list[str]:
        """Return what measures, and torchvision where model or data need it."""
        modules = ["hpcdist.bench.inference.measure"]
        entry = find_data_set(self.job.data)
        if is_torchvision(self.job.model.name) or "torchvision" in entry.modules:
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

        from hpcdist.bench.inference.measure import load_images
        from hpcdist.training.checkpoint.checkpoint import seed_weights
        from hpcdist.training.models import build_model, pick_memory_format

        super().__init__(context)
        self.setting = job.inference
        self._job = job
        self._device = torch.device(context.device)
        self._images: Images = load_images(job)
        seed_weights(self.setting.seed)  # the same in all ranks
        model = build_model(job.model, self._images.shape, self._images.num_classes).eval()
        self._memory_format = pick_memory_format(
            model,
            setting=self.setting.channels_last,
            tensor_cores=self.setting.precision != "fp32",
            device=self._device,
        )
        self._model = model.to(self._device).to(memory_format=self._memory_format)
        self._cells: list[InferenceCell] = []

    def run(self) -> None:
        from hpcdist.bench.inference.measure import STRATEGIES, left_out

        setting = self.setting
        for sentence in left_out(setting.strategies, setting.batch_sizes, self.context):
            self.note(sentence)
        forms = {
            strategy: STRATEGIES[strategy](self._model, self.context, setting.precision)
            for strategy in setting.strategies
        }
        # What is compared is measured in turn, because the speed of a machine drifts.
        plan = [
            (strategy, form, size)
            for size in setting.batch_sizes
            for strategy, form in forms.items()
            if form.can_take(size)
        ]
        self.measure_all(plan, self._measure, conclude=self._conclude)

    def _measure(self, planned: tuple[str, Single, int]) -> bool:
        """Return whether it was measured as often as planned, in all ranks."""
        strategy, form, size = planned
        from hpcdist.bench.inference.measure import time_calls

        timed = None
        if form.uses_all_ranks or self.context.rank == 0:
            images = self._images.batch(size, self._memory_format, pin=self._device.type == "cuda")
            timed = time_calls(
                form,
                form.share(images),
                self.setting,
                largest=self.largest if form.uses_all_ranks else float,
                is_to_leave=self.is_asked_to_stop,
                alive=self.alive,
            )
        outcomes: list[Timed | None] = self.gather(timed)
        measured = outcomes if form.uses_all_ranks else outcomes[:1]
        if self.context.rank == 0 and all(each is None or each.times_s for each in measured):
            self._report(to_cell(strategy, form.devices, size, measured))
        return all(each is None or each.is_whole for each in measured)

    def _report(self, cell: InferenceCell) -> None:
        self._cells.append(cell)
        took = cell.error
        if cell.mean_time_s is not None:
            took = (
                f"{show_mean_sd(cell.mean_time_s, cell.sd_time_s)}, {cell.images_per_s:,.0f} "
                f"images/s ({cell.repeats} times; first call {show_time(cell.cold_time_s or 0.0)})"
            )
        line = f"{cell.strategy}, {cell.batch_size:,} per batch: {took}"
        self.report("inference", line, msgspec.to_builtins(cell))

    def _conclude(self) -> None:
        from hpcdist.bench.inference.report import make_figure

        if self._cells:
            title = f"{self._job.model.name}, {self.setting.precision}, {self._device.type}"
            sentences = compare_with_single(self._cells)
            self.conclude(sentences, PLOT_NAME, title, lambda: make_figure(self._cells))


def to_cell(strategy: str, devices: int, size: int, outcomes: list[Timed | None]) -> InferenceCell:
    """Make the cell from what the ranks that took part measured."""
    timed = [outcome for outcome in outcomes if outcome is not None]
    if len(timed) < len(outcomes):
        return InferenceCell(
            strategy=strategy, batch_size=size, devices=devices, error="out of memory"
        )
    # A batch is done when its last share is.
    slowest_s = [max(times) for times in zip(*(each.times_s for each in timed), strict=True)]
    return InferenceCell(
        strategy=strategy,
        batch_size=size,
        devices=devices,
        cold_time_s=max(each.cold_s for each in timed),
        parts_s=timed[0].parts_s,
        **timed_fields(slowest_s, size),
    )
