"""What a run cost: for how long it held its GPUs, or CPUs, and what of that restarts took."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from hpcdist.schedulers.accounting import Accounting
from hpcdist.summary.figures.usage_values import Cost

_HOUR_S = 3600.0


class AttemptSpan(NamedTuple):
    """One attempt by the clock of one host."""

    life: int
    begin_s: float
    stepping_s: float | None
    """When its first step began."""
    worked_until_s: float | None
    """Its last step, by the events of the ranks on that host; None where they never stepped."""
    end_s: float
    """When the job had an end or a verdict on it: a lost node is noticed late."""


def cost_by_events(
    spans: Sequence[AttemptSpan],
    *,
    again_s: float,
    num_gpus: int | None,
    num_cpus: float | None,
) -> Cost | None:
    """The cost as the run's own files tell it; None where they hold no time.

    `spans` are in order, `again_s` is what steps took that were done again.
    """
    held_s = _held_s(spans)
    if held_s <= 0:
        return None
    lost_s = _lost_s(spans, again_s)
    cost = Cost(
        held_s=held_s,
        source="events",
        num_gpus=num_gpus,
        num_cpus=None if num_gpus else num_cpus,
        lost_s=None if lost_s is None else min(lost_s, held_s),
    )
    return _with_shares(cost, queue_wait_s=None)


def with_accounting(cost: Cost | None, accounting: Accounting | None) -> Cost | None:
    """The scheduler's word on the time overrules."""
    if cost is None or accounting is None:
        return cost
    if accounting.elapsed_s:
        held_s = accounting.elapsed_s
        cost = msgspec.structs.replace(cost, held_s=held_s, source="accounting")
    return _with_shares(cost, queue_wait_s=accounting.queue_wait_s)


def _with_shares(cost: Cost, *, queue_wait_s: float | None) -> Cost:
    hours = cost.held_s / _HOUR_S
    whole_s = cost.held_s + (queue_wait_s or 0.0)
    return msgspec.structs.replace(
        cost,
        gpu_hours=cost.num_gpus * hours if cost.num_gpus else None,
        cpu_hours=cost.num_cpus * hours if cost.num_cpus else None,
        lost_share=None if cost.lost_s is None else min(1.0, cost.lost_s / cost.held_s),
        waiting_share=None if queue_wait_s is None else queue_wait_s / whole_s,
    )


def _held_s(spans: Sequence[AttemptSpan]) -> float:
    """From the begin of the first attempt of each life to the end of its last."""
    held_s = 0.0
    for life in dict.fromkeys(span.life for span in spans):
        own = [span for span in spans if span.life == life]
        held_s += max(0.0, max(span.end_s for span in own) - own[0].begin_s)
    return held_s


def _lost_s(spans: Sequence[AttemptSpan], again_s: float) -> float | None:
    """Of what attempts after the first took before they stepped, and from the last step of the
    ones before until their end was noticed; all of one that never stepped."""
    if len(spans) < 2 or all(span.stepping_s is None for span in spans):
        return None
    lost_s = again_s
    for before, span in itertools.pairwise(spans):
        until_s = span.end_s if span.stepping_s is None else span.stepping_s
        since_s = before.end_s if before.worked_until_s is None else before.worked_until_s
        if before.life != span.life:  # in between nothing is held
            lost_s += max(0.0, before.end_s - since_s)
            since_s = span.begin_s
        lost_s += max(0.0, until_s - since_s)
    return lost_s
