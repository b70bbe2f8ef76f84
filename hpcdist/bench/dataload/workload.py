"""The data-loading benchmark: time per batch by workers, transforms and batch sizes."""

from __future__ import annotations

import itertools
import math
import warnings
from typing import TYPE_CHECKING

import msgspec

from hpcdist.base.statistics import mean, standard_deviation
from hpcdist.base.text import number_of, show_mean_sd
from hpcdist.bench.dataload.conclusion import (
    BRIEF,
    conclude,
    num_cpus,
    shortened,
    with_workers,
)
from hpcdist.bench.dataload.figures import (
    DataloadCell,
    ModelStep,
    Passes,
    Place,
    Setting,
    to_cell,
)
from hpcdist.bench.dataload.settings import (
    check_dataload,
    combine,
    several,
)
from hpcdist.bench.ranks import BenchmarkRank, process_group
from hpcdist.data.catalog import download_data, find_data_set
from hpcdist.job.spec import Data, DataloadJob
from hpcdist.machine.cpus import cpu_quota
from hpcdist.rank.context import RankContext, Workload
from hpcdist.training.checks import is_torchvision

if TYPE_CHECKING:
    from hpcdist.bench.dataload.measure import Way

PLOT_NAME = "dataload.png"


class DataloadWorkload(Workload[DataloadJob]):
    """Measures every way of loading."""

    def check(self) -> None:
        check_dataload(self.job)

    def notes(self) -> list[str]:
        """Return which data sets are made first, and what transforms need not have."""
        from hpcdist.data.images.transforms import notes_on_transform

        data = self._data()
        unmade = find_data_set(data).unmade(data)
        on_transforms = map(notes_on_transform, several(self.job.data, "transform"))
        return [*filter(None, [unmade]), *dict.fromkeys(itertools.chain(*on_transforms))]

    def prepare(self) -> None:
        data = self._data()
        if not find_data_set(data).is_complete(data):
            download_data(data)

    def _data(self) -> Data:
        """Return the data section of one way: all ways load the same data set."""
        return next(iter(combine(self.job).values()))

    def preload(self) -> list[str]:
        """Return what measures, and torchvision where model, data or transforms need it."""
        from hpcdist.data.images.transforms import is_unchanged

        modules = ["hpcdist.bench.dataload.measure"]
        model, entry = self.job.model.name, find_data_set(self._data())
        heavy_model = model is not None and is_torchvision(model)
        transformed = not all(map(is_unchanged, several(self.job.data, "transform")))
        if heavy_model or transformed or "torchvision" in entry.modules:
            modules.append("torchvision")
        if model is not None:
            modules += ["hpcdist.training.models", "hpcdist.training.optimization"]
            modules.append("torch._dynamo")  # by optimizers
        return modules

    def run(self, context: RankContext) -> None:
        import torch

        torch.set_num_threads(context.num_threads)
        # More workers than CPUs are what is tried here, and our own note says so once.
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
        with process_group(context, "gloo"):
            _DataloadRank(context, self.job).run()


