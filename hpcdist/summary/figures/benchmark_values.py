"""What the benchmarks `allreduce`, `inference` and `dataload` add to a run's summary.

Units stand in the names; bandwidths are bytes per second, by the definitions of nccl-tests.
"""

from __future__ import annotations

from msgspec import Struct

from hpcdist.bench.dataload.figures import LoadingCell, StepTime
from hpcdist.bench.inference.figures import Cell


class SizeFigures(Struct, frozen=True, kw_only=True):
    """All-reduces of one size; times are those of the slowest rank."""

    bytes: int
    iterations: int
    mean_time_s: float
    median_time_s: float
    p95_time_s: float
    min_time_s: float
    algorithm_bytes_per_s: float
    bus_bytes_per_s: float
    checked: bool
    """The sums were looked at, and are right."""


class PairFigures(Struct, frozen=True, kw_only=True):
    """All-reduces between one rank of each of two nodes."""

    nodes: tuple[int, int]
    hosts: tuple[str, str]
    bytes: int
    mean_time_s: float
    median_time_s: float
    bus_bytes_per_s: float
    """By the median time."""
    alone: bool
    """No other pair was measured at the same time."""


class Latency(Struct, frozen=True, kw_only=True):
    """Time of an all-reduce of the smallest size."""

    bytes: int
    median_time_s: float
    p95_time_s: float


class AllReduceSummary(Struct, frozen=True, kw_only=True):
    """What all-reduces over all ranks, and between pairs of nodes, took."""

    ranks: int
    dtype: str | None
    latency: Latency
    sizes: list[SizeFigures]
    pairs: list[PairFigures] = []
    slow_pairs: list[PairFigures] = []
    """Below half of what the best quarter of all pairs reach, the slowest first."""


class InferenceSummary(Struct, frozen=True, kw_only=True):
    """Time per batch, by batch size and strategy."""

    cells: list[Cell]
    conclusions: list[str]
    """A sentence for each parallel strategy."""


class LoadingSummary(Struct, frozen=True, kw_only=True):
    """Time to load a batch, by way of loading and node."""

    cells: list[LoadingCell]
    steps: list[StepTime] = []
    """What training steps take, by batch size, where that was asked for."""
    conclusions: list[str]
    """How many workers, and what the bottleneck is."""
    details: list[str]
    """What that goes by, and what would help."""
