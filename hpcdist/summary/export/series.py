"""What a run recorded, as series of points against steps and the time of day.

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hpcdist.agent.usage import Spread, UsageWindow
from hpcdist.base.errors import UserError
from hpcdist.base.secrets import looks_secret
from hpcdist.base.statistics import mean
from hpcdist.runs.run import Run
from hpcdist.runs.spec import RunSpec
from hpcdist.summary.figures import timing
from hpcdist.summary.figures.timing import OTHER, Spans
from hpcdist.summary.read.collect import read_node, read_rank
from hpcdist.summary.read.records import NodeRecord, RankRecord, Window
from hpcdist.summary.report.again import HIDDEN, starred_args
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


def whole_history(run: RunSummary, created_s: float) -> History:
    """What a run recorded, what its benchmark measured, and its figures as a whole, as series of
    one point each; `created_s` is the Unix time where none was recorded."""
    history = read_history(Path(run.path)) if run.path else {}
    last_s = max((points[-1].time_s for points in history.values() if points), default=created_s)
    for benchmark, result in run.benchmark_results:
        for name, step, value in benchmark.points(result):
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


Setting = str | float | bool
"""bool and int are among them."""

_LEFT_OUT = frozenset({"name", "description"})


def settings_of(spec: RunSpec) -> dict[str, Setting]:
    """The job of a spec.json, by dotted key; what is not set is left out, secrets are starred out,
    and lists are JSON."""
    flat = dict(_flat(spec.job))
    if (torch := spec.versions.get("torch")) is not None:
        flat["torch"] = torch
    if spec.scheduler is not None:
        flat["scheduler"] = spec.scheduler
    return {key: value for key, value in flat.items() if key not in _LEFT_OUT}


def created_s(spec: RunSpec) -> float:
    """Unix time at which the run was submitted; 0 where that is not known."""
    created = spec.created_s
    return created if created is not None and 0 < created < 1e12 else 0.0


def _flat(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Setting]]:
    for name, value in section.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{key}.")
        elif isinstance(value, list):
            texts = starred_args(value) if _is_of_texts(value) else value
            yield key, json.dumps(texts, ensure_ascii=False, default=str)
        elif isinstance(value, str):
            yield key, HIDDEN if looks_secret(key, value) else value
        elif isinstance(value, (bool, int, float)):
            yield key, value


def _is_of_texts(values: list[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


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


def need_package(extra: str) -> None:
    """Raise UserError where the package of an extra, which has its name, is not installed."""
    if importlib.util.find_spec(extra) is None:
        raise UserError(
            f"--{extra} needs the package {extra}, which is not installed here",
            hint=f"install it: pip install 'hpcdist[{extra}]'",
        )
