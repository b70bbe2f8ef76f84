"""The data-loading benchmark: time per batch by workers, transforms, and all else that data say."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from hpcdist import files
from hpcdist.data.catalog import check_data, download_data, find_data_set
from hpcdist.dataload.combinations import Combination, combine, in_words, several
from hpcdist.dataload.conclusion import conclude
from hpcdist.dataload.effort import Effort, turns
from hpcdist.dataload.figures import LoadingCell, Passes, Place, Setting, StepTime, to_cell
from hpcdist.errors import JobError
from hpcdist.job.check import show
from hpcdist.launch.cpu_quota import cpu_quota
from hpcdist.rank import RankContext
from hpcdist.spec import Data, DataloadJob, JobSpec
from hpcdist.training.model_names import check_model_name, is_torchvision
from hpcdist.workloads.benchmark import (
    alive,
    finish_step,
    process_group,
    should_stop,
    stop,
    waiting,
)

if TYPE_CHECKING:
    from hpcdist.dataload.turn import Turn

PLOT_NAME = "dataload.png"

_COMPARED = tuple(Setting.__struct_fields__)
_MOST_COMBINATIONS = 1_000
"""More is taken for a mistake: that many take hours."""


def check(job: JobSpec) -> None:
    """Raise JobError for all that can be known to be wrong without importing torch."""
    assert isinstance(job, DataloadJob)
    if job.model.name is not None:
        check_model_name(job.model.name)
        if job.dataload.step_time_s is not None:
            raise JobError(
                f"model.name is {job.model.name} and dataload.step_time_s is "
                f"{job.dataload.step_time_s:g}: loading is compared with one of them",
                hint="leave one of them out",
            )
    for key in _COMPARED:
        _check_list(job, key)
    combinations = _combine(job)
    if len(combinations) > _MOST_COMBINATIONS:
        raise JobError(
            f"the lists in data make {len(combinations):,} combinations, more than "
            f"{_MOST_COMBINATIONS:,}",
            hint="shorten the lists, or submit some of them as a job of their own",
        )
    for data in {combination.data.root: combination.data for combination in combinations}.values():
        check_data(data)
    _check_transforms(job)


def _check_list(job: DataloadJob, key: str) -> None:
    values = several(job.data, key)
    if not values:
        raise JobError(f"data.{key} is empty", hint="list at least one value, or leave it out")
    twice = next((value for value in values if values.count(value) > 1), None)
    if twice is not None:
        raise JobError(
            f"data.{key} has {show(twice)} {values.count(twice)} times",
            hint="list each once; data.repeats says how often it is timed",
        )


def _check_transforms(job: DataloadJob) -> None:
    from hpcdist.data.images.transforms import check_transform

    for transform in several(job.data, "transform"):
        check_transform(transform)


def prepare(job: JobSpec) -> None:
    """Download or make the data set where that is asked for, once, before any rank starts."""
    assert isinstance(job, DataloadJob)
    for data in {each.data.root: each.data for each in _combine(job)}.values():
        if not find_data_set(data).is_complete(data):
            download_data(data)


def preload(job: JobSpec) -> list[str]:
    """Modules to import once per node."""
    assert isinstance(job, DataloadJob)
    modules = ["hpcdist.dataload.turn"]
    entry = find_data_set(_any_data(job))
    heavy_model = job.model.name is not None and is_torchvision(job.model.name)
    transformed = set(several(job.data, "transform")) != {"none"}
    if heavy_model or transformed or "torchvision" in entry.modules:
        modules.append("torchvision")
    if job.model.name is not None:
        modules += ["hpcdist.dataload.model_step", "torch._dynamo"]  # optimizers import it
    return modules


def run(context: RankContext) -> None:
    """Measure, in this rank; leaves with EXIT_STOPPED where the agent asked to stop."""
    import torch

    torch.set_num_threads(context.num_threads)
    with process_group(context, "gloo"):
        _Benchmark(context).run()


def _combine(job: DataloadJob) -> list[Combination]:
    return combine(job.data, in_memory=find_data_set(_any_data(job)).images is None)


def _any_data(job: DataloadJob) -> Data:
    return Data(name=job.data.name)


class _Benchmark:
    """One rank's part."""

    def __init__(self, context: RankContext) -> None:
        from hpcdist.dataload.sources import Sources

        assert isinstance(context.job, DataloadJob)
        self.context = context
        self._job = context.job
        self._combinations = _combine(self._job)
        self._sources = Sources(self._job.dataload.seed)
        self._places = self._find_places()
        self._turns: dict[Setting, Turn] = {}
        self._passes: dict[Setting, list[Passes]] = {}
        self._cells: dict[tuple[Setting, int], LoadingCell] = {}
        self._steps: list[StepTime] = []

    def run(self) -> None:
        """Every way of loading in turn, then again backwards, and what follows from it."""
        self._tell_plan()
        if self._job.dataload.step_time_s is not None:
            self._take_step_time(self._job.dataload.step_time_s)
        passes = turns(self._job.data.repeats)
        plan = [
            (combination, number)
            for index, number in enumerate(passes)
            for combination in self._combinations[:: -1 if index else 1]
        ]
        for done, (combination, number) in enumerate(plan):
            if should_stop(self.context):
                self._conclude()
                raise stop(self.context, done, len(plan), "measurements")
            self._measure(combination, number, share_of_time=1 / len(passes))
            finish_step(self.context, done + 1)
        self._conclude()

    # What is measured.

    def _find_places(self) -> list[Place]:
        """Node, host and CPUs of every rank."""
        context = self.context
        quota = cpu_quota() or math.inf
        cpus = min(len(context.cpus), quota / context.local_world_size)
        own = Place(node=context.node_rank, host=context.host, cpus=cpus)
        return _gather(context, own)

    def _measure(self, combination: Combination, passes: int, *, share_of_time: float) -> None:
        from hpcdist.dataload.turn import Turn

        setting = combination.setting
        if setting not in self._turns:
            source = self._sources.source(combination.data)
            self._turns[setting] = Turn(self.context, source, setting, self._job.dataload.seed)
        turn = self._turns[setting]
        effort = Effort(passes=passes, batches=self._job.data.batches_to_check)
        measured = turn.measure(effort, time_s=self._job.dataload.max_time_s * share_of_time)
        ranks = _gather(self.context, measured)
        stages = _gather(self.context, turn.stages_s)
        if self.context.rank != 0:
            return
        before = self._passes.get(setting)
        self._passes[setting] = (
            [old.joined(new) for old, new in zip(before, ranks, strict=True)] if before else ranks
        )
        self._tell(setting, self._passes[setting], stages)

    # What is told.
