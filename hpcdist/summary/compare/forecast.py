"""A forecast for more GPUs from the runs that were measured, or the reason why there is none.

One law with two terms is fitted to the mean step time of each size:

    strong scaling    t(N) = computing / N + communication * (M - 1) / M
    weak scaling      t(N) = computing + communication * (M - 1) / M

(M - 1) / M is the share of the gradients that each member of a ring sends. M is the number of nodes
where runs were on several, as the network between them is the slower one, and else N, the number of
GPUs. Neither term is below zero. The fit is by least squares of relative errors, each size counting
alike; t of the interval has the degrees of freedom of the sizes, less two. Where another law holds,
the fit is poor and the interval wide.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from hpcdist.base.statistics import CONFIDENCE, Interval, Measure, lower_median, mean, quantile
from hpcdist.summary.compare.cells import Size, measured_rate, size
from hpcdist.summary.values import Forecast, ForecastSize, RunFigures, Scaling

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

    is_strong: bool
    is_over_nodes: bool
    computing_s: float = 0.0
    communication_s: float = 0.0
    variance: float = 0.0
    """Variance of the relative error of one size's mean."""
    covariance: tuple[float, float, float] = (0.0, 0.0, 0.0)
    """Covariance of the two weights: the first, both, the second; for errors with variance 1."""

    def factors(self, size: Size) -> tuple[float, float]:
        """Return the factors of the two weights."""
        members = size.nodes if self.is_over_nodes else size.gpus
        return 1 / size.gpus if self.is_strong else 1.0, (members - 1) / members

    def at(self, size: Size) -> tuple[float, float]:
        """Return the step time, and its relative variance for errors with variance 1."""
        x, y = self.factors(size)
        first, both, second = self.covariance
        time_s = self.computing_s * x + self.communication_s * y
        return time_s, max(0.0, x * x * first + 2 * x * y * both + y * y * second) / time_s**2


def fit_law(times_s: Mapping[Size, float], *, is_strong: bool) -> Law | None:
    """Fit the law to the mean step time of each size; None where it would compute in no time, or
    the sizes do not tell the terms apart."""
    law = Law(is_strong, any(size.nodes > 1 for size in times_s))
    rows = [
        (x / time_s, y / time_s) for own, time_s in times_s.items() for x, y in [law.factors(own)]
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
    variance = squares / max(1, len(rows) - 2)
    return Law(is_strong, law.is_over_nodes, computing_s, communication_s, variance, covariance)


def make_forecast(runs: Sequence[RunFigures], scaling: Scaling | None) -> Forecast:
    """Forecast the next powers of two, up to four times the largest size.

    `runs` are done, differ in size, and scale in one way; those of the smallest size are what the
    speed-up is against.
    """
    by_size = {key: list(own) for key, own in itertools.groupby(sorted(runs, key=size), key=size)}
    if (reason := _why_none(runs, by_size.keys(), scaling)) is not None:
        return Forecast(refused_because=reason)
    is_strong = scaling == "strong"
    # Samples of a step: in all, or with weak scaling of each GPU.
    batch = mean((run.samples_per_step or 1.0) / (1 if is_strong else run.num_gpus) for run in runs)
    rates = {key: [measured_rate([run]) for run in own] for key, own in by_size.items()}
    law = fit_law(
        {
            key: batch * (1 if is_strong else key.gpus) * mean(1 / rate.mean for rate in own)
            for key, own in rates.items()
        },
        is_strong=is_strong,
    )
    if law is None:
        return Forecast(refused_because="the law does not fit what was measured")
    smallest, *_, largest = by_size
    baseline = measured_rate(by_size[smallest])
    # By the windows of runs: a fit cannot be surer than its points.
    within = lower_median(
        rate.sd**2 / rate.count / rate.mean**2 if rate.sd and rate.count else 0.0
        for rate in itertools.chain.from_iterable(rates.values())
    )
    variance = max(law.variance, _LEAST_ERROR**2, within)
    found: list[ForecastSize] = []
    reason = "a step has too few samples for more GPUs"
    for power in itertools.count(largest.gpus.bit_length()):
        gpus = 2**power
        if gpus > min(_FARTHEST * largest.gpus, batch if is_strong else math.inf):
            break
        # As many in a node as the largest run has; all in one, where no run was on several.
        in_node = by_size[largest][0].gpus_per_node
        to_come = Size(gpus, -(-gpus // in_node) if law.is_over_nodes else 1)
        time_s, of_fit = law.at(to_come)
        ideal = gpus / smallest.gpus
        speedup = batch * (1 if is_strong else gpus) / time_s / baseline.mean
        # That of a run to come, against a baseline that was measured so often.
        spread = math.sqrt(variance * (of_fit + 1 + 1 / len(by_size[smallest])))
        half = min(_LARGEST_EXPONENT, quantile(CONFIDENCE, max(1, len(by_size) - 2)) * spread)
        low, high = (min(ideal, speedup * math.exp(sign * half)) for sign in (-1, 1))
        if high > _WIDEST * low:
            reason = (
                f"the measurements allow {low:.2g} to {high:.2g} times on {gpus} GPUs: more sizes "
                "or repeats (--repeat 3) would narrow this"
            )
            break
        interval = Interval(low=low, high=high)
        times = Measure(mean=min(ideal, speedup), interval=interval, over="runs")
        found.append(
            ForecastSize(
                gpus=gpus, nodes=to_come.nodes, speedup=times, efficiency=times.times(1 / ideal)
            )
        )
    if not found:
        return Forecast(refused_because=reason)
    in_one = "it assumes that all GPUs are in one node, because no run was on several"
    return Forecast(sizes=found, notes=[in_one] if largest.nodes == 1 else [])


def _why_none(
    runs: Sequence[RunFigures], sizes: Iterable[Size], scaling: Scaling | None
) -> str | None:
    num_sizes, num_crossing = len({*sizes}), sum(key.nodes > 1 for key in sizes)
    # More ranks have no more CPUs for each; on GPUs they are not counted.
    shares = [run.num_cpus / run.world_size for run in runs if run.num_cpus is not None]
    reasons = {
        f"it takes runs of {FEWEST_SIZES} sizes, and there are {num_sizes}": (
            num_sizes < FEWEST_SIZES
        ),
        "the number of samples per step is neither the same in all sizes nor the same for each "
        "GPU": scaling is None,
        "the ranks share CPUs, so more ranks are not more hardware": (
            bool(shares) and max(shares) > min(shares)
        ),
        "nodes were simulated on one host, which says nothing about the network between nodes": any(
            run.num_hosts is not None and run.num_hosts < run.nodes for run in runs
        ),
        "only one size is on several nodes, which says too little about the network between them: "
        "submit it with another --nodes": num_crossing == 1,
    }
    return next((reason for reason, is_so in reasons.items() if is_so), None)
