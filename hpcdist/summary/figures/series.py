"""Series of a run over time, reduced to what a picture can show: curves of learning and what
it used.

Times of curves are those of `timeline`. Times of nodes are lengths on a node's own clock, from the
begin of the first attempt on: attempts begin at the same moment on all nodes. So clocks of nodes
may differ by minutes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from hpcdist.runs.events import NodeBegin, UsageWindow
from hpcdist.summary.figures.timeline import Learned
from hpcdist.summary.read.event_file import EventFile

MOST_POINTS = 200
"""Points of a curve; where there are more, neighbours are joined."""
MOST_NODES = 64
NOT_KNOWN = math.nan
_LARGEST = 1e100
"""Largest value that an axis can show."""

GPU_BUSY = "GPU busy (%)"
GPU_MEMORY = "GPU memory (MiB)"
GPU_POWER = "power of a GPU (W)"
CPUS_BUSY = "CPUs busy"
PANELS = (GPU_BUSY, GPU_MEMORY, GPU_POWER, CPUS_BUSY)
"""Panels in the order in which they are drawn."""
_MIB = 2**20
_LEAST_POINTS = 2
PointT = TypeVar("PointT")


class Curve(NamedTuple):
    """One figure against steps and against time; the three are of one length."""

    steps: list[float]
    times_s: list[float]
    values: list[float]


class Learning(NamedTuple):
    """Losses, accuracy and learning rate of a run, from its lowest rank."""

    train_loss: Curve
    test_loss: Curve
    accuracy: Curve
    learning_rate: Curve

    @property
    def has_varied_rate(self) -> bool:
        """The learning rate did not stay the same throughout."""
        return len(set(self.learning_rate.values)) > 1


class Line(NamedTuple):
    """One GPU or node in one panel."""

    name: str
    times_s: list[float]
    values: list[float]
    lengths_s: list[float]
    """Time that each value stands for."""


class UsageSeries(NamedTuple):
    """All lines of a run, by panel."""

    panels: dict[str, list[Line]]
    num_nodes: int
    num_left_out: int
    """Nodes that are left out, evenly, of many."""


class Series(Struct, frozen=True, kw_only=True):
    """All series of a run."""

    learning: Learning
    usage: UsageSeries | None
    """None where nothing was sampled twice."""


def decode_series(raw: bytes | msgspec.Raw) -> Series:
    return msgspec.msgpack.decode(raw, type=Series)


def learning_of(learned: Sequence[Learned]) -> Learning:
    """Return the curves of what a run learned: means of neighbours, where they end."""
    curves = []
    for value in map(attrgetter, ("train_loss", "loss", "accuracy", "learning_rate")):
        points = [
            (float(own.step), own.time_s, value(own))  # damaged files have any number
            for own in learned
            if own.step is not None and abs(value(own) or 0.0) < _LARGEST  # which NaN is not
            if value(own) is not None
        ]
        curve = Curve([], [], [])
        for own in _neighbours(points, MOST_POINTS):
            curve.steps.append(own[-1][0])
            curve.times_s.append(own[-1][1])
            curve.values.append(sum(point[2] for point in own) / len(own))
        curves.append(curve)
    return Learning(*curves)


def _neighbours(points: Sequence[PointT], most: int) -> Iterator[Sequence[PointT]]:
    """Yield points that are joined to one."""
    size = max(1, -(-len(points) // most))
    for first in range(0, len(points), size):
        yield points[first : first + size]


class UsageLines:
    """The lines of all nodes; takes the file of one node after the other."""

    def __init__(self) -> None:
        self._lines: dict[int, dict[tuple[str, str], Line]] = {}
        self._zeros_s: dict[int, float] = {}
        self._begins_s: dict[int, float] = {}
        """Begin of each attempt; a node may join later, in the place of another."""

    def add(self, record: EventFile) -> None:
        if not (windows := record.all(UsageWindow)):
            return
        begins = record.all(NodeBegin)
        begin_s = begins[0].begin_s if begins else windows[0].time_s - windows[0].wall_s
        begun_s = self._begins_s.get(record.attempt, 0.0)
        zero_s = self._zeros_s.setdefault(record.number, begin_s - begun_s)
        self._begins_s.setdefault(record.attempt, begin_s - zero_s)
        points: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
        for window in windows:
            time_s = max(0.0, window.time_s - window.wall_s / 2 - zero_s)
            for panel, name, value in _values(window, f"node {record.number}"):
                points.setdefault((panel, name), []).append((time_s, value, window.wall_s))
        lines = self._lines.setdefault(record.number, {})
        for (panel, name), own in points.items():
            line = lines.setdefault((panel, name), Line(name, [], [], []))
            joined = [_joined(part, panel) for part in _neighbours(own, MOST_POINTS)]
            if line.times_s:  # between two attempts nothing was sampled
                joined.insert(0, (NOT_KNOWN, NOT_KNOWN, 0.0))
            for column, figures in zip(line[1:], zip(*joined, strict=True), strict=True):
                column.extend(figures)

    def series(self) -> UsageSeries | None:
        nodes = sorted(self._lines)
        drawn = nodes[:: max(1, -(-len(nodes) // MOST_NODES))]
        lines = [(panel, line) for node in drawn for (panel, _), line in self._lines[node].items()]
        if all(len(line.values) < _LEAST_POINTS for _, line in lines):
            return None
        panels = {panel: [line for own, line in lines if own == panel] for panel in PANELS}
        return UsageSeries(
            {panel: own for panel, own in panels.items() if own},
            num_nodes=len(nodes),
            num_left_out=len(nodes) - len(drawn),
        )


def _joined(points: Sequence[tuple[float, float, float]], panel: str) -> tuple[float, float, float]:
    """Return the mean over time, of memory the maximum."""
    length_s = sum(own_s for *_, own_s in points) or 1.0
    value = sum(value * own_s for _, value, own_s in points) / length_s
    if panel == GPU_MEMORY or len(points) == 1:
        value = max(value for _, value, _ in points)
    return sum(time_s for time_s, *_ in points) / len(points), value, length_s


def _values(window: UsageWindow, node: str) -> Iterator[tuple[str, str, float]]:
    """Yield panel, name of the line and value."""
    for index, gpu in enumerate(window.gpus):
        name = f"{node}, GPU {index}"
        if gpu.utilization is not None:
            yield GPU_BUSY, name, 100.0 * gpu.utilization
        if gpu.power_w is not None:
            yield GPU_POWER, name, gpu.power_w
        if gpu.memory_bytes is not None:
            yield GPU_MEMORY, name, gpu.memory_bytes / _MIB
    if window.cpus_busy is not None:
        yield CPUS_BUSY, node, window.cpus_busy
