"""The records of a run as series of points against steps and the time of day.

Names are what both TensorBoard and MLflow take, grouped by what stands before the slash, with
units. Points are those of the lowest rank but `speed/samples_per_s`, which is of all ranks, and
`usage/*`, which are of all GPUs, or all nodes: at the windows of the lowest node, by its clock. Of
each other node the window counts that is nearest to it, by the time since its ranks began, as
clocks of nodes may differ by minutes.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from hpcdist.agent.usage import UsageWindow
from hpcdist.base.errors import UserError
from hpcdist.base.secrets import Stars
from hpcdist.base.statistics import mean
from hpcdist.runs.run import Run
from hpcdist.runs.spec import RunSpec
from hpcdist.summary.figures import timing
from hpcdist.summary.figures.run import flatten
from hpcdist.summary.figures.timing import OTHER
from hpcdist.summary.read.collect import read_node, read_rank
from hpcdist.summary.read.records import Window
from hpcdist.summary.read.timeline import Attempt, read_timeline
from hpcdist.summary.values import RunSummary

_LARGEST = 3e38
"""Largest 32-bit number: TensorBoard's points are such."""
_LAST_STEP = 2**62


class Point(NamedTuple):
    """A value after so many steps."""

    step: int
    time_s: float
    """Unix time, by the clock of the lowest rank."""
    value: float


History = dict[str, list[Point]]
"""Points by the name of their series, in their order."""


def read_history(path: Path) -> History:
    history: History = defaultdict(list)
    reached = 0
    for attempt in read_timeline(path):
        for name, point in itertools.chain(_points(attempt), _usage_points(path, attempt, reached)):
            if abs(point.value) < _LARGEST and point.step < _LAST_STEP:  # which NaN is not
                history[name].append(point)
        reached = max((points[-1].step for points in history.values()), default=0)
    return dict(history)


def final_figures(run: RunSummary) -> dict[str, float]:
    """Return the figures of a whole run, by the names of series that have one point."""
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
    numbers = {name: float(value) for name, value in figures.items() if value is not None}
    return {name: value for name, value in numbers.items() if abs(value) < _LARGEST}


Setting = str | float | bool
"""bool and int are among them."""

_LEFT_OUT = frozenset({"name", "description"})


class Export(NamedTuple):
    """One run, as trackers take it."""

    run: RunSummary
    spec: RunSpec
    settings: dict[str, Setting]
    created_s: float
    """Unix time at which it was submitted; 0 where that is not known."""

    def read_history(self) -> History:
        """Read what the run recorded, and what it came to, as series of one point each."""
        run = self.run
        history = read_history(Path(run.path)) if run.path else {}
        ends_s = [points[-1].time_s for points in history.values() if points]
        last_s = max(ends_s, default=self.created_s)
        for benchmark, result in run.benchmark_results:
            for name, step, value in benchmark.points(result):
                if value < _LARGEST and step < _LAST_STEP:
                    history.setdefault(name, []).append(Point(step, last_s, value))
        for name, value in final_figures(run).items():
            history[name] = [Point(run.steps or 0, last_s, value)]
        return history


def make_export(run: RunSummary) -> Export:
    """Read the settings of a run."""
    spec = (Run(Path(run.path)).read_spec() if run.path else None) or RunSpec()
    created_s = spec.created_s or 0.0
    return Export(run, spec, settings_of(spec), created_s if 0 < created_s < 1e12 else 0.0)


def _points(attempt: Attempt) -> Iterator[tuple[str, Point]]:
    rates = _rates(attempt)
    for window, end_s in attempt.windows():
        for name, value in _of_window(window):
            yield name, Point(window.step, end_s, value)
        if (rate := rates.get(window.step)) is not None:
            yield "speed/samples_per_s", Point(window.step, end_s, rate)
    for step, time_s, evaluation in attempt.counting(attempt.record.evaluations):
        if evaluation.loss is not None:
            yield "loss/test", Point(step, time_s, evaluation.loss)
        if evaluation.accuracy is not None:
            yield "accuracy/test", Point(step, time_s, evaluation.accuracy)
    for step, time_s, memory in attempt.counting(attempt.record.memories):
        if memory.peak_bytes:
            yield "memory/peak_bytes", Point(step, time_s, float(memory.peak_bytes))


def _of_window(window: Window) -> Iterator[tuple[str, float]]:
    if window.mean_loss is not None:
        yield "loss/train", window.mean_loss
    if window.learning_rate is not None:
        yield "learning_rate", window.learning_rate
    total_s = window.step_time_s.sum
    if not window.steps or not total_s:
        return
    yield "speed/step_time_s", total_s / window.steps
    if not window.phases_s:
        return
    shares = {phase: time_s / total_s for phase, time_s in window.phases_s.items()}
    for phase, share in (shares | {OTHER: max(0.0, 1 - math.fsum(shares.values()))}).items():
        yield f"phase_share/{phase}", share


