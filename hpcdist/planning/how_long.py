"""The duration of a job, from earlier runs of it: pure.

A run took its startup, and the rest for its steps: what it did between them, such as evaluations,
is proportional to them. For another size the law of the forecast gives the speed. The interval is
that of one more run: t x sd x sqrt(1 + 1/n).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from hpcdist.base.statistics import CONFIDENCE, Interval, Measure, mean, measure, quantile
from hpcdist.base.text import number_of
from hpcdist.summary.compare.cells import measured_rate
from hpcdist.summary.compare.forecast import make_forecast
from hpcdist.summary.compare.groups import NOT_COMPARED
from hpcdist.summary.figures.run import MeasuredRun
from hpcdist.summary.values import RanWith, RunFigures, Size

_PLACE = ("script", "module", "program", "data.root", *RanWith.__struct_fields__)
_LENGTH = ("train.epochs", "train.max_steps", "checkpoint")
_FREE = tuple(f"{key}." for key in (*NOT_COMPARED, *_LENGTH, *_PLACE))
"""Keys, and sections, that may differ between runs from which one time is computed."""
_WITHOUT_INTERVAL = 1.25
"""The longest time that a limit allows for, as a multiple of the mean."""
_MARGIN = 1.1


class Duration(Struct, frozen=True, kw_only=True):
    """The duration of a job."""

    time_s: Measure | None = None
    """With the interval of one more run; None: not known."""
    startup_s: float = 0.0
    source: str
    """Its source, or why it is not known."""
    runs: list[str] = []


def is_like(run: MeasuredRun, asked: Mapping[str, Any]) -> bool:
    """Return whether a run is done and of these settings, but for its size and length."""

    def text(values: Mapping[str, Any], key: str) -> str:  # JSON has no tuples, and no unset keys
        value = values.get(key)
        return str([*value] if isinstance(value, tuple) else value or "")

    if run.figures.job != asked["name"] or run.figures.state != "done" or run.figures.cost is None:
        return False
    keys = [key for key in {**run.conditions, **asked} if not f"{key}.".startswith(_FREE)]
    return all(text(run.conditions, key) == text(asked, key) for key in keys)


def find_duration(
    runs: Sequence[MeasuredRun], asked: Mapping[str, Any], wanted: Size, steps: int | None
) -> Duration:
    """Return the time of a job with these conditions, by dotted key, and of this size, from those
    of the runs that are like it; `steps`: None for as many as they did."""
    alike = [run.figures for run in runs if is_like(run, asked)]
    same = [run for run in alike if run.size == wanted]
    used = same or [run for run in alike if run.rate and run.steps]
    if not used or (steps is None and not same):
        return Duration(source="no run of this job with these settings is done")
    startup_s = mean(run.startup_s or 0.0 for run in used)
    source = f"from {number_of(len(same), 'run')} of this size"
    if same:
        shares = [steps / run.steps if steps and run.steps else 1.0 for run in same]
        pairs = zip(same, shares, strict=True)
        time_s = measure([(run.startup_s or 0.0) + _working_s(run) * one for run, one in pairs])
        if time_s.sd is not None:
            t = quantile(CONFIDENCE, len(same) - 1)
            half_s = t * time_s.sd * math.sqrt(1 + 1 / len(same))
            ends = Interval(low=max(0.0, time_s.mean - half_s), high=time_s.mean + half_s)
            time_s = replace(time_s, interval=ends)
    else:
        forecast = make_forecast(used, "weak", asked=wanted)
        if not forecast.sizes:
            return Duration(source=f"no run has this size, and {forecast.refused_because}")
        source = f"by the law of the forecast, from {number_of(len(used), 'run')} of other sizes"
        # At the speed of the smallest size, with what the runs did between their steps.
        smallest = measured_rate([run for run in used if run.size == min(own.size for own in used)])
        per_gpu = mean((run.samples_per_step or 0.0) / run.num_gpus for run in used)
        between = mean(_working_s(run) / (_samples(run) / run.rate) for run in used)
        base_s = (steps or 0) * per_gpu * wanted.gpus / smallest.mean * between
        speedup = forecast.sizes[0].speedup
        ends = speedup.interval or Interval(low=speedup.mean, high=speedup.mean)
        low_s, mean_s, high_s = (
            startup_s + base_s / x for x in (ends.high, speedup.mean, ends.low)
        )
        time_s = Measure(mean=mean_s, interval=Interval(low=low_s, high=high_s))
    names = [run.run for run in used]
    return Duration(time_s=time_s, startup_s=startup_s, source=source, runs=names)


def _working_s(run: RunFigures) -> float:
    """Return the time after the startup, without what restarts lost."""
    held_s = run.cost.held_s if run.cost else 0.0
    return max(0.0, held_s - (run.startup_s or 0.0) - (run.lost_time_s or 0.0))


def _samples(run: RunFigures) -> float:
    return (run.samples_per_step or 1.0) * (run.steps or 1)


# The time limit.


def suggest_limit_min(time_s: Measure, *, warning_s: float) -> float:
    """Return a round time limit, in minutes, that is enough: the warning comes before its end."""
    longest_s = time_s.interval.high if time_s.interval else time_s.mean * _WITHOUT_INTERVAL
    minutes = (longest_s * _MARGIN + warning_s) / 60
    step = 30 if minutes >= 240 else 5 if minutes >= 10 else 1
    return step * math.ceil(minutes / step)


def count_requeues(duration: Duration, *, limit_min: float, warning_s: float) -> int | None:
    """Return how often its time limit ends a job before it is done, which then goes on in another;
    None where one life leaves no time to work, or the time is not known."""
    each_s = limit_min * 60 - warning_s - duration.startup_s
    if duration.time_s is None or each_s <= 0:
        return None
    return max(0, math.ceil((duration.time_s.mean - duration.startup_s) / each_s) - 1)
