"""What more GPUs would bring, by the runs that were measured; or why that cannot be said: pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from hpcdist.base.statistics import Interval, Measure, lower_median, mean
from hpcdist.summary.compare.sizes import by_size, measured_rate, num_gpus
from hpcdist.summary.compare.step_fit import (
    Fit,
    Scale,
    Timed,
    error_without_each,
    interval_at,
    plausible_fits,
)
from hpcdist.summary.values import Forecast, ForecastSize, Group, RunSummary, Scaling

FEWEST_SIZES = 3
_FARTHEST = 4
"""Times the largest size that was measured."""
_LEAST_ERROR = 0.002
"""Relative: no runs are more alike than this but by chance."""
_WIDEST = 2.0
"""An interval whose upper end is more than so many times its lower one says nothing."""


def with_forecasts(runs: Sequence[RunSummary], groups: Sequence[Group]) -> list[RunSummary]:
    """The runs, those of the largest size of each group with its forecast."""
    by_id = {run.run: run for run in runs}
    found: dict[str, Forecast] = {}
    for group in groups:
        if group.baseline:
            members = [by_id[run] for run in dict.fromkeys((*group.baseline, *group.runs))]
            *_, largest = by_size(members).values()
            found.update(dict.fromkeys((run.run for run in largest), make(members, group.scaling)))
    return [
        msgspec.structs.replace(run, forecast=found[run.run]) if run.run in found else run
        for run in runs
    ]


def make(runs: Sequence[RunSummary], scaling: Scaling | None) -> Forecast:
    """For the next powers of two, up to four times the largest size.

    `runs` are done, differ in size, and scale in one way; those of the smallest size are what the
    speed-up is against.
    """
    reason = _why_none(runs, scaling)
    if reason is None:
        ground = _make_ground(runs, is_strong=scaling == "strong")
        if ground.fits:
            return _from_fits(ground)
        reason = "no law of computing and communication fits what was measured"
    return Forecast(refused_because=reason)


class _Ground(NamedTuple):
    """What a forecast stands on."""

    timed: list[Timed]
    fits: list[Fit]
    least_variance: float
    is_strong: bool
    batch: float
    """Samples of a step: in all, or with weak scaling of each GPU."""
    baseline_rate: float
    num_baseline: int
    smallest: int
    """GPUs."""
    largest: RunSummary
    best_efficiency: float


def _why_none(runs: Sequence[RunSummary], scaling: Scaling | None) -> str | None:
    sizes = by_size(runs)
    if len(sizes) < FEWEST_SIZES:
        return f"it takes runs of {FEWEST_SIZES} sizes, and there are {len(sizes)}"
    if scaling is None:
        return "the samples of a step are neither the same in all nor the same for each GPU"
    if _share_cpus(runs):
        return "the ranks share CPUs, so that more ranks are no more hardware"
    on_several = [nodes for _, nodes in sizes if nodes > 1]
    if len(on_several) == 1:
        return (
            "only one size is on several nodes, which says too little of the network between "
            "them: submit it with another --nodes"
        )
    return None


def _share_cpus(runs: Sequence[RunSummary]) -> bool:
    """More ranks have no more CPUs for each; on GPUs they are not counted."""
    shares = [run.num_cpus / run.world_size for run in runs if run.num_cpus is not None]
    return bool(shares) and max(shares) > min(shares)


def _make_ground(runs: Sequence[RunSummary], *, is_strong: bool) -> _Ground:
    sizes = list(by_size(runs).values())
    smallest, largest = sizes[0], sizes[-1][0]
    whole = [run.samples_per_step or 1.0 for run in runs]
    shares = [1 if is_strong else num_gpus(run) for run in runs]
    batch = mean(samples / share for samples, share in zip(whole, shares, strict=True))
    timed = [
        Timed(Scale(num_gpus(run), run.nodes), batch * share / _rate(run))
        for run, share in zip(runs, shares, strict=True)
    ]
    least_variance = max(_LEAST_ERROR**2, _variance_within(runs))
    baseline = measured_rate(smallest).mean
    return _Ground(
        timed=timed,
        fits=plausible_fits(timed, is_strong=is_strong, least_variance=least_variance),
        least_variance=least_variance,
        is_strong=is_strong,
        batch=batch,
        baseline_rate=baseline,
        num_baseline=len(smallest),
        smallest=num_gpus(smallest[0]),
        largest=largest,
        best_efficiency=max(
            _rate(run) / baseline * num_gpus(smallest[0]) / num_gpus(run) for run in runs
        ),
    )


def _variance_within(runs: Sequence[RunSummary]) -> float:
    """Of a run's mean, relative, as its windows have it: a fit cannot be surer than its points."""
    rates = [measured_rate([run]) for run in runs]
    return lower_median(
        rate.sd**2 / rate.count / rate.mean**2 if rate.sd and rate.count else 0.0 for rate in rates
    )