def _rates(attempt: Attempt) -> dict[int, float]:
    """Return the samples per second of all ranks, by the last step of the lowest rank's windows;
    of those that every rank covers. The rate of a part of the ranks is not that of the run."""
    number, starts = attempt.record.attempt, attempt.record.starts
    records = (read_rank(file, rank=rank, attempt=number) for rank, file in attempt.other_files)
    spans = []
    for record in itertools.chain([attempt.record], records):
        timed = [window for window in record.windows if window.steps and window.wall_s]
        spans.append(timing.to_spans(timed))
    sizes = [start.world_size for start in starts if start.world_size]
    if not sizes or sum(map(bool, spans)) < sizes[-1]:
        return {}
    reference, *_ = spans
    columns = [timing.rates_over(reference, of_rank) for of_rank in spans]
    return {
        last_step: math.fsum(rate or 0.0 for rate in rates)
        for last_step, *rates in zip(reference.last_steps, *columns, strict=True)
        if None not in rates
    }


def _usage_points(path: Path, attempt: Attempt, reached: int) -> Iterator[tuple[str, Point]]:
    """At the last step that was recorded by then, in this attempt or, `reached`, before it."""
    begun = reached if attempt.first_step is None else attempt.first_step
    steps = [begun, *(window.step for window in attempt.record.windows)]
    for time_s, figures in _usage_moments(path, attempt.record.attempt):
        step = steps[bisect_right(attempt.ends_s, time_s)]
        if step <= attempt.last_step:
            for name, value in figures.items():
                yield f"usage/{name}", Point(step, time_s, value)


def settings_of(spec: RunSpec) -> dict[str, Setting]:
    """Return the job of a spec.json by dotted key; what is not set is left out, secrets are starred
    out, and lists are JSON."""
    others = {"torch": spec.versions.get("torch"), "scheduler": spec.scheduler}
    settings: dict[str, Setting] = {}
    for key, value in (flatten(spec.job) | others).items():
        if key in _LEFT_OUT:
            continue
        if isinstance(value, list):
            items = Stars().value(value, key)
            settings[key] = json.dumps(items, ensure_ascii=False, default=str)
        elif isinstance(value, (str, bool, int, float)):
            settings[key] = Stars().value(value, key)
    return settings


def _usage_moments(path: Path, attempt: int) -> Iterator[tuple[float, dict[str, float]]]:
    """Yield what an attempt used, window by window, behind the Unix time of its end."""
    nodes = []
    for node, of_attempt, file in Run(path).usage_files():
        record = read_node(file, node=node, attempt=attempt) if of_attempt == attempt else None
        if record and record.windows:
            windows = sorted(record.windows, key=_middle_s)
            begin_s = record.begins[0].begin_s if record.begins else windows[0].time_s
            nodes.append((windows, [_middle_s(window) - begin_s for window in windows]))
    if not nodes:
        return
    (lowest, lowest_since_s), *others = nodes
    for window, at_s in zip(lowest, lowest_since_s, strict=True):
        if figures := _used([window, *(_nearest(*node, at_s) for node in others)]):
            yield window.time_s, figures


def _middle_s(window: UsageWindow) -> float:
    return window.time_s - window.wall_s / 2


def _nearest(windows: list[UsageWindow], since_s: list[float], at_s: float) -> UsageWindow:
    after = bisect_left(since_s, at_s)
    near = range(max(0, after - 1), min(after + 1, len(windows)))
    return windows[min(near, key=lambda place: abs(since_s[place] - at_s))]


def _used(windows: Sequence[UsageWindow]) -> dict[str, float]:
    """Put all GPUs, or nodes, of one moment together, by the keys of the summary's `usage`."""
    gpus = [gpu for window in windows for gpu in window.gpus]
    cpus = [window.cpus_busy.mean for window in windows if window.cpus_busy]
    memory = [window.memory_bytes.max for window in windows if window.memory_bytes]
    values: dict[str, tuple[Callable[[list[float]], float], list[float]]] = {
        "gpu_utilization": (mean, [gpu.utilization.mean for gpu in gpus if gpu.utilization]),
        "gpu_power_w": (mean, [gpu.power_w.mean for gpu in gpus if gpu.power_w]),
        "max_gpu_memory_bytes": (max, [gpu.memory_bytes.max for gpu in gpus if gpu.memory_bytes]),
        # Of a part of the nodes the sum is not that of the run.
        "cpus_busy": (math.fsum, cpus if len(cpus) == len(windows) else []),
        "max_memory_bytes": (max, memory),
    }
    return {name: join(numbers) for name, (join, numbers) in values.items() if numbers}


def need_package(extra: str) -> None:
    """Raise UserError where the package of an extra, which has its name, is not installed."""
    if importlib.util.find_spec(extra) is None:
        raise UserError(
            f"--{extra} needs the package {extra}, which is not installed here",
            hint=f"install it: pip install 'hpcdist[{extra}]'",
        )
