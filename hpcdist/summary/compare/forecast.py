"""A forecast for more GPUs from the runs that were measured, or the reason why there is none.

One law with two terms is fitted to the mean step time of each size:

    strong scaling    t(N) = computing / N + communication * (M - 1) / M
    weak scaling      t(N) = computing + communication * (M - 1) / M

(M - 1) / M is the share of the gradients that each member of a ring sends. M is the number of nodes
where runs were on several, as the network between them is the slower one, and else N, the number of
GPUs. With strong scaling on one node this is Amdahl's law: what is fixed is in the second term.
Neither term is below zero.

The fit is by least squares of relative errors, each size counting alike. Whether the law holds
shows in how well it fits the sizes, not in how often one was repeated: so t of the interval has the
degrees of freedom of the sizes, less two. Where another law holds, as with communication that grows
with each GPU, the fit is poor and the interval wide; it knows nothing of what begins beyond the
largest size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hpcdist.base.statistics import CONFIDENCE, Interval, Measure, lower_median, mean, quantile
from hpcdist.summary.compare.sizes import by_size, measured_rate, num_gpus
from hpcdist.summary.values import Forecast, ForecastSize, Group, RunFigures, Scaling

FEWEST_SIZES = 3
_FARTHEST = 4
"""Times the largest size that was measured."""
_LEAST_ERROR = 0.002
"""Relative: no runs are more alike than this but by chance."""
_WIDEST = 2.0
"""An interval whose upper end is more than so many times its lower one says nothing."""
_LARGEST_EXPONENT = 300.0  # exp of more is no number


class Scale(NamedTuple):
    """The size of a run."""

    gpus: int
    nodes: int


class Law(NamedTuple):
    """A law of how step times depend on the size; weights are in seconds."""

    computing_s: float
    communication_s: float
    is_strong: bool
    is_over_nodes: bool
    variance: float
    """Of relative errors, of the mean of one size."""
    freedom: int
    covariance: tuple[float, float, float]
    """Of the two weights, for errors with a variance of 1: of the first, of both, of the second."""

    def terms_s(self, scale: Scale) -> dict[str, float]:
        """Return what a step consists of."""
        computing, communication = _terms(
            scale, is_strong=self.is_strong, is_over_nodes=self.is_over_nodes
        )
        return {
            "computing": self.computing_s * computing,
            "communication": self.communication_s * communication,
        }

    def time_s(self, scale: Scale) -> float:
        """Return the seconds per step."""
        return sum(self.terms_s(scale).values())

    def interval_s(
        self, scale: Scale, *, least_variance: float, baseline_variance: float
    ) -> Interval:
        """Return the 95 % interval of the step time of a run to come.

        `least_variance`, of relative errors, is what runs have whatever the fit says;
        `baseline_variance`, as a multiple of that, belongs to what the time is compared with.
        """
        x, y = _terms(scale, is_strong=self.is_strong, is_over_nodes=self.is_over_nodes)
        first, both, second = self.covariance
        time_s = self.time_s(scale)
        of_fit = max(0.0, x * x * first + 2 * x * y * both + y * y * second) / time_s**2
        variance = max(self.variance, least_variance) * (of_fit + 1 + baseline_variance)
        half = min(_LARGEST_EXPONENT, quantile(CONFIDENCE, self.freedom) * math.sqrt(variance))
        return Interval(low=time_s * math.exp(-half), high=time_s * math.exp(half))


def fit_law(times_s: Mapping[Scale, float], *, is_strong: bool) -> Law | None:
    """Fit the law to the mean step time of each size; None where it would compute in no time, or
    sizes are too few to tell the terms apart."""
    is_over_nodes = any(scale.nodes > 1 for scale in times_s)
    rows = [
        tuple(
            term / time_s
            for term in _terms(scale, is_strong=is_strong, is_over_nodes=is_over_nodes)
        )
        for scale, time_s in times_s.items()
    ]
    xx, yy = sum(x * x for x, _ in rows), sum(y * y for _, y in rows)
    xy, sum_x, sum_y = sum(x * y for x, y in rows), sum(x for x, _ in rows), sum(y for _, y in rows)
    determinant = xx * yy - xy * xy
    if determinant <= 1e-12 * xx * yy:
        return None
    computing_s = (sum_x * yy - sum_y * xy) / determinant
    communication_s = (sum_y * xx - sum_x * xy) / determinant
    covariance = (yy / determinant, -xy / determinant, xx / determinant)
    if communication_s < 0:
        computing_s, communication_s, covariance = sum_x / xx, 0.0, (1 / xx, 0.0, 0.0)
    if computing_s <= 0:
        return None
    squares = sum((computing_s * x + communication_s * y - 1) ** 2 for x, y in rows)
    freedom = max(1, len(rows) - 2)
    variance = squares / freedom
    return Law(
        computing_s, communication_s, is_strong, is_over_nodes, variance, freedom, covariance
    )


def error_without_each(times_s: Mapping[Scale, float], *, is_strong: bool) -> float | None:
    """Return by how much the law misses a size that it was fitted without: root mean square,
    relative; None where too few sizes are left."""
    misses = []
    for scale, time_s in times_s.items():
        rest = {other: other_s for other, other_s in times_s.items() if other != scale}
        law = fit_law(rest, is_strong=is_strong)
        if law is None:
            return None
        misses.append(law.time_s(scale) / time_s - 1)
    return math.sqrt(mean(miss * miss for miss in misses))


def forecasts_by_run(
    runs: Mapping[str, RunFigures], groups: Sequence[Group]
) -> dict[str, Forecast]:
    """Return the forecast of each group, for each of its runs of the largest size."""
    forecasts: dict[str, Forecast] = {}
    for group in groups:
        if group.baseline:
            members = [runs[run] for run in dict.fromkeys((*group.baseline, *group.runs))]
            *_, largest = by_size(members).values()
            forecast = make_forecast(members, group.scaling)
            forecasts.update(dict.fromkeys((run.run for run in largest), forecast))
    return forecasts


def make_forecast(runs: Sequence[RunFigures], scaling: Scaling | None) -> Forecast:
    """Forecast the next powers of two, up to four times the largest size.

    `runs` are done, differ in size, and scale in one way; those of the smallest size are what the
    speed-up is against.
    """
    reason = _why_none(runs, scaling)
    if reason is None:
        ground = _make_ground(runs, is_strong=scaling == "strong")
        if ground is not None:
            return _from_law(ground)
        reason = "no law of computing and communication fits what was measured"
    return Forecast(refused_because=reason)


class _Ground(NamedTuple):
    """The data that a forecast is based on."""

    times_s: dict[Scale, float]
    law: Law
    least_variance: float
    batch: float
    """Samples of a step: in all, or with weak scaling of each GPU."""
    baseline: Measure
    """Samples/s of the smallest size."""
    num_baseline: int
    smallest: int
    """GPUs."""
    largest: RunFigures
    best_efficiency: float


def _terms(scale: Scale, *, is_strong: bool, is_over_nodes: bool) -> tuple[float, float]:
    """The factors of the two weights of the law."""
    members = scale.nodes if is_over_nodes else scale.gpus
    return 1 / scale.gpus if is_strong else 1.0, (members - 1) / members


def _why_none(runs: Sequence[RunFigures], scaling: Scaling | None) -> str | None:
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


def _share_cpus(runs: Sequence[RunFigures]) -> bool:
    """More ranks have no more CPUs for each; on GPUs they are not counted."""
    shares = [run.num_cpus / run.world_size for run in runs if run.num_cpus is not None]
    return bool(shares) and max(shares) > min(shares)


def _make_ground(runs: Sequence[RunFigures], *, is_strong: bool) -> _Ground | None:
    """None where the law does not fit."""
    sizes = by_size(runs)
    shares = [1 if is_strong else num_gpus(run) for run in runs]
    batch = mean(
        (run.samples_per_step or 1.0) / share for run, share in zip(runs, shares, strict=True)
    )
    times_s = {
        Scale(gpus, nodes): batch
        * (1 if is_strong else gpus)
        * mean(1 / measured_rate([run]).mean for run in theirs)
        for (gpus, nodes), theirs in sizes.items()
    }
    law = fit_law(times_s, is_strong=is_strong)
    if law is None:
        return None
    smallest, *_, largest = sizes.values()
    baseline = measured_rate(smallest)
    efficiencies = [
        measured_rate(theirs).mean / baseline.mean * num_gpus(smallest[0]) / gpus
        for (gpus, _), theirs in sizes.items()
    ]
    return _Ground(
        times_s=times_s,
        law=law,
        least_variance=max(_LEAST_ERROR**2, _variance_within(runs)),
        batch=batch,
        baseline=baseline,
        num_baseline=len(smallest),
        smallest=num_gpus(smallest[0]),
        largest=largest[0],
        best_efficiency=max(efficiencies),
    )


def _variance_within(runs: Sequence[RunFigures]) -> float:
    """The relative variance of a run's mean by its windows: a fit cannot be surer than its
    points."""
    rates = [measured_rate([run]) for run in runs]
    return lower_median(
        rate.sd**2 / rate.count / rate.mean**2 if rate.sd and rate.count else 0.0 for rate in rates
    )


def _from_law(ground: _Ground) -> Forecast:
    sizes = [_at(ground, scale) for scale in _scales(ground)]
    useful = [size for size in sizes if _says_something(size)]
    if not useful:
        return Forecast(refused_because=_why_unsure(sizes))
    left_out = [size for size in sizes if size not in useful]
    return Forecast(
        sizes=useful,
        terms_s=ground.law.terms_s(Scale(num_gpus(ground.largest), ground.largest.nodes)),
        error=error_without_each(ground.times_s, is_strong=ground.law.is_strong),
        notes=list(_notes(ground, left_out)),
    )


def _scales(ground: _Ground) -> Iterator[Scale]:
    """As many GPUs in a node as the largest run has; all in one, where no run was on several."""
    most = num_gpus(ground.largest)
    gpus = 1
    while gpus <= most:
        gpus *= 2
    while gpus <= _FARTHEST * most and not (ground.law.is_strong and gpus > ground.batch):
        is_on_several = ground.largest.nodes > 1
        yield Scale(gpus, -(-gpus // ground.largest.gpus_per_node) if is_on_several else 1)
        gpus *= 2


def _at(ground: _Ground, scale: Scale) -> ForecastSize:
    """The upper end is not above the ideal, or what was measured of more than that."""
    samples = ground.batch * (1 if ground.law.is_strong else scale.gpus)
    times = ground.law.interval_s(
        scale, least_variance=ground.least_variance, baseline_variance=1 / ground.num_baseline
    )
    ideal = scale.gpus / ground.smallest
    most = ideal * max(1.0, ground.best_efficiency)

    def speedup(time_s: float) -> float:
        return min(most, samples / time_s / ground.baseline.mean)

    times_as_fast = Measure(
        mean=speedup(ground.law.time_s(scale)),
        interval=Interval(low=speedup(times.high), high=speedup(times.low)),
        over="runs",
    )
    return ForecastSize(
        gpus=scale.gpus,
        nodes=scale.nodes,
        speedup=times_as_fast,
        efficiency=times_as_fast.times(1 / ideal),
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


def _notes(ground: _Ground, left_out: Sequence[ForecastSize]) -> Iterator[str]:
    if ground.largest.nodes == 1:
        yield "it is as if all GPUs were in one node, as no run was on several"
    if left_out:
        yield f"for {left_out[0].gpus} and more what was measured says too little"