def _rate(run: RunSummary) -> float:
    assert run.samples_per_s is not None
    return run.samples_per_s.mean


def _from_fits(ground: _Ground) -> Forecast:
    sizes = [_at(ground, scale) for scale in _scales(ground)]
    told = [size for size in sizes if _says_something(size)]
    if not told:
        return Forecast(refused_because=_why_unsure(sizes))
    best = ground.fits[0]
    largest = Scale(num_gpus(ground.largest), ground.largest.nodes)
    return Forecast(
        sizes=told,
        terms_s=best.terms_s(largest),
        error=error_without_each(ground.timed, best.law),
        notes=list(_notes(ground, left_out=[size for size in sizes if size not in told])),
    )


def _scales(ground: _Ground) -> Iterator[Scale]:
    """As many GPUs in a node as the largest run has; all in one, where no run was on several."""
    most = num_gpus(ground.largest)
    gpus = 1
    while gpus <= most:
        gpus *= 2
    while gpus <= _FARTHEST * most and not (ground.is_strong and gpus > ground.batch):
        is_on_several = ground.largest.nodes > 1
        yield Scale(gpus, -(-gpus // ground.largest.gpus_per_node) if is_on_several else 1)
        gpus *= 2


def _at(ground: _Ground, scale: Scale) -> ForecastSize:
    """The upper end is not above the ideal, or what was measured of more than that."""
    samples = ground.batch * (1 if ground.is_strong else scale.gpus)
    times = interval_at(
        ground.fits,
        scale,
        least_variance=ground.least_variance,
        other_variance=1 / ground.num_baseline,
    )
    ideal = scale.gpus / ground.smallest
    most = ideal * max(1.0, ground.best_efficiency)

    def speedup(time_s: float) -> float:
        return min(most, samples / time_s / ground.baseline_rate)

    found = Measure(
        mean=speedup(ground.fits[0].time_s(scale)),
        interval=Interval(low=speedup(times.high), high=speedup(times.low)),
        over="runs",
    )
    return ForecastSize(
        gpus=scale.gpus, nodes=scale.nodes, speedup=found, efficiency=found.times(1 / ideal)
    )


def _says_something(size: ForecastSize) -> bool:
    interval = size.speedup.interval
    return interval is not None and interval.high <= _WIDEST * interval.low


def _why_unsure(sizes: Sequence[ForecastSize]) -> str:
    if not sizes:
        return "the samples of a step are too few for more GPUs"
    size = sizes[0]
    assert size.speedup.interval is not None
    low, high = size.speedup.interval.low, size.speedup.interval.high
    return (
        f"what was measured allows {low:.2g} to {high:.2g} times on {size.gpus} GPUs: more sizes, "
        "or repeats (--repeat 3), would say more"
    )


def _notes(ground: _Ground, *, left_out: Sequence[ForecastSize]) -> Iterator[str]:
    if ground.largest.nodes == 1:
        yield "it is as if all GPUs were in one node, as no run was on several"
    if left_out:
        yield f"for {left_out[0].gpus} and more what was measured says too little"
