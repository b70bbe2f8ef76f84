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

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from hpcdist.base.statistics import CONFIDENCE, Interval, Measure, lower_median, mean, quantile
from hpcdist.summary.compare.sizes import Size, by_size, measured_rate, num_gpus
from hpcdist.summary.values import Forecast, ForecastSize, Group, RunFigures, Scaling

FEWEST_SIZES = 3
_FARTHEST = 4
"""Times the largest size that was measured."""
_LEAST_ERROR = 0.002
"""Relative: no runs are more alike than this but by chance."""
_WIDEST = 2.0
"""An interval whose upper end is more than so many times its lower one says nothing."""
_LARGEST_EXPONENT = 300.0  # exp of more is no number


class Law(NamedTuple):
    """A law of how step times depend on the size; weights are in seconds."""

    computing_s: float
    communication_s: float
    is_strong: bool
    is_over_nodes: bool
    variance: float
    """Variance of the relative error of one size's mean."""
    freedom: int
    covariance: tuple[float, float, float]
    """Covariance of the two weights: the first, both, the second; for errors with variance 1."""

    def terms_s(self, size: Size) -> dict[str, float]:
        computing, communication = _terms(size, self.is_strong, self.is_over_nodes)
        return {
            "computing": self.computing_s * computing,
            "communication": self.communication_s * communication,
        }

    def time_s(self, size: Size) -> float:
        return sum(self.terms_s(size).values())

    def interval_s(
        self, size: Size, *, least_variance: float, baseline_variance: float
    ) -> Interval:
        """Return the 95 % interval of the step time of a run to come.

        `least_variance`, of relative errors, is what runs have whatever the fit says;
        `baseline_variance`, as a multiple of that, belongs to what the time is compared with.
        """
        x, y = _terms(size, self.is_strong, self.is_over_nodes)
        first, both, second = self.covariance
        time_s = self.time_s(size)
        of_fit = max(0.0, x * x * first + 2 * x * y * both + y * y * second) / time_s**2
        variance = max(self.variance, least_variance) * (of_fit + 1 + baseline_variance)
        half = min(_LARGEST_EXPONENT, quantile(CONFIDENCE, self.freedom) * math.sqrt(variance))
        return Interval(low=time_s * math.exp(-half), high=time_s * math.exp(half))


def fit_law(times_s: Mapping[Size, float], *, is_strong: bool) -> Law | None:
    """Fit the law to the mean step time of each size; None where it would compute in no time, or
    sizes are too few to tell the terms apart."""
    is_over_nodes = any(size.nodes > 1 for size in times_s)
    rows = []
    for size, time_s in times_s.items():
        computing, communication = _terms(size, is_strong, is_over_nodes)
        rows.append((computing / time_s, communication / time_s))
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


def error_without_each(times_s: Mapping[Size, float], *, is_strong: bool) -> float | None:
    """Return by how much the law misses a size that it was fitted without: root mean square,
    relative; None where too few sizes are left."""
    misses = []
    for size, time_s in times_s.items():
        rest = {other: other_s for other, other_s in times_s.items() if other != size}
        law = fit_law(rest, is_strong=is_strong)
        if law is None:
            return None
        misses.append(law.time_s(size) / time_s - 1)
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
    if (reason := _why_none(runs, scaling)) is not None:
        return Forecast(refused_because=reason)
    is_strong = scaling == "strong"
    sizes = by_size(runs)
    # Samples of a step: in all, or with weak scaling of each GPU.
    batch = mean(
        (run.samples_per_step or 1.0) / (1 if is_strong else num_gpus(run)) for run in runs
    )
    times_s = {
        size: batch
        * (1 if is_strong else size.gpus)
        * mean(1 / measured_rate([run]).mean for run in theirs)
        for size, theirs in sizes.items()
    }
    law = fit_law(times_s, is_strong=is_strong)
    if law is None:
        reason = "no law of computing and communication fits what was measured"
        return Forecast(refused_because=reason)
    to_come = _forecast_sizes(sizes, law, batch)
    *_, largest = sizes
    ends = [(size, size.speedup.interval) for size in to_come]
    useful = [size for size, end in ends if end and end.high <= _WIDEST * end.low]
    if not useful:
        return Forecast(refused_because=_why_unsure(to_come))
    notes = []
    if largest.nodes == 1:
        notes.append("it assumes that all GPUs are in one node, because no run was on several")
    if left_out := [size for size in to_come if size not in useful]:
        notes.append(f"for {left_out[0].gpus} and more, the measurements say too little")
    return Forecast(
        sizes=useful,
        terms_s=law.terms_s(largest),
        error=error_without_each(times_s, is_strong=is_strong),
        notes=notes,
    )


