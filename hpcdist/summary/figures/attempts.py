"""A run's attempts: how each ended, what was lost from one to the next, and what the run cost."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from hpcdist.runs.spec import Accounting
from hpcdist.runs.verdict import Verdict
from hpcdist.summary.figures.rank import RankFigures, largest, smallest
from hpcdist.summary.read.records import AttemptRecord, RunRecord
from hpcdist.summary.values import AttemptSummary, Cost

Attempts = Mapping[int, Sequence[RankFigures]]
"""The ranks of each attempt."""


def lost_steps(attempts: Attempts) -> int:
    """Count the steps that were done again after restarts."""
    lost = 0
    reached = 0
    for number in sorted(attempts):
        begun = smallest(figures.first_step for figures in attempts[number])
        first_step = reached if begun is None else begun
        lost += max(0, reached - first_step)
        ended = largest(figures.last_step for figures in attempts[number])
        # A rank that ends while it starts up says step 0.
        reached = max(first_step, ended or 0)
    return lost


def verdict_on(record: RunRecord, number: int) -> Verdict | None:
    """Return the verdict on an attempt; the run's own is that on its last one."""
    verdict = record.attempts.get(number, AttemptRecord()).verdict
    if verdict is None and record.verdict and record.verdict.attempt == number:
        return record.verdict
    return verdict


def list_attempts(record: RunRecord, attempts: Attempts) -> list[AttemptSummary]:
    summaries = []
    for number in sorted({*attempts, *record.attempts}):
        ranks, verdict = attempts.get(number, []), verdict_on(record, number)
        summaries.append(
            AttemptSummary(
                attempt=number,
                life=record.attempts.get(number, AttemptRecord()).life,
                first_step=smallest(figures.first_step for figures in ranks),
                last_step=largest(figures.last_step for figures in ranks),
                kind=verdict.kind if verdict else None,
                message=verdict.message if verdict else None,
            )
        )
    return summaries


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


def list_spans(record: RunRecord, attempts: Attempts) -> list[AttemptSpan]:
    """Describe by the clock of node 0, where the lowest rank is, every attempt whose begin and end
    are known: clocks of other nodes may differ by minutes."""
    spans = []
    for number in sorted({*attempts, *record.attempts}):
        attempt = record.attempts.get(number, AttemptRecord())
        ranks, verdict = attempts.get(number, []), verdict_on(record, number)
        lowest = min(ranks, key=lambda figures: figures.rank, default=None)
        begin_s = attempt.begin_s or (lowest.start.time_s if lowest else None)
        end_s = largest((lowest.ended_s if lowest else None, verdict.time_s if verdict else None))
        if begin_s is None or end_s is None:
            continue
        stepping_s = worked_until_s = None
        if lowest is not None and lowest.stepping_s is not None:
            stepping_s, host = lowest.stepping_s, lowest.start.host
            worked_until_s = largest(own.worked_until_s for own in ranks if own.start.host == host)
        spans.append(AttemptSpan(attempt.life or 0, begin_s, stepping_s, worked_until_s, end_s))
    return spans


def cost_by_events(
    spans: Sequence[AttemptSpan],
    *,
    lost_s: float | None,
    num_gpus: int | None,
    num_cpus: float | None,
    price_per_hour: float | None = None,
) -> Cost | None:
    """Return the cost as the run's own files tell it; None where they hold no time.

    `spans` are in order, `lost_s` is `lost_time_s`; `price_per_hour` is that of all nodes.
    """
    # From the begin of the first attempt of each life to the end of its last.
    lives: dict[int, list[AttemptSpan]] = defaultdict(list)
    for span in spans:
        lives[span.life].append(span)
    held_s = sum(max(0.0, max(s.end_s for s in own) - own[0].begin_s) for own in lives.values())
    if held_s <= 0:
        return None
    cost = Cost(
        held_s=held_s,
        source="events",
        num_gpus=num_gpus,
        num_cpus=None if num_gpus else num_cpus,
        lost_s=None if lost_s is None else min(lost_s, held_s),
        price=price_per_hour and price_per_hour * held_s / _HOUR_S,
    )
    return _with_shares(cost, queue_wait_s=None)


def with_accounting(cost: Cost | None, accounting: Accounting | None) -> Cost | None:
    """Correct the cost by the scheduler's books, which overrule the events."""
    if cost is None or accounting is None:
        return cost
    if accounting.elapsed_s:
        held_s = accounting.elapsed_s
        price = cost.price and cost.price * held_s / cost.held_s
        cost = msgspec.structs.replace(cost, held_s=held_s, price=price, source="accounting")
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


def lost_time_s(spans: Sequence[AttemptSpan], again_s: float) -> float | None:
    """Return the time that attempts after the first took before they stepped, and the time from
    the last step of those before until their end was noticed; all of one that never stepped.

    Between two lives the job waits in a queue and holds nothing: `waited_s` counts that.
    """
    if len(spans) < 2 or all(span.stepping_s is None for span in spans):
        return None
    lost_s = again_s
    for before, span in itertools.pairwise(spans):
        until_s = span.end_s if span.stepping_s is None else span.stepping_s
        since_s = before.end_s if before.worked_until_s is None else before.worked_until_s
        if before.life != span.life:
            lost_s += max(0.0, before.end_s - since_s)
            since_s = span.begin_s
        lost_s += max(0.0, until_s - since_s)
    return lost_s


def waited_s(spans: Sequence[AttemptSpan]) -> float | None:
    """Return the time from the end of each life to the begin of the next; None with one life."""
    gaps = [
        max(0.0, span.begin_s - before.end_s)
        for before, span in itertools.pairwise(spans)
        if before.life != span.life
    ]
    return sum(gaps) if gaps else None
