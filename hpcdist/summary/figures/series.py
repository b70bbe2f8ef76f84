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

from hpcdist.base.statistics import mean
from hpcdist.runs.events import NodeBegin, UsageWindow
from hpcdist.summary.figures.timeline import Learned
from hpcdist.summary.read.event_file import EventFile

MOST_POINTS = 200
"""Points of a curve; where there are more, neighbours are joined."""
MOST_NODES = 7
"""Nodes with a line of their own: more cannot be told apart."""
NOT_KNOWN = math.nan
_LARGEST = 1e100
"""Largest value that an axis can show."""

GPU_BUSY = "GPUs busy (%)"
GPU_MEMORY = "memory of the\nfullest GPU (MiB)"
CPUS_BUSY = "CPUs busy"
PANELS = (GPU_BUSY, GPU_MEMORY, CPUS_BUSY)
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
    """One node in one panel, or the least or the largest of all nodes."""

    name: str
    times_s: list[float]
    values: list[float]


class UsageSeries(NamedTuple):
    """All lines of a run, by panel: one for each node, or two for the range of many."""

    panels: dict[str, list[Line]]
    num_nodes: int


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
        if len(points) > MOST_POINTS:
            parts = _neighbours(points, MOST_POINTS)
            points = [(*part[-1][:2], mean(value for *_, value in part)) for part in parts]
        curves.append(Curve(*map(list, zip(*points, strict=True))) if points else Curve([], [], []))
    return Learning(*curves)


def _neighbours(points: Sequence[PointT], most: int) -> Iterator[Sequence[PointT]]:
    """Yield points that are joined to one."""
    size = max(1, -(-len(points) // most))
    for first in range(0, len(points), size):
        yield points[first : first + size]


class UsageLines:
    """The lines of all nodes; takes the file of one node after the other."""

    def __init__(self) -> None:
        self._lines: dict[int, dict[str, Line]] = {}
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
        points: dict[str, list[tuple[float, float]]] = {}
        for window in windows:
            time_s = max(0.0, window.time_s - window.wall_s / 2 - zero_s)
            for panel, value in _values(window):
                points.setdefault(panel, []).append((time_s, value))
        lines = self._lines.setdefault(record.number, {})
        for panel, found in points.items():
            own = found
            line = lines.setdefault(panel, Line(f"node {record.number}", [], []))
            if line.times_s:  # between two attempts nothing was sampled
                line.times_s.append(NOT_KNOWN)
                line.values.append(NOT_KNOWN)
            if len(own) > MOST_POINTS:
                join = max if panel == GPU_MEMORY else mean
                own = [
                    (mean(time_s for time_s, _ in part), join([value for _, value in part]))
                    for part in _neighbours(own, MOST_POINTS)
                ]
            line.times_s.extend(time_s for time_s, _ in own)
            line.values.extend(value for _, value in own)

    def series(self) -> UsageSeries | None:
        of_nodes = [lines for _, lines in sorted(self._lines.items())]
        panels = {panel: [lines[panel] for lines in of_nodes if panel in lines] for panel in PANELS}
        panels = {panel: lines for panel, lines in panels.items() if lines}
        num_points = [len(line.values) for lines in panels.values() for line in lines]
        if max(num_points, default=0) < _LEAST_POINTS:
            return None
        if len(of_nodes) > MOST_NODES:
            panels = {panel: _range_of(lines) for panel, lines in panels.items()}
        return UsageSeries(panels, num_nodes=len(of_nodes))


def _range_of(lines: Sequence[Line]) -> list[Line]:
    """Return the least and the largest value of all nodes over time."""
    points = [
        point
        for line in lines
        for point in zip(line.times_s, line.values, strict=True)
        if not math.isnan(point[1])
    ]
    # About one value of each node stands in a column.
    column_s = max(time_s for time_s, _ in points) / max(len(line.values) for line in lines) or 1.0
    columns: dict[int, list[tuple[float, float]]] = {}
    for time_s, value in points:
        columns.setdefault(int(time_s / column_s), []).append((time_s, value))
    ordered = [own for _, own in sorted(columns.items())]
    times_s = [mean(time_s for time_s, _ in own) for own in ordered]
    return [
        Line(f"{name} of all nodes", times_s, [end(value for _, value in own) for own in ordered])
        for name, end in (("least", min), ("largest", max))
    ]


def _values(window: UsageWindow) -> Iterator[tuple[str, float]]:
    """Yield panel and value; all GPUs of the node are one value."""
    busy = [gpu.utilization for gpu in window.gpus if gpu.utilization is not None]
    memory = [gpu.memory_bytes for gpu in window.gpus if gpu.memory_bytes is not None]
    if busy:
        yield GPU_BUSY, 100.0 * mean(busy)
    if memory:
        yield GPU_MEMORY, max(memory) / _MIB
    if window.cpus_busy is not None:
        yield CPUS_BUSY, window.cpus_busy