class _DataloadRank(BenchmarkRank):
    def __init__(self, context: RankContext, job: DataloadJob) -> None:
        from hpcdist.bench.dataload.sources import Sources
        from hpcdist.data.batches import BadFileNotes

        super().__init__(context)
        self._job = job
        self._combinations = combine(job)
        self._sources = Sources(job.dataload.seed, BadFileNotes(context.note))
        # A node has the CPUs that its ranks have together, or their quota.
        cpus = min(context.num_cpus, cpu_quota() or math.inf)
        self._places: list[Place] = self.gather(
            Place(node=context.node_rank, host=context.host, cpus=cpus)
        )
        self._ways: dict[Setting, Way] = {}
        self._cells: dict[tuple[Setting, int], DataloadCell] = {}
        self._steps: list[ModelStep] = []

    def run(self) -> None:
        """Measure every way of loading in turn, then again backwards, and conclude."""
        self._report_plan()
        self._time_model()
        ways = list(self._combinations.items())
        # What drifts with the time falls on all alike.
        plan = [
            (*way, number)
            for turn, number in enumerate(turns(self._job.data.repeats))
            for way in ways[:: -1 if turn else 1]
        ]
        self.measure_all(plan, self._measure, conclude=self._conclude)

    def _measure(self, planned: tuple[Setting, Data, int]) -> bool:
        """Measure a turn of a way of loading; return whether no rank was asked to stop in it."""
        from hpcdist.bench.dataload.measure import Effort, Way

        setting, data, passes = planned
        way = self._ways.get(setting)
        if way is None:
            way = self._ways[setting] = Way(
                self,
                self._sources.source(data),
                setting,
                seed=self._job.dataload.seed,
                threads=self._job.dataload.threads,
                should_stop=self.should_stop,
            )
        effort = Effort(passes=passes, batches=self._job.data.batches_to_check)
        max_time_s = self._job.dataload.max_time_s / len(turns(self._job.data.repeats))
        way.measure(effort, time_s=max_time_s)
        measured: list[tuple[Passes, dict[str, float]]] = self.gather((way.passes, way.stages_s))
        if measured[0][0].times_s:  # else asked to stop before the first that counts
            self._report(setting, measured)
        return not self._is_stopping

    def _time_model(self) -> None:
        """Time a training step for each batch size, or take the time that the job names."""
        from hpcdist.data.order import LEAST_BATCH

        ways = reversed(self._combinations.items())
        for batch_size, data in sorted({way.batch_size: data for way, data in ways}.items()):
            if self._job.dataload.step_time_s is not None:
                step_time_s = self._job.dataload.step_time_s
                self._report_step(ModelStep(batch_size=batch_size, mean_time_s=step_time_s))
            elif self._job.model.name is None:
                return
            elif batch_size >= LEAST_BATCH:
                self._report_step(self._time_steps(data, batch_size))
            else:
                self.note(
                    f"no step is timed with {batch_size} per batch: batch norm cannot train on it"
                )

    def _time_steps(self, data: Data, batch_size: int) -> ModelStep:
        import torch

        from hpcdist.bench.dataload.measure import time_steps
        from hpcdist.data.order import Share

        source = self._sources.source(msgspec.structs.replace(data, workers=0))
        order = torch.arange(batch_size) % len(source)
        share = Share(begin=0, end=batch_size, filled_end=batch_size)
        with source.open(self.context) as batches:
            (batch,) = (batches.bring(each) for each in batches.epoch(order, [share], 0))
        times_s = time_steps(
            self._job.model,
            batch,
            source.num_classes,
            device=torch.device(self.context.device),
            alive=self.alive,
        )
        slowest = max(self.gather(times_s), key=mean)
        return ModelStep(
            batch_size=batch_size,
            mean_time_s=mean(slowest),
            sd_time_s=standard_deviation(slowest),
            repeats=len(slowest),
            model=self._job.model.name,
            on_cpus=self.context.device == "cpu",
        )

    def _report_plan(self) -> None:
        number, repeats = len(self._combinations), self._job.data.repeats
        in_turns = "" if repeats == 1 else ", each in two turns"
        self.say(
            f"{number_of(number, 'way')} of loading {self._job.data.name}{in_turns}: "
            f"{repeats} passes x {self._job.data.batches_to_check} batches; at most about "
            f"{number * self._job.dataload.max_time_s / 60:.0f} min"
        )
        cpus = min(place.cpus / len(self._of_node(place.node)) for place in self._places)
        most = {"data.workers": max(setting.workers for setting in self._combinations)}
        if self._job.dataload.threads > 1:
            most["dataload.threads"] = self._job.dataload.threads
        for key, number in most.items():
            if number > cpus:
                self.note(
                    f"{key}: {number} per rank are more than the {num_cpus(cpus)} that each rank "
                    "has here"
                )

    def _report(self, setting: Setting, measured: list[tuple[Passes, dict[str, float]]]) -> None:
        if self.context.rank != 0:
            return
        for place in dict.fromkeys(self._places):
            own = [measured[rank] for rank in self._of_node(place.node)]
            stages = [stages for _, stages in own]
            in_all = [name for name in stages[0] if all(name in each for each in stages)]
            means_s = {name: mean(each[name] for each in stages) for name in in_all}
            data, passes = self._combinations[setting], [passes for passes, _ in own]
            cell = to_cell(setting, data, place, passes, means_s)
            self._cells[setting, place.node] = cell
            self.report("loading", self._line(cell), msgspec.to_builtins(cell))

    def _line(self, cell: DataloadCell) -> str:
        sizes = {setting.batch_size for setting in self._combinations}
        words = [f"node {cell.node}"] if self.context.num_nodes > 1 else []
        words += [
            shortened(cell.setting.transform, BRIEF),
            with_workers(cell.setting.workers),
            *([f"batch_size {cell.setting.batch_size}"] if len(sizes) > 1 else []),
        ]
        return (
            f"{', '.join(words)}: {show_mean_sd(cell.mean_time_s, cell.sd_time_s)} per batch, "
            f"{cell.images_per_s:,.0f} images/s ({cell.repeats} x {cell.batches})"
        )

    def _report_step(self, step: ModelStep) -> None:
        self._steps.append(step)
        whose = f"a training step of {step.model}" if step.model else "a training step"
        time = show_mean_sd(step.mean_time_s, step.sd_time_s)
        line = f"{whose} with {step.batch_size:,} per batch: {time}"
        self.report("model_step", line, msgspec.to_builtins(step))

    def _of_node(self, node: int) -> list[int]:
        return [rank for rank, place in enumerate(self._places) if place.node == node]

    def _conclude(self) -> None:
        from hpcdist.bench.dataload.report import MOST_AXES, group_in_panels, make_figure

        cells = list(self._cells.values())
        if not cells:
            return
        summary = conclude(cells, self._steps)
        left_out = len(group_in_panels(cells)) - MOST_AXES
        sizes = {cell.setting.batch_size for cell in cells}
        batches = f", batches of {sizes.pop()}" if len(sizes) == 1 else ""
        ranks = "" if cells[0].ranks == 1 else f" on each of {cells[0].ranks} ranks"
        title = f"{self._job.data.name}{batches}{ranks}: {num_cpus(cells[0].cpus)} per node"
        self.conclude(
            (*summary.conclusions, *summary.details),
            PLOT_NAME,
            title,
            lambda: make_figure(cells),
            more=f"; {left_out} more would not be readable" if left_out > 0 else "",
        )


def turns(repeats: int) -> list[int]:
    """Return the passes in each turn: all ways of loading take one turn after the other, then once
    more in the opposite order, so that what drifts with the time falls on all alike."""
    first = math.ceil(repeats / 2)
    return [first, repeats - first] if repeats > 1 else [repeats]
