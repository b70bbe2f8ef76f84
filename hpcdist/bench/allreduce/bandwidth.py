"""Bandwidths of an all-reduce, by the definitions of nccl-tests; pure.

doc/PERFORMANCE.md of github.com/NVIDIA/nccl-tests: the algorithm bandwidth is the size over the
time. Of n ranks, each must send and receive at least 2 (n - 1) / n of the size, whatever the
algorithm; the bus bandwidth is the algorithm bandwidth times that, and so can be held against the
speed of the hardware, for any number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence


def algorithm_bandwidth(num_bytes: int, time_s: float) -> float:
    """Bytes per second; 0 where no time passed."""
    return num_bytes / time_s if time_s > 0 else 0.0


def bus_bandwidth(num_bytes: int, time_s: float, num_ranks: int) -> float:
    """Bytes per second over each rank's link; 0 for one rank, which sends nothing."""
    return algorithm_bandwidth(num_bytes, time_s) * 2 * (num_ranks - 1) / num_ranks


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of the values that `share` of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
