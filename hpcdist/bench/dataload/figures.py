"""What loading batches in one way took, on one node; pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct

# The bounds keep what is computed from damaged files finite.
Seconds = Annotated[float, Meta(ge=0, le=1e12)]
PositiveSeconds = Annotated[float, Meta(gt=0, le=1e12)]
_AboveZero = Annotated[int, Meta(ge=1, le=10**15)]
_Bytes = Annotated[int, Meta(ge=0, le=10**18)]

PARTS = ("read", "decode", "transform", "collate", "hand_over")
"""Where the time goes, in the order in which it does."""


class Setting(Struct, frozen=True, kw_only=True):
    """One way of loading: a value of each key that may have several."""

    root: str | None = None
    transform: str = "none"
    """In words: the name of a preset, or the transforms one after the other."""
    device_transform: str | bool = "auto"
    decoder: str = "exact"
    reads: int | None = None
    cache: str | bool = "auto"
    handover: str = "uint8"
    batch_size: _AboveZero
    pin_memory: str | bool = "auto"
    prefetch_factor: int = 2
    persistent_workers: bool = True
    multiprocessing_context: str = "fork"
    workers: Annotated[int, Meta(ge=0, le=10**6)]
    """Per rank; 0: the rank loads by itself."""


OF_WORKERS = ("prefetch_factor", "persistent_workers", "multiprocessing_context")
"""Keys that mean nothing without workers."""


class LoadingCell(Struct, frozen=True, kw_only=True):
    """One way of loading on one node; times per batch are those of its slowest rank."""

    setting: Setting
    node: Annotated[int, Meta(ge=0)]
    host: str
    ranks: _AboveZero
    """Of the node; each loads its share, all at the same time."""
    cpus: Annotated[float, Meta(gt=0, le=1e6)]
    """CPUs that the node's ranks have together, a quota counted in part."""
    repeats: _AboveZero
    """Passes that were timed, after the first ones."""
    batches: _AboveZero
    """Of each rank, in a pass."""
    mean_time_s: PositiveSeconds
    """Per batch."""
    sd_time_s: Seconds | None = None
    """Of the passes' times per batch; None where there was one pass."""
    min_time_s: Seconds
    images_per_s: Annotated[float, Meta(ge=0, le=1e18)]
    """Of all ranks of the node together."""
    start_time_s: Seconds
    """Until the first batch is there, with the workers made; mean where it was done twice."""
    first_time_s: Seconds
    """Per batch of the first pass, with what is in start_time_s."""
    first_files: Literal["cold", "warm", "unknown", "memory"] = "unknown"
    """Whether the files had to come from storage (cold), or were in the memory of the system, which
    not every file system can be asked to forget; memory: the data set is in memory anyway."""
    parts_s: dict[str, Seconds] = {}
    """Seconds of work per image in read, decode, transform and collate, as one process takes them
    one after the other; hand_over is the rest of what it takes: handing over, and waiting."""
    worker_bytes: _Bytes | None = None
    """Memory of a worker, shared pages counted in part (PSS); None without workers."""


class StepTime(Struct, frozen=True, kw_only=True):
    """What a training step takes with a batch that is there already; of the slowest rank."""

    batch_size: _AboveZero
    mean_time_s: PositiveSeconds
    sd_time_s: Seconds | None = None
    repeats: _AboveZero = 1
    model: str | None = None
    """None: the job says what a step takes."""
    on_cpus: bool = False
    """The model takes the CPUs that loading needs."""


class Passes(Struct, frozen=True, kw_only=True):
    """What one rank measured of one way of loading; lists grow where it is measured again."""

    batches: list[int]
    """In each pass."""
    times_s: list[float]
    """Of each pass."""
    starts_s: list[float]
    firsts_s: list[float]
    """Of each first pass, per batch."""
    first_files: Literal["cold", "warm", "unknown", "memory"]
    """Of the earliest."""
    worker_bytes: int | None = None

    def joined(self, later: Passes) -> Passes:
        """With what was measured of the same later."""
        return Passes(
            batches=self.batches + later.batches,
            times_s=self.times_s + later.times_s,
            starts_s=self.starts_s + later.starts_s,
            firsts_s=self.firsts_s + later.firsts_s,
            first_files=self.first_files,
            worker_bytes=max((self.worker_bytes or 0, later.worker_bytes or 0)) or None,
        )


class Place(Struct, frozen=True, kw_only=True):
    """A node, as its figures name it."""

    node: int
    host: str
    cpus: float


def to_cell(
    setting: Setting, place: Place, ranks: Sequence[Passes], stages_s: dict[str, float]
) -> LoadingCell:
    """The figures of one node, from those of its ranks: all have a batch when the slowest has.

    `stages_s`: seconds per image in each stage before the hand-over.
    """
    first = ranks[0]
    slowest = [max(times) for times in zip(*(passes.times_s for passes in ranks), strict=True)]
    times_s = [time_s / number for time_s, number in zip(slowest, first.batches, strict=True)]
    mean_s = statistics.fmean(times_s)
    workers = [passes.worker_bytes for passes in ranks if passes.worker_bytes]
    return LoadingCell(
        setting=setting,
        node=place.node,
        host=place.host,
        cpus=place.cpus,
        ranks=len(ranks),
        repeats=len(times_s),
        batches=max(first.batches),
        mean_time_s=mean_s,
        sd_time_s=statistics.stdev(times_s) if len(times_s) > 1 else None,
        min_time_s=min(times_s),
        images_per_s=len(ranks) * setting.batch_size / mean_s,
        start_time_s=statistics.fmean(max(each) for each in _by_turn(ranks, "starts_s")),
        first_time_s=max(passes.firsts_s[0] for passes in ranks),
        first_files=first.first_files,
        parts_s=stages_s | {"hand_over": _rest_s(setting, place, len(ranks), mean_s, stages_s)},
        worker_bytes=max(workers, default=None),
    )


def _rest_s(
    setting: Setting, place: Place, num_ranks: int, mean_s: float, stages_s: dict[str, float]
) -> float:
    """What an image takes of the time of those that load at once beyond its stages: of the workers,
    or of the CPUs where these are fewer."""
    at_once = max(1.0, min(setting.workers, place.cpus / num_ranks))
    return max(0.0, at_once * mean_s / setting.batch_size - sum(stages_s.values()))


def _by_turn(ranks: Sequence[Passes], field: str) -> list[tuple[float, ...]]:
    return list(zip(*(getattr(passes, field) for passes in ranks), strict=True))
