"""The data-loading benchmark: time per batch by workers, transforms and batch sizes."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING

from hpcdist.base.statistics import mean
from hpcdist.base.text import number_of
from hpcdist.bench.cells import CellTable, Findings, TimedCell, timed_cell
from hpcdist.bench.dataload.advice import WAITING, Loading, conclude
from hpcdist.bench.dataload.ways import Way, check_dataload, combine, several
from hpcdist.bench.ranks import BenchmarkRank, process_group
from hpcdist.data.catalog import find_data_set
from hpcdist.data.images.transforms import is_unchanged
from hpcdist.job.spec import Data, DataloadJob
from hpcdist.machine.cpus import cpu_quota
from hpcdist.rank.context import RankContext, Workload

if TYPE_CHECKING:
    from hpcdist.bench.dataload.measure import Loader, Passes


class DataloadWorkload(Workload[DataloadJob]):
    """Measures every way of loading."""

    def check(self) -> None:
        check_dataload(self.job)

    def prepare(self) -> None:
        if self.job.data.dataset is None:
            find_data_set(self._data).prepare(self._data)

    @property
    def _data(self) -> Data:
        """The data section of one way: all ways load the same data set."""
        return next(iter(combine(self.job).values()))

    def preload(self) -> list[str]:
        """Return what measures, and torchvision where transforms need it."""
        transformed = not all(map(is_unchanged, several(self.job.data, "transform")))
        return ["hpcdist.bench.dataload.measure", *["torchvision"] * transformed]

    def run(self, context: RankContext) -> None:
        import torch

        torch.set_num_threads(1)  # as torch gives each worker
        # More workers than CPUs are what is tried here.
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
        with process_group(context, "gloo"):
            _DataloadRank(context, self.job).run()


class _DataloadRank(BenchmarkRank):
    def __init__(self, context: RankContext, job: DataloadJob) -> None:
        self._job, self._ways, dataset = job, combine(job), job.data.dataset
        ranks = context.world_size
        caption = f"loading {dataset or job.data.name} by workers"
        caption += f" on each of {ranks} ranks" if ranks > 1 else ""
        caption += ", mean ± 95 % interval over passes"
        # A node has the CPUs that its ranks have together, or their quota.
        own_cpus = min(context.num_cpus, cpu_quota() or math.inf) / context.local_world_size
        decoder = job.data.decoder if dataset is None else None
        table = CellTable(
            name="loading",
            caption=caption,
            time="time per batch",
            rate="samples_per_s" if dataset else "images_per_s",
            x="workers",
            parts_of="sample" if dataset else "image",
        )
        super().__init__(context, table)
        self._loading = Loading(ranks=ranks, cpus=-self.largest(-own_cpus), decoder=decoder)
        self._loaders: dict[Way, Loader] = {}
        repeats = job.data.repeats
        self._turns = [passes for passes in (math.ceil(repeats / 2), repeats // 2) if passes]
        """Passes of each turn: all ways take one, then once more in the opposite order, so that
        what drifts with the time falls on all alike."""

    def run(self) -> None:
        """Measure every way of loading in turn, then again backwards, and conclude."""
        number, data = len(self._ways), self._job.data
        self.say(
            f"{number_of(number, 'way')} of loading {data.dataset or data.name}, each in two "
            f"turns: {data.repeats} passes x {data.batches_to_check} batches; at most about "
            f"{number * self._job.dataload.max_time_s / 60:.0f} min"
        )
        ways = list(self._ways)
        plan = [
            (way, passes)
            for turn, passes in enumerate(self._turns)
            for way in ways[:: -1 if turn else 1]
        ]
        self.measure_all(plan, self._measure)

    def find(self) -> Findings:
        return conclude(self.cells("loading"), self._loading)

    def _measure(self, planned: tuple[Way, int]) -> None:
        """Measure a turn of a way of loading, up to a stop."""
        from hpcdist.bench.dataload.measure import Loader
        from hpcdist.bench.dataload.sources import find_source

        way, passes = planned
        setting, loader = self._job.dataload, self._loaders.get(way)
        if loader is None:
            data, own = self._ways[way], self._job.data.dataset
            source = find_source(data, own, seed=0)
            loader = self._loaders[way] = Loader(self, source, way, setting)
        time_s = setting.max_time_s / len(self._turns)
        loader.measure(passes, self._job.data.batches_to_check, time_s=time_s)
        measured: list[Passes] = self.gather(loader.passes)
        if measured[0].times_s:  # else asked to stop before the first that counts
            self.record(to_cell(way, measured, self._loading.cpus))


def to_cell(way: Way, ranks: list[Passes], cpus: float) -> TimedCell:
    """Return the figures of ranks with so many CPUs each: all of them have a batch when the slowest
    has."""
    slowest_s = [max(times) for times in zip(*(each.times_s for each in ranks), strict=True)]
    first_s = mean(map(max, zip(*(each.first_batches_s for each in ranks), strict=True)))
    # Stages that were measured alone may take longer: no more CPUs compute than there are. What
    # they do not explain of a worker's time is the hand-over, and waiting for a CPU.
    sample_s, at_once = mean(slowest_s) / way.batch_size, max(1, way.workers)
    parts_s = {name: mean(each.parts_s[name] for each in ranks) for name in ranks[0].parts_s}
    computing_s = sum(part_s for name, part_s in parts_s.items() if name not in WAITING)
    share = min(1.0, min(at_once, cpus) * sample_s / computing_s) if computing_s else 1.0
    parts_s = {name: s if name in WAITING else share * s for name, s in parts_s.items()}
    left_s = max(0.0, at_once * sample_s - sum(parts_s.values()))
    return timed_cell(
        "loading",
        way.keys,
        slowest_s,
        amount=len(ranks) * way.batch_size,
        more={"first_batch_time_s": first_s},
        parts_s=parts_s | {"hand_over": left_s},
    )