def _terms(size: Size, is_strong: bool, is_over_nodes: bool) -> tuple[float, float]:  # noqa: FBT001
    """Return the factors of the two weights of the law."""
    members = size.nodes if is_over_nodes else size.gpus
    return 1 / size.gpus if is_strong else 1.0, (members - 1) / members


def _why_none(runs: Sequence[RunFigures], scaling: Scaling | None) -> str | None:
    sizes = by_size(runs)
    if len(sizes) < FEWEST_SIZES:
        return f"it takes runs of {FEWEST_SIZES} sizes, and there are {len(sizes)}"
    if scaling is None:
        return (
            "the number of samples per step is neither the same in all sizes nor the same "
            "for each GPU"
        )
    # More ranks have no more CPUs for each; on GPUs they are not counted.
    shares = [run.num_cpus / run.world_size for run in runs if run.num_cpus is not None]
    if shares and max(shares) > min(shares):
        return "the ranks share CPUs, so more ranks are not more hardware"
    if any(run.num_hosts is not None and run.num_hosts < run.nodes for run in runs):
        return (
            "nodes were simulated on one host, which says nothing about the network between nodes"
        )
    on_several = [nodes for _, nodes in sizes if nodes > 1]
    if len(on_several) == 1:
        return (
            "only one size is on several nodes, which says too little about the network "
            "between them: submit it with another --nodes"
        )
    return None


def _forecast_sizes(
    sizes: Mapping[Size, list[RunFigures]], law: Law, batch: float
) -> list[ForecastSize]:
    """Forecast as many GPUs in a node as the largest run has; all in one, where no run was on
    several."""
    (smallest, baseline_runs), *_, (largest, (run, *_)) = sizes.items()
    baseline = measured_rate(baseline_runs)
    best_efficiency = max(
        measured_rate(theirs).mean / baseline.mean * smallest.gpus / size.gpus
        for size, theirs in sizes.items()
    )
    # By the windows of runs: a fit cannot be surer than its points.
    rates = [measured_rate([run]) for theirs in sizes.values() for run in theirs]
    within = lower_median(
        rate.sd**2 / rate.count / rate.mean**2 if rate.sd and rate.count else 0.0 for rate in rates
    )

    def forecast(size: Size) -> ForecastSize:
        samples = batch * (1 if law.is_strong else size.gpus)
        times = law.interval_s(
            size,
            least_variance=max(_LEAST_ERROR**2, within),
            baseline_variance=1 / len(baseline_runs),
        )
        ideal = size.gpus / smallest.gpus

        def speedup(time_s: float) -> float:
            """Not above the ideal, or what was measured of more than that."""
            return min(ideal * max(1.0, best_efficiency), samples / time_s / baseline.mean)

        measure = Measure(
            mean=speedup(law.time_s(size)),
            interval=Interval(low=speedup(times.high), high=speedup(times.low)),
            over="runs",
        )
        return ForecastSize(
            gpus=size.gpus, nodes=size.nodes, speedup=measure, efficiency=measure.times(1 / ideal)
        )

    most = min(_FARTHEST * largest.gpus, batch if law.is_strong else math.inf)
    powers = (2**power for power in itertools.count(largest.gpus.bit_length()))
    return [
        forecast(Size(gpus, -(-gpus // run.gpus_per_node) if largest.nodes > 1 else 1))
        for gpus in itertools.takewhile(lambda gpus: gpus <= most, powers)
    ]


def _why_unsure(sizes: Sequence[ForecastSize]) -> str:
    if not sizes:
        return "a step has too few samples for more GPUs"
    size = sizes[0]
    assert size.speedup.interval is not None
    low, high = size.speedup.interval.low, size.speedup.interval.high
    return (
        f"the measurements allow {low:.2g} to {high:.2g} times on {size.gpus} GPUs: more "
        "sizes or repeats (--repeat 3) would narrow this"
    )
