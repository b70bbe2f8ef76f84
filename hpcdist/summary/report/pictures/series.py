"""Series of a run over time: curves of learning, step times by rank, and what it used.

One file is read at a time, and what is kept of it is small. Times of ranks are lengths on a rank's
own clock, from its first step in an attempt on; attempts are put behind each other by the clock of
the lowest rank, and none begins before the last one ended. Times of nodes are lengths on a node's
own clock, from the begin of the first attempt on: attempts begin at the same moment on all nodes.
So clocks of nodes may differ by minutes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from hpcdist.runs.events import UsageWindow, Window
from hpcdist.runs.run import Run
from hpcdist.summary.read.collect import read_node, read_rank
from hpcdist.summary.read.records import NodeRecord
from hpcdist.summary.read.timeline import read_timeline, window_ends_s

NUM_COLUMNS = 160
"""Columns of a heat map."""

NOT_KNOWN = math.nan

_LARGEST = 1e100
"""Largest value that an axis can show."""


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


class HeatMap(NamedTuple):
    """Mean step time of each rank without its wait for others, over time."""

    ranks: list[int]
    hosts: list[str | None]
    whole_s: float
    """From the first step to the last."""
    times_s: list[list[float]]
    """By rank, then by column; NOT_KNOWN where the rank did not step."""


def read_learning(path: Path) -> Learning:
    curves = Learning(*(Curve([], [], []) for _ in Learning._fields))
    for attempt in read_timeline(path):
        if attempt.first_step is None:
            continue
        for window, end_s in attempt.windows():
            after_s = attempt.after_start_s(end_s)
            _add(curves.train_loss, window.step, after_s, window.mean_loss)
            _add(curves.learning_rate, window.step, after_s, window.learning_rate)
        for step, time_s, evaluation in attempt.evaluations():
            after_s = max(0.0, attempt.after_start_s(time_s))
            _add(curves.test_loss, step, after_s, evaluation.loss)
            _add(curves.accuracy, step, after_s, evaluation.accuracy)
    return curves


def read_heat_map(path: Path) -> HeatMap | None:
    """Read the heat map of a run; None where no rank stepped for any time."""
    stepped = [attempt for attempt in read_timeline(path) if attempt.first_step is not None]
    offsets = {attempt.record.attempt: attempt.offset_s for attempt in stepped}
    whole_s = max((attempt.offset_s + attempt.length_s for attempt in stepped), default=0.0)
    if not whole_s:
        return None
    sums: dict[int, list[tuple[float, float]]] = {}
    hosts: dict[int, str | None] = {}
    for rank, attempt, file in Run(path).event_files():
        record = read_rank(file, rank=rank, attempt=attempt)
        if attempt in offsets and record.windows:
            cells = sums.setdefault(rank, [(0.0, 0.0)] * NUM_COLUMNS)
            _add_own_times(cells, record.windows, offsets[attempt], whole_s)
            hosts[rank] = record.starts[-1].host if record.starts else None
    ranks = sorted(rank for rank, cells in sums.items() if any(weight for _, weight in cells))
    if not ranks:
        return None
    return HeatMap(
        ranks=ranks,
        hosts=[hosts[rank] for rank in ranks],
        whole_s=whole_s,
        times_s=[
            [total / weight if weight else NOT_KNOWN for total, weight in sums[rank]]
            for rank in ranks
        ],
    )


def _add(curve: Curve, step: int, time_s: float, value: float | None) -> None:
    if value is not None and abs(value) < _LARGEST:  # which NaN is not
        curve.steps.append(float(step))  # damaged files have numbers of any size
        curve.times_s.append(time_s)
        curve.values.append(value)


def _add_own_times(
    cells: list[tuple[float, float]], windows: Sequence[Window], offset_s: float, whole_s: float
) -> None:
    """Spread each window over the columns that it lies in, by the time it has in each."""
    ends = window_ends_s(windows)
    begin_s = ends[0] - windows[0].wall_s - windows[0].pause_s
    column_s = whole_s / NUM_COLUMNS
    for window, end_s in zip(windows, ends, strict=True):
        if not window.steps:
            continue
        waited_s = window.phases_s.get("exposed_communication", 0.0)
        own_s = (window.step_time_s.sum - waited_s) / window.steps
        right = end_s - begin_s + offset_s
        left = right - window.wall_s
        first = min(NUM_COLUMNS - 1, int(left / column_s))
        last = min(NUM_COLUMNS - 1, int(right / column_s))
        for column in range(first, last + 1):
            within_s = min(right, (column + 1) * column_s) - max(left, column * column_s)
            if within_s > 0:
                total_s, weight_s = cells[column]
                cells[column] = (total_s + own_s * within_s, weight_s + within_s)


MOST_NODES = 64

GPU_BUSY = "GPU busy (%)"
GPU_MEMORY = "GPU memory (MiB)"
GPU_POWER = "power of a GPU (W)"
CPUS_BUSY = "CPUs busy"
PANELS = (GPU_BUSY, GPU_MEMORY, GPU_POWER, CPUS_BUSY)
"""Panels in the order in which they are drawn."""

_MIB = 2**20
_LEAST_POINTS = 2
_GAP = (math.nan, math.nan, 0.0)
"""Point between two attempts, where nothing was sampled."""


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


def read_usage(path: Path) -> UsageSeries | None:
    """Read the lines of a run; None where nothing was sampled twice."""
    files = Run(path).usage_files()
    nodes = sorted({node for node, _, _ in files})
    taken = set(nodes[:: max(1, -(-len(nodes) // MOST_NODES))])
    panels: dict[str, dict[str, Line]] = {panel: {} for panel in PANELS}
    zeros_s: dict[int, float] = {}
    begins_s: dict[int, float] = {}
    """Begin of each attempt after the first; a node may join later, in the place of another."""
    for node, attempt, file in files:
        record = read_node(file, node=node, attempt=attempt) if node in taken else None
        if record and record.windows:
            first = record.windows[0]
            begin_s = record.begins[0].begin_s if record.begins else first.time_s - first.wall_s
            zero_s = zeros_s.setdefault(node, begin_s - begins_s.get(attempt, 0.0))
            begins_s.setdefault(attempt, begin_s - zero_s)
            _add_node(panels, record, zero_s)
    drawn = {panel: list(lines.values()) for panel, lines in panels.items() if lines}
    if all(len(line.values) < _LEAST_POINTS for lines in drawn.values() for line in lines):
        return None
    return UsageSeries(drawn, num_nodes=len(nodes), num_left_out=len(nodes) - len(taken))


def _add_node(panels: dict[str, dict[str, Line]], record: NodeRecord, zero_s: float) -> None:
    begun: set[tuple[str, str]] = set()
    for window in record.windows:
        time_s = max(0.0, window.time_s - window.wall_s / 2 - zero_s)
        for panel, name, value in _values(window, f"node {record.node}"):
            line = panels[panel].setdefault(name, Line(name, [], [], []))
            points = [(time_s, value, window.wall_s)]
            if (panel, name) not in begun and line.times_s:
                points.insert(0, _GAP)
            begun.add((panel, name))
            for column, figures in zip(line[1:], zip(*points, strict=True), strict=True):
                column.extend(figures)


def _values(window: UsageWindow, node: str) -> Iterator[tuple[str, str, float]]:
    """Yield panel, name of the line and value: the mean, of memory the maximum."""
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
