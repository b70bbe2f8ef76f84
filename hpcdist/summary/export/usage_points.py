"""What a run used over time, as points of one moment each: all GPUs, or all nodes, together.

Points are at the windows of the lowest node, by its clock. Of each other node the window counts
that is nearest to it, by the time since its ranks began: clocks of nodes may differ by minutes.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from hpcdist.agent.usage import Spread, UsageWindow
from hpcdist.base.statistics import mean
from hpcdist.runs.run import Run
from hpcdist.summary.read.collect import read_node
from hpcdist.summary.read.records import NodeRecord


class Moment(NamedTuple):
    """What was used in one window, as the keys of the summary's `usage` call it."""

    time_s: float
    """Unix time of its end, by the clock of the lowest node."""
    figures: dict[str, float]


def usage_moments(path: Path, attempt: int) -> Iterator[Moment]:
    """What an attempt of a run used, in its order; nothing where it was not sampled."""
    nodes = [
        _NodeWindows.of(record)
        for node, of_attempt, file in Run(path).usage_files()
        if of_attempt == attempt and (record := read_node(file, node=node, attempt=attempt)).windows
    ]
    if not nodes:
        return
    lowest, *others = nodes
    for window, since_s in zip(lowest.windows, lowest.since_s, strict=True):
        windows = [window, *(node.nearest(since_s) for node in others)]
        if figures := dict(_figures(windows)):
            yield Moment(window.time_s, figures)


class _NodeWindows(NamedTuple):
    windows: list[UsageWindow]
    since_s: list[float]
    """By window, its middle after the begin of the node's ranks."""

    @classmethod
    def of(cls, record: NodeRecord) -> _NodeWindows:
        windows = sorted(record.windows, key=_middle_s)
        begin_s = record.begins[0].begin_s if record.begins else windows[0].time_s
        return cls(windows, [_middle_s(window) - begin_s for window in windows])

    def nearest(self, since_s: float) -> UsageWindow:
        after = bisect_left(self.since_s, since_s)
        near = [place for place in (after - 1, after) if 0 <= place < len(self.windows)]
        return self.windows[min(near, key=lambda place: abs(self.since_s[place] - since_s))]


def _middle_s(window: UsageWindow) -> float:
    return window.time_s - window.wall_s / 2


def _figures(windows: Sequence[UsageWindow]) -> Iterator[tuple[str, float]]:
    gpus = [gpu for window in windows for gpu in window.gpus]
    yield from _known("gpu_utilization", mean, _means(gpu.utilization for gpu in gpus))
    yield from _known("gpu_power_w", mean, _means(gpu.power_w for gpu in gpus))
    yield from _known("max_gpu_memory_bytes", max, _most(gpu.memory_bytes for gpu in gpus))
    cpus = _means(window.cpus_busy for window in windows)
    if len(cpus) == len(windows):  # of a part of the nodes the sum is not that of the run
        yield from _known("cpus_busy", math.fsum, cpus)
    yield from _known("max_memory_bytes", max, _most(window.memory_bytes for window in windows))


def _known(
    name: str, joined: Callable[[Sequence[float]], float], values: Sequence[float]
) -> Iterator[tuple[str, float]]:
    if values:
        yield name, joined(values)


def _means(spreads: Iterable[Spread | None]) -> list[float]:
    return [spread.mean for spread in spreads if spread]


def _most(spreads: Iterable[Spread | None]) -> list[float]:
    return [spread.max for spread in spreads if spread]
