"""What a run recorded, as series of points against steps and the time of day.

Names are what both TensorBoard and MLflow take, grouped by what stands before the slash, with
units. Points are those of the lowest rank but `speed/samples_per_s`, which is of all ranks, and
`usage/*`, which are of all GPUs, or all nodes.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from hpcdist.runs.run import Run
from hpcdist.summary.export.usage_points import usage_moments
from hpcdist.summary.figures import timing
from hpcdist.summary.figures.metrics import OTHER
from hpcdist.summary.figures.timing import Spans
from hpcdist.summary.read.collect import read_rank
from hpcdist.summary.read.records import RankRecord, Window
from hpcdist.summary.report.pictures.series import ends_s
from hpcdist.summary.values import RunSummary

_LARGEST = 3e38
"""Of a 32-bit number: TensorBoard's points are such."""
_LAST_STEP = 2**62


class Point(NamedTuple):
    """A value after so many steps."""

    step: int
    time_s: float
    """Unix time, by the clock of the lowest rank."""
    value: float


History = dict[str, list[Point]]
"""Points by the name of their series, in their order."""


class _Attempt(NamedTuple):
    lowest: RankRecord
    spans: list[Spans]
    """By rank, of the steps that each recorded; the lowest rank's first."""
    is_complete: bool
    """Whether every rank recorded steps: the rate of a part of them is not that of the run."""


def read_history(path: Path) -> History:
    """The series of a run; what was done again after a restart counts as the newest attempt did
    it."""
    history: History = defaultdict(list)
    for attempt in _attempts(path):
        windows = attempt.lowest.windows
        if windows:
            _drop_after(history, windows[0].step - windows[0].steps)
        usage = _usage_points(path, attempt.lowest, before=_last_step(history))
        for name, point in itertools.chain(_points(attempt), usage):
            if abs(point.value) < _LARGEST and point.step < _LAST_STEP:  # which NaN is not
                history[name].append(point)
    return dict(history)


def final_figures(run: RunSummary) -> dict[str, float]:
    """The figures of a whole run, by the names of series that have one point."""
    rate, step_time, accounting = run.samples_per_s, run.step_time_s, run.accounting
    usage, cost, reached = run.usage, run.cost, run.time_to_accuracy
    figures: dict[str, float | None] = {
        "final/samples_per_s": rate.mean if rate else None,
        "final/step_time_s": step_time.mean if step_time else None,
        "final/speedup": run.speedup,
        "final/efficiency": run.efficiency,
        "final/loss_train": run.train_loss,
        "final/loss_test": run.final.loss,
        "final/accuracy_test": run.final.accuracy,
        "final/peak_rss_bytes": run.peak_rss_bytes,
        "final/peak_cuda_bytes": run.peak_cuda_bytes,
        "final/time_to_accuracy_s": reached.time_s if reached else None,
        "final/gpu_utilization": usage.gpu_utilization if usage else None,
        "final/cpus_busy": usage.cpus_busy if usage else None,
        "final/energy_j": usage.energy_j if usage else None,
        "final/gpu_hours": cost.gpu_hours if cost else None,
        "final/cpu_hours": cost.cpu_hours if cost else None,
        "final/restarts": run.restarts,
        "final/queue_wait_s": accounting.queue_wait_s if accounting else None,
    }
    known = {name: float(value) for name, value in figures.items() if value is not None}
    return {name: value for name, value in known.items() if abs(value) < _LARGEST}


def benchmark_points(run: RunSummary) -> Iterator[tuple[str, int, float]]:
    """(series, place of the step, value) of a benchmark: by bytes, or by images per batch."""
    for size in run.all_reduce.sizes if run.all_reduce else []:
        yield "allreduce/bus_bytes_per_s", size.bytes, size.bus_bytes_per_s
        yield "allreduce/median_time_s", size.bytes, size.median_time_s
    for cell in run.inference.cells if run.inference else []:
        if cell.images_per_s is not None:
            yield f"inference/{cell.strategy}_images_per_s", cell.batch_size, cell.images_per_s


