"""The figures of one batch size under one strategy; pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Annotated, Any

from msgspec import Meta, Struct

SINGLE = "single"
DATA_PARALLEL = "data_parallel"
PROCESS_PER_GPU = "process_per_gpu"


# The bounds keep what is computed from damaged files finite.
Seconds = Annotated[float, Meta(ge=0, le=1e12)]
_AboveZero = Annotated[int, Meta(ge=1)]


class Cell(Struct, frozen=True, kw_only=True):
    """One batch size under one strategy; times are from images on the host to logits there."""

    strategy: str
    batch_size: _AboveZero
    """Images, over all devices together."""
    devices: _AboveZero
    """GPUs, or ranks on CPUs, that the batch is spread over."""
    repeats: Annotated[int, Meta(ge=0)] = 0
    cold_time_s: Seconds | None = None
    """The first call with this batch size."""
    mean_time_s: Annotated[float, Meta(gt=0, le=1e12)] | None = None
    """None where it does not fit into memory."""
    sd_time_s: Seconds | None = None
    min_time_s: Seconds | None = None
    images_per_s: Annotated[float, Meta(ge=0, le=1e18)] | None = None
    parts_s: dict[str, Seconds] = {}
    """Seconds of a call in nn.DataParallel's own parts, replicate, scatter and gather; empty where
    it has none."""
    error: str | None = None


def slowest(times_s: Sequence[Sequence[float]]) -> list[float]:
    """The time of each call, from those of every rank that took part: a batch is done when its last
    share is."""
    return [max(times) for times in zip(*times_s, strict=True)]


def timed_fields(times_s: Sequence[float], cold_time_s: float, batch_size: int) -> dict[str, Any]:
    """What is made of the times of repeated calls."""
    mean_s = statistics.fmean(times_s)
    return {
        "repeats": len(times_s),
        "cold_time_s": cold_time_s,
        "mean_time_s": mean_s,
        "sd_time_s": statistics.stdev(times_s) if len(times_s) > 1 else None,
        "min_time_s": min(times_s),
        "images_per_s": batch_size / mean_s,
    }


def share_of(batch_size: int, rank: int, num_ranks: int) -> tuple[int, int]:
    """First and last + 1 of a rank's images; shares differ by one at most."""
    return batch_size * rank // num_ranks, batch_size * (rank + 1) // num_ranks
