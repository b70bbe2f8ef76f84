"""Measured values of runs by those that were foreseen: ratios, 1 where the plan was right."""

from __future__ import annotations

from collections.abc import Sequence

from hpcdist.base.statistics import mean
from hpcdist.base.text import number_of
from hpcdist.runs.spec import Planned
from hpcdist.summary.values import RunFigures

_LEAST_WAIT_S = 60.0
"""A ratio of shorter waits means nothing."""


def peak_bytes(run: RunFigures) -> int | None:
    """Return the memory that plans are about, on GPUs what was allocated there; None where a run is
    not done, as it may have ended before its peak."""
    peak = run.peak_cuda_bytes if run.ran_with.device == "cuda" else run.peak_rss_bytes
    return peak if run.state == "done" else None


def ratios(run: RunFigures) -> dict[str, float]:
    """Return measured by planned, of what is known: wait, and of a run that is done duration and
    memory."""
    plan = run.planned or Planned()
    waited_s = run.accounting.queue_wait_s if run.accounting else None
    held_s = run.cost.held_s if run.cost and run.state == "done" else None
    pairs = {
        "wait": (waited_s, plan.wait_s if (plan.wait_s or 0) >= _LEAST_WAIT_S else None),
        "duration": (held_s, plan.duration_s),
        "memory": (peak_bytes(run), plan.memory_bytes),
    }
    return {name: a / b for name, (a, b) in pairs.items() if a is not None and b}


def sentence(runs: Sequence[RunFigures]) -> str | None:
    """Return the mean ratios over all runs; None where nothing was planned."""
    found = [own for run in runs if (own := ratios(run))]
    values = {name: [own[name] for own in found if name in own] for own in found for name in own}
    parts = [f"{name} {mean(own):.2f} x" for name, own in values.items()]
    number = number_of(len(found), "run")
    return f"measured / planned of {number}: {', '.join(parts)}" if parts else None