def whole_history(run: RunSummary, created_s: float) -> History:
    """What a run recorded, what its benchmark measured, and its figures as a whole, as series of
    one point each; `created_s` is the Unix time where none was recorded."""
    history = read_history(Path(run.path)) if run.path else {}
    last_s = max((points[-1].time_s for points in history.values() if points), default=created_s)
    for name, step, value in benchmark_points(run):
        if value < _LARGEST and step < _LAST_STEP:
            history.setdefault(name, []).append(Point(step, last_s, value))
    for name, value in final_figures(run).items():
        history[name] = [Point(run.steps or 0, last_s, value)]
    return history


def _attempts(path: Path) -> Iterator[_Attempt]:
    """A rank's file is read at a time, and of all but the lowest rank little is kept."""
    found = sorted(Run(path).event_files(), key=lambda file: (file[1], file[0]))
    for number, files in itertools.groupby(found, key=lambda file: file[1]):
        (rank, _, first), *others = files
        lowest = read_rank(first, rank=rank, attempt=number)
        spans = [_spans(lowest)]
        spans += [_spans(read_rank(file, rank=rank, attempt=number)) for rank, _, file in others]
        sizes = [start.world_size for start in lowest.starts if start.world_size]
        stepped = [of_rank for of_rank in spans if of_rank]
        is_complete = bool(sizes) and len(stepped) >= sizes[-1]
        yield _Attempt(lowest, spans, is_complete)


def _spans(record: RankRecord) -> Spans:
    return timing.to_spans(_filled(record.windows))


def _filled(windows: Sequence[Window]) -> list[Window]:
    return [window for window in windows if window.steps and window.wall_s]


def _drop_after(history: History, step: int) -> None:
    for points in history.values():
        while points and points[-1].step > step:
            points.pop()


def _points(attempt: _Attempt) -> Iterator[tuple[str, Point]]:
    record = attempt.lowest
    rates = _rates(attempt)
    for window, time_s in zip(record.windows, ends_s(record.windows), strict=True):
        for name, value in _of_window(window):
            yield name, Point(window.step, time_s, value)
        if (rate := rates.get(window.step)) is not None:
            yield "speed/samples_per_s", Point(window.step, time_s, rate)
    for one in record.evaluations:
        if one.step is not None and one.time_s is not None:
            if one.loss is not None:
                yield "loss/test", Point(one.step, one.time_s, one.loss)
            if one.accuracy is not None:
                yield "accuracy/test", Point(one.step, one.time_s, one.accuracy)
    for memory in record.memories:
        if memory.step is not None and memory.time_s is not None and memory.peak_bytes:
            yield "memory/peak_bytes", Point(memory.step, memory.time_s, float(memory.peak_bytes))


def _last_step(history: History) -> int:
    return max((points[-1].step for points in history.values() if points), default=0)


def _usage_points(path: Path, record: RankRecord, *, before: int) -> Iterator[tuple[str, Point]]:
    """At the last step that was recorded by then, on the attempt's own or `before` it."""
    windows = record.windows
    begun = windows[0].step - windows[0].steps if windows else before
    ends, steps = ends_s(windows), [begun, *(window.step for window in windows)]
    for time_s, figures in usage_moments(path, record.attempt):
        step = steps[bisect_right(ends, time_s)]
        for name, value in figures.items():
            yield f"usage/{name}", Point(step, time_s, value)


def _of_window(window: Window) -> Iterator[tuple[str, float]]:
    if window.loss is not None:
        yield "loss/train", window.loss
    total_s = window.step_time_s.sum
    if not window.steps or not total_s:
        return
    yield "speed/step_time_s", total_s / window.steps
    if not window.phases_s:
        return
    shares = {phase: time_s / total_s for phase, time_s in window.phases_s.items()}
    for phase, share in (shares | {OTHER: max(0.0, 1 - math.fsum(shares.values()))}).items():
        yield f"phase_share/{phase}", share


def _rates(attempt: _Attempt) -> dict[int, float]:
    """Samples per second of all ranks, by the last step of the lowest rank's windows; of those
    that every rank covers."""
    if not attempt.is_complete:
        return {}
    reference, *others = attempt.spans
    columns = [timing.rates_over(reference, spans) for spans in (reference, *others)]
    rates: dict[int, float] = {}
    for last_step, *of_ranks in zip(reference.last_steps, *columns, strict=True):
        known = [rate for rate in of_ranks if rate is not None]
        if len(known) == len(of_ranks):
            rates[last_step] = math.fsum(known)
    return rates
