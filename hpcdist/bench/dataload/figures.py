"""The figures of each way of loading on each node, and how they compare; pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct

from hpcdist.base.statistics import (
    Measure,
    Ratio,
    differs,
    mean,
    ratios_of_all,
    spread_measure,
)
from hpcdist.bench.benchmark import (
    PerSecond,
    PositiveCount,
    PositiveSeconds,
    rate_measure,
    timed_fields,
)
from hpcdist.job.spec import Data
from hpcdist.runs.events import Count, Seconds

PARTS = ("read", "decode", "transform", "collate", "hand_over")
"""The parts of an image's time, in their order."""

LEAST_DIFFERENCE = 0.03
"""A difference of the means counts where it is more than chance, and from 3 % on: nobody spends a
worker on less."""

MUCH = 1.2
"""Times as long, or as many images/s, that would be worth more workers, or another run."""

_CERTAIN = 10**6
"""As many equal values have no error."""

Temperature = Literal["cold", "warm", "unknown", "memory"]
"""Files had to come from storage (cold), or were in the memory of the system (warm), which
not every file system can be asked to forget; memory: the data set is in memory anyway."""


class Setting(Struct, frozen=True, kw_only=True):
    """One way of loading: a value of each key that may have several."""

    transform: str = "none"
    """In words: the name of a preset, or the transforms one after the other."""
    batch_size: PositiveCount
    workers: Annotated[int, Meta(ge=0, le=10**6)]
    """Per rank; 0: the rank loads by itself."""


class DataloadCell(Struct, frozen=True, kw_only=True):
    """One way of loading on one node; times per batch are those of its slowest rank."""

    setting: Setting
    node: Count
    host: str
    ranks: PositiveCount
    """Ranks of the node; each loads its share, all at the same time."""
    cpus: Annotated[float, Meta(gt=0, le=1e6)]
    """CPUs that the node's ranks have together, a quota counted in part."""
    decoder: str = "exact"
    threads: PositiveCount | None = None
    """CPU threads of each process that makes batches: a worker, or the rank without workers."""
    repeats: PositiveCount
    """Passes that were timed, after the first ones."""
    batches: PositiveCount
    """Batches of each rank, in a pass."""
    mean_time_s: PositiveSeconds
    """Per batch."""
    sd_time_s: Seconds | None = None
    """Deviation of the passes' times per batch; None where there was one pass."""
    min_time_s: Seconds
    p25_time_s: Seconds | None = None
    """A quarter of the passes took no longer."""
    median_time_s: Seconds | None = None
    p75_time_s: Seconds | None = None
    images_per_s: PerSecond
    """All ranks of the node together."""
    start_time_s: Seconds
    """Until the first batch is there, with the workers made; mean where it was done twice."""
    first_time_s: Seconds
    """Per batch of the first pass, with what is in start_time_s."""
    first_files: Temperature = "unknown"
    """Where the files of the first pass were."""
    parts_s: dict[str, Seconds] = {}
    """Seconds of work per image in read, decode, transform and collate, as one process takes them
    one after the other; hand_over is the rest of what it takes: handing over, and waiting."""
    worker_bytes: Annotated[int, Meta(ge=0, le=10**18)] | None = None
    """Memory of a worker, shared pages counted in part (PSS); None without workers."""

    @property
    def time_s(self) -> Measure:
        """The mean time per batch, with its spread over the passes."""
        return spread_measure(self.mean_time_s, self.sd_time_s, self.repeats, over="windows")

    @property
    def rate(self) -> Measure:
        """Images/s, with the same relative spread."""
        return rate_measure(self.images_per_s, self.time_s)


class ModelStep(Struct, frozen=True, kw_only=True):
    """Time of a training step with a batch that is loaded already, of the slowest rank."""

    batch_size: PositiveCount
    mean_time_s: PositiveSeconds
    sd_time_s: Seconds | None = None
    repeats: PositiveCount = 1
    model: str | None = None
    """None: the job gives the time of a step."""
    on_cpus: bool = False
    """The model takes the CPUs that loading needs."""

    @property
    def time_s(self) -> Measure:
        """The mean time, with its spread over the repeats; a given time is certain."""
        if self.model is None and self.sd_time_s is None:
            return spread_measure(self.mean_time_s, 0.0, _CERTAIN, over="windows")
        return spread_measure(self.mean_time_s, self.sd_time_s, self.repeats, over="windows")


Series = Sequence[DataloadCell]
"""By workers; all else is equal."""


class DataloadSummary(Struct, frozen=True, kw_only=True):
    """Time to load a batch, by way of loading and node."""

    cells: list[DataloadCell]
    steps: list[ModelStep] = []
    """Training steps by batch size, where the job asks for them."""
    conclusions: list[str]
    """The best number of workers, and the bottleneck."""
    details: list[str]
    """Figures behind the conclusions, and what would help."""


