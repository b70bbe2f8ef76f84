"""What a run used over time, from what its agents sampled: one line per GPU, or per node.

Times are lengths on each node's own clock, from the begin of the first attempt on: attempts begin
at the same moment on all nodes, whose clocks may differ by minutes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from hpcdist.agent.usage import GpuWindow, Spread, UsageWindow
from hpcdist.runs.run import Run
from hpcdist.summary.read.collect import read_node
from hpcdist.summary.read.records import NodeRecord

MOST_NODES = 64

GPU_BUSY = "GPU busy (%)"
GPU_MEMORY = "GPU memory (GiB)"
GPU_POWER = "power of a GPU (W)"
CPUS_BUSY = "CPUs busy"
MEMORY = "memory of ranks (GiB)"
PANELS = (GPU_BUSY, GPU_MEMORY, GPU_POWER, CPUS_BUSY, MEMORY)
"""In the order in which they are drawn."""

_GIB = 2**30
_GAP = (math.nan, math.nan)
"""Between two attempts nothing was sampled."""


class Line(NamedTuple):
    """One GPU or node in one panel."""

    name: str
    times_s: list[float]
    values: list[float]
    lengths_s: list[float]
    """For which each value stands."""


class UsageSeries(NamedTuple):
    """All lines of a run, by panel."""

    panels: dict[str, list[Line]]
    num_nodes: int
    num_left_out: int
    """Nodes of many are left out, evenly."""


def read_usage(path: Path) -> UsageSeries | None:
    """The lines of a run; None where nothing was sampled."""
    files = Run(path).usage_files()
    nodes = sorted({node for node, _, _ in files})
    taken = set(nodes[:: max(1, -(-len(nodes) // MOST_NODES))])
    lines: dict[tuple[str, str], Line] = {}
    zeros_s: dict[int, float] = {}
    begins_s: dict[int, float] = {}
    """By attempt, how long after the first; a node may come in later, in the place of another."""
    for node, attempt, file in files:
        if node not in taken:
            continue
        record = read_node(file, node=node, attempt=attempt)
        if record.windows:
            begin_s = _begin_s(record)
            zero_s = zeros_s.setdefault(node, begin_s - begins_s.get(attempt, 0.0))
            begins_s.setdefault(attempt, begin_s - zero_s)
            _add(lines, record, zero_s)
    panels = {panel: [line for (own, _), line in lines.items() if own == panel] for panel in PANELS}
    panels = {panel: found for panel, found in panels.items() if found}
    if not panels:
        return None
    return UsageSeries(panels, num_nodes=len(nodes), num_left_out=len(nodes) - len(taken))


def _begin_s(record: NodeRecord) -> float:
    first = record.windows[0]
    return record.begins[0].begin_s if record.begins else first.time_s - first.wall_s


def _add(lines: dict[tuple[str, str], Line], record: NodeRecord, zero_s: float) -> None:
    begun: set[tuple[str, str]] = set()
    for window in record.windows:
        time_s = max(0.0, window.time_s - window.wall_s / 2 - zero_s)
        for panel, name, value in _values(window, f"node {record.node}"):
            line = lines.setdefault((panel, name), Line(name, [], [], []))
            if (panel, name) not in begun and line.times_s:
                _append(line, *_GAP, 0.0)
            begun.add((panel, name))
            _append(line, time_s, value, window.wall_s)


def _append(line: Line, time_s: float, value: float, length_s: float) -> None:
    line.times_s.append(time_s)
    line.values.append(value)
    line.lengths_s.append(length_s)


def _values(window: UsageWindow, node: str) -> Iterator[tuple[str, str, float]]:
    """(panel, name of the line, value); memory is the most, all else the mean."""
    for index, gpu in enumerate(window.gpus):
        for panel, value in _of_gpu(gpu):
            yield panel, f"{node}, GPU {index}", value
    if window.cpus_busy:
        yield CPUS_BUSY, node, window.cpus_busy.mean
    if window.memory_bytes:
        yield MEMORY, node, window.memory_bytes.max / _GIB


def _of_gpu(gpu: GpuWindow) -> Iterator[tuple[str, float]]:
    found: tuple[tuple[str, Spread | None, float], ...] = (
        (GPU_BUSY, gpu.utilization, 100.0),
        (GPU_POWER, gpu.power_w, 1.0),
    )
    for panel, spread, factor in found:
        if spread:
            yield panel, spread.mean * factor
    if gpu.memory_bytes:
        yield GPU_MEMORY, gpu.memory_bytes.max / _GIB
