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
from collections.abc import Sequence
from operator import attrgetter
from statistics import median_low

from hpcdist.base.statistics import (
    CONFIDENCE,
    LARGEST_EXPONENT,
    Interval,
    Measure,
    mean,
    quantile,
)
from hpcdist.summary.compare.cells import measured_rate
from hpcdist.summary.values import Forecast, ForecastSize, RunFigures, Scaling, Size

FEWEST_SIZES = 3
_FARTHEST = 4
"""Times the largest size that was measured."""
_LEAST_ERROR = 0.002
"""Relative: no runs are more alike than this but by chance."""
_WIDEST = 2.0
"""An interval whose upper end is more than so many times its lower one says nothing."""


def make_forecast(
    runs: Sequence[RunFigures], scaling: Scaling | None, *, asked: Size | None = None
) -> Forecast:
    """Forecast the next powers of two, up to four times the largest size; or the size that is asked
    for alone.

    `runs` are done, differ in size, and scale in one way; those of the smallest size are what the
    speed-up is against.
    """
    by = attrgetter("size")
    by_size = {key: list(own) for key, own in itertools.groupby(sorted(runs, key=by), key=by)}
    if (reason := _why_none(runs, [*by_size], scaling)) is not None:
        return Forecast(refused_because=reason)
    is_strong, is_over_nodes = scaling == "strong", any(key.nodes > 1 for key in by_size)
    # Samples of a step: in all, or with weak scaling of each GPU.
    batch = mean((run.samples_per_step or 1.0) / (1 if is_strong else run.num_gpus) for run in runs)
    smallest, *_, largest = by_size
    # As many in a node as the largest run has; all in one, where no run was on several.
    in_node = by_size[largest][0].gpus_per_node if is_over_nodes else math.inf

    def terms(gpus: int, nodes: int) -> tuple[float, float]:
        members = nodes if is_over_nodes else gpus
        return 1 / gpus if is_strong else 1.0, (members - 1) / members

    def samples(gpus: int) -> float:
        return batch * (1 if is_strong else gpus)

    rows = []
    for key, own in by_size.items():
        time_s = samples(key.gpus) * mean(1 / run.rate for run in own)
        rows.append((terms(*key)[0] / time_s, terms(*key)[1] / time_s))
    if (law := _fit(rows)) is None:
        return Forecast(refused_because="the law does not fit what was measured")
    weights, (xx, xy, yy), variance = law
    # By the windows of runs: a fit cannot be surer than its points.
    rates = [run.samples_per_s for run in runs if run.samples_per_s]
    within = median_low(
        rate.sd**2 / rate.count / rate.mean**2 if rate.sd and rate.count else 0.0 for rate in rates
    )
    variance = max(variance, _LEAST_ERROR**2, within)
    found: list[ForecastSize] = []
    reason = "a step has too few samples for more GPUs"
    powers = (2**power for power in itertools.count(largest.gpus.bit_length()))
    for gpus in (asked.gpus,) if asked else powers:
        if gpus > min(_FARTHEST * largest.gpus, batch if is_strong else math.inf):
            break
        x, y = terms(gpus, asked.nodes if asked else math.ceil(gpus / in_node))
        time_s = weights[0] * x + weights[1] * y
        of_fit = max(0.0, x * x * xx + 2 * x * y * xy + y * y * yy) / time_s**2
        speedup = samples(gpus) / time_s / measured_rate(by_size[smallest]).mean
        # That of a run to come, against a baseline that was measured so often.
        spread = math.sqrt(variance * (of_fit + 1 + 1 / len(by_size[smallest])))
        half = min(LARGEST_EXPONENT, quantile(CONFIDENCE, max(1, len(rows) - 2)) * spread)
        factors = (math.exp(-half), 1.0, math.exp(half))
        low, middle, high = (min(gpus / smallest.gpus, speedup * factor) for factor in factors)
        if high > _WIDEST * low:
            reason = (
                f"the measurements allow {low:.2g} to {high:.2g} times on {gpus} GPUs: more sizes "
                "or repeats (--repeat 3) would narrow this"
            )
            break
        ends = Interval(low=low, high=high)
        times = Measure(mean=middle, interval=ends, over="runs")
        found.append(ForecastSize(gpus=gpus, speedup=times))
    return Forecast(sizes=found, refused_because=None if found else reason)


_Law = tuple[tuple[float, float], tuple[float, float, float], float]
"""The weights of both terms; their covariance (the first, both, the second) for errors with
variance 1; and the variance of the relative error of one size's mean."""


def _fit(rows: Sequence[tuple[float, float]]) -> _Law | None:
    """Fit both weights, so that each row comes to 1; None where the law would compute in no time,
    or the sizes do not tell the terms apart."""
    xx, xy, yy = (sum(row[i] * row[j] for row in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    sum_x, sum_y = (sum(terms) for terms in zip(*rows, strict=True))
    determinant = xx * yy - xy * xy
    if determinant <= 1e-12 * xx * yy:
        return None
    inverse = (yy / determinant, -xy / determinant, xx / determinant)
    a = inverse[0] * sum_x + inverse[1] * sum_y
    b = inverse[1] * sum_x + inverse[2] * sum_y
    if b < 0:
        a, b, inverse = sum_x / xx, 0.0, (1 / xx, 0.0, 0.0)
    squares = sum((a * x + b * y - 1) ** 2 for x, y in rows)
    return ((a, b), inverse, squares / max(1, len(rows) - 2)) if a > 0 else None


def _why_none(
    runs: Sequence[RunFigures], sizes: Sequence[Size], scaling: Scaling | None
) -> str | None:
    # More ranks have no more CPUs for each; on GPUs they are not counted.
    shares = [run.num_cpus / run.world_size for run in runs if run.num_cpus is not None]
    reasons = {
        f"it takes runs of {FEWEST_SIZES} sizes, and there are {len(sizes)}": (
            len(sizes) < FEWEST_SIZES
        ),
        "the number of samples per step is neither the same in all sizes nor for each GPU": (
            scaling is None
        ),
        "the ranks share CPUs, so more ranks are not more hardware": (len({*shares}) > 1),
        "nodes were simulated on one host, which says nothing about a network between nodes": any(
            run.num_hosts is not None and run.num_hosts < run.nodes for run in runs
        ),
        "only one size is on several nodes: submit it with another --nodes": (
            sum(key.nodes > 1 for key in sizes) == 1
        ),
    }
    return next((text for text, holds in reasons.items() if holds), None)