class Passes(Struct, kw_only=True):
    """One rank's measurements of one way of loading, which grow with every turn."""

    batches: list[int] = []
    """In each pass."""
    times_s: list[float] = []
    """Time of each pass."""
    starts_s: list[float] = []
    firsts_s: list[float] = []
    """Time of each first pass, per batch."""
    first_files: Temperature = "unknown"
    """Temperature of the files in the earliest pass."""
    threads: int | None = None
    """Threads of each process that makes batches."""
    worker_bytes: int | None = None


class Place(Struct, frozen=True, kw_only=True):
    """A node, as its figures name it."""

    node: int
    host: str
    cpus: float


def to_cell(
    setting: Setting,
    data: Data,
    place: Place,
    ranks: Sequence[Passes],
    stages_s: dict[str, float],
) -> DataloadCell:
    """Return the figures of one node: all its ranks have a batch when the slowest has.

    `stages_s`: seconds per image in each stage before the hand-over.
    """
    first = ranks[0]
    slowest = [max(times) for times in zip(*(passes.times_s for passes in ranks), strict=True)]
    times_s = [time_s / number for time_s, number in zip(slowest, first.batches, strict=True)]
    timed = timed_fields(times_s, len(ranks) * setting.batch_size)
    # An image takes this long, of the workers that load at once, or of the CPUs where they are
    # fewer: what its stages do not explain is the hand-over.
    at_once = max(1.0, min(setting.workers, place.cpus / len(ranks)))
    image_s = at_once * timed["mean_time_s"] / setting.batch_size
    starts_s = zip(*(passes.starts_s for passes in ranks), strict=True)
    return DataloadCell(
        setting=setting,
        node=place.node,
        host=place.host,
        cpus=place.cpus,
        decoder=data.decoder,
        threads=first.threads,
        ranks=len(ranks),
        batches=max(first.batches),
        start_time_s=mean(map(max, starts_s)),
        first_time_s=max(passes.firsts_s[0] for passes in ranks),
        first_files=first.first_files,
        parts_s=stages_s | {"hand_over": max(0.0, image_s - sum(stages_s.values()))},
        worker_bytes=max(passes.worker_bytes or 0 for passes in ranks) or None,
        **timed,
    )


def by_workers(cells: Iterable[DataloadCell]) -> list[Series]:
    """Return the series in cells of one node."""
    series: dict[tuple[str, int], list[DataloadCell]] = {}
    for cell in cells:
        key = (cell.setting.transform, cell.setting.batch_size)
        series.setdefault(key, []).append(cell)
    return [sorted(each, key=lambda cell: cell.setting.workers) for each in series.values()]


def against_fastest(series: Series) -> list[Ratio]:
    """Return the mean time of each way as a multiple of the shortest one, of which each two are
    compared: any of them might have been the fastest."""
    compared = ratios_of_all([cell.time_s for cell in series])
    fastest = series.index(min(series, key=lambda cell: cell.mean_time_s))
    return [
        Ratio(mean=1.0) if place == fastest else compared[place, fastest]
        for place in range(len(series))
    ]


def is_slower(time: Ratio) -> bool:
    """Return whether a way takes longer by more than chance, and by enough to matter."""
    return time.mean > 1 + LEAST_DIFFERENCE and differs(time) is not False


def is_undecided(time: Ratio) -> bool:
    """Return whether a way may take as long as the fastest one, or much longer."""
    return differs(time) is False and time.interval is not None and time.interval.high > MUCH


def recommended(series: Series) -> DataloadCell:
    """Return the way with the fewest workers that none is faster than by more than chance."""
    times = against_fastest(series)
    return next(cell for cell, time in zip(series, times, strict=True) if not is_slower(time))


def spread(cell: DataloadCell) -> float:
    """Return sd to mean of the passes."""
    return (cell.sd_time_s or 0.0) / cell.mean_time_s


def best_by_transform(cells: Iterable[DataloadCell]) -> dict[str, Series]:
    """Return for each transform the series of one node with most images/s."""

    def most(series: Series) -> float:
        return max(cell.images_per_s for cell in series)

    best: dict[str, Series] = {}
    for series in by_workers(cells):
        transform = series[0].setting.transform
        best[transform] = max(best.get(transform, series), series, key=most)
    return best


def slowest_node(cells: Sequence[DataloadCell]) -> int:
    """Return the node whose best way of loading is the slowest."""
    best = {cell.node: cell.images_per_s for cell in sorted(cells, key=lambda c: c.images_per_s)}
    return min(best, key=lambda node: (best[node], node))
