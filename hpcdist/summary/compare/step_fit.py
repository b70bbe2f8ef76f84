"""The step time as a function of the number of GPUs, fitted to measured runs: pure numbers.

A step consists of what each GPU computes, what takes as long on any number of GPUs, and
communication:

    strong scaling    t(N) = work / N + fixed + c * g(N)
    weak scaling      t(N) = work + c * g(N)          (work and what is fixed cannot be told apart)

with g one of: (N - 1) / N, the share of the gradients that each GPU sends in a ring; log2 N, the
depth of a tree; N - 1, whatever queues up one by one; and the same of the number of nodes, which is
what the slower network sees. No term is negative. Which of these laws holds is not known, and
between them lies most of the uncertainty: every law that fits about as well as the best one (by an
F test of their residuals) has a say in a forecast's interval.

Least squares of relative errors, over all runs, so that repeats say how much is noise.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from hpcdist.base.statistics import CONFIDENCE, Interval, f_quantile, quantile

FIXED = "fixed"
WORK = "work"

_MOST_TERMS = 3


class Scale(NamedTuple):
    """How large a run is."""

    gpus: int
    nodes: int


class Timed(NamedTuple):
    """One run."""

    scale: Scale
    time_s: float
    """Per step."""


Term = Callable[[Scale], float]

_COMMUNICATION: Mapping[str, Term] = {
    "ring": lambda scale: (scale.gpus - 1) / scale.gpus,
    "tree": lambda scale: math.log2(scale.gpus),
    "one by one": lambda scale: float(scale.gpus - 1),
    "ring of nodes": lambda scale: (scale.nodes - 1) / scale.nodes,
    "tree of nodes": lambda scale: math.log2(scale.nodes),
    "nodes one by one": lambda scale: float(scale.nodes - 1),
}


class Law(NamedTuple):
    """Terms whose weighted sum is the step time."""

    names: tuple[str, ...]
    terms: tuple[Term, ...]


class Fit(NamedTuple):
    """A law with its weights, fitted to runs."""

    law: Law
    weights: list[float]
    covariance: list[list[float]]
    """Of the weights, for residuals with a variance of 1."""
    squares: float
    """Sum of the squared relative residuals."""
    freedom: int

    def time_s(self, scale: Scale) -> float:
        """Seconds per step."""
        return sum(
            weight * term(scale) for weight, term in zip(self.weights, self.law.terms, strict=True)
        )

    def terms_s(self, scale: Scale) -> dict[str, float]:
        """What a step consists of."""
        named = zip(self.law.names, self.weights, self.law.terms, strict=True)
        return {name: weight * term(scale) for name, weight, term in named}

    @property
    def variance(self) -> float:
        """Of the relative residuals."""
        return self.squares / self.freedom

    def variance_at(self, scale: Scale) -> float:
        """Of the fitted time there, relative, for residuals with a variance of 1."""
        row = [term(scale) for term in self.law.terms]
        pairs = itertools.product(range(len(row)), repeat=2)
        found = sum(row[i] * row[j] * self.covariance[i][j] for i, j in pairs)
        return max(0.0, found) / self.time_s(scale) ** 2


def plausible_fits(runs: Sequence[Timed], *, is_strong: bool, least_variance: float) -> list[Fit]:
    """Every law that the runs do not speak against, the best first; empty where none fits.

    `least_variance`, of relative errors, is that which the runs have whatever the fit says.
    """
    num_sizes = len({run.scale for run in runs})
    laws = _laws(is_strong=is_strong, num_terms=min(_MOST_TERMS, num_sizes - 1))
    fits = [found for law in laws if (found := fit(runs, law)) is not None]
    if not fits:
        return []
    fits.sort(key=lambda one: one.variance)
    bound = max(fits[0].variance, least_variance)
    return [
        one
        for one in fits
        if one.variance <= bound * f_quantile(CONFIDENCE, one.freedom, fits[0].freedom)
    ]


def fit(runs: Sequence[Timed], law: Law) -> Fit | None:
    """By least squares of relative errors; None where the runs do not determine the law, or a term
    would take less than no time."""
    import numpy as np

    rows = np.array([[term(run.scale) / run.time_s for term in law.terms] for run in runs])
    if np.linalg.matrix_rank(rows) < len(law.terms):
        return None
    weights, *_ = np.linalg.lstsq(rows, np.ones(len(runs)), rcond=None)
    if weights.min() < 0:
        return None
    residuals = rows @ weights - 1
    return Fit(
        law=law,
        weights=weights.tolist(),
        covariance=np.linalg.inv(rows.T @ rows).tolist(),
        squares=float(residuals @ residuals),
        freedom=max(1, len(runs) - len(law.terms)),
    )


def interval_at(
    fits: Sequence[Fit], scale: Scale, *, least_variance: float, other_variance: float = 0.0
) -> Interval:
    """Of the time of a run to come, with 95 % confidence, over all of the laws.

    `other_variance`, as a multiple of that of one run, is that of what the time is compared with.
    """
    found = [_interval(one, scale, least_variance, other_variance) for one in fits]
    return Interval(low=min(one.low for one in found), high=max(one.high for one in found))


def error_without_each(runs: Sequence[Timed], law: Law) -> float | None:
    """By how much the law misses a size that it was fitted without: root mean square, relative;
    None where too few sizes are left."""
    misses = []
    for scale in {run.scale for run in runs}:
        found = fit([run for run in runs if run.scale != scale], law)
        if found is None:
            return None
        times = [run.time_s for run in runs if run.scale == scale]
        misses.append(found.time_s(scale) * len(times) / sum(times) - 1)
    return math.sqrt(sum(miss * miss for miss in misses) / len(misses))


def _interval(one: Fit, scale: Scale, least_variance: float, other_variance: float) -> Interval:
    variance = max(one.variance, least_variance)
    spread = math.sqrt(variance * (one.variance_at(scale) + 1 + other_variance))
    half = min(_MOST, _t(one.freedom) * spread)
    time_s = one.time_s(scale)
    return Interval(low=time_s * math.exp(-half), high=time_s * math.exp(half))


_MOST = 300.0  # exp of more is no number


@functools.cache
def _t(freedom: int) -> float:
    return quantile(CONFIDENCE, freedom)


def _laws(*, is_strong: bool, num_terms: int) -> Iterator[Law]:
    """Work alone, and with each choice of other terms: of communication one kind among GPUs and one
    among nodes at most."""
    work: Term = (lambda scale: 1 / scale.gpus) if is_strong else (lambda _: 1.0)
    fixed: Mapping[str, Term] = {FIXED: lambda _: 1.0} if is_strong else {}
    others = {**fixed, **_COMMUNICATION}
    for num in range(num_terms):
        for names in itertools.combinations(others, num):
            terms = (work, *(others[name] for name in names))
            if sum(name in _COMMUNICATION for name in names) <= 2:
                yield Law((WORK, *names), terms)
