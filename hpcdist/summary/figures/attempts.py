"""A run's attempts: how each ended, what was lost from one to the next, what the run cost, and when
it came to an accuracy (by its lowest rank, with restarts resolved as in `read.timeline`)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from hpcdist.schedulers.base import Accounting
from hpcdist.summary.figures.rank import RankFigures, Tested, largest
from hpcdist.summary.read.records import AttemptRecord, RunRecord
from hpcdist.summary.read.timeline import last_counting_steps, offsets_s
from hpcdist.summary.values import AttemptSummary, Cost, TimeToAccuracy

if TYPE_CHECKING:
    from hpcdist.summary.figures.run import MeasuredRun


def lost_steps(attempts: dict[int, list[RankFigures]]) -> int:
    """Count the steps that were done again after restarts."""
    lost = 0
    reached = 0
    for number in sorted(attempts):
        begun = [figures.first_step for figures in attempts[number]]
        first_step = min((step for step in begun if step is not None), default=reached)
        lost += max(0, reached - first_step)
        ended = largest(figures.last_step for figures in attempts[number])
        # A rank that ends while it starts up says step 0.
        reached = max(first_step, ended or 0)
    return lost


def lost_time_s(
    attempts: dict[int, list[RankFigures]], num_lost: int, step_time_s: float
) -> float | None:
    """From each attempt's last step to the next one's first, and for what was done again; None
    where there was one attempt. Attempts without a step belong to the time between."""
    if len(attempts) < 2:
        return None
    stepped = [
        attempts[number]
        for number in sorted(attempts)
        if any(figures.stepping_s is not None for figures in attempts[number])
    ]
    between_s = sum(map(_between_s, stepped, stepped[1:]))
    return between_s + num_lost * step_time_s


def _between_s(before: list[RankFigures], after: list[RankFigures]) -> float:
    """From the last step of an attempt to the first one of the next, as the host saw it that waited
    least: clocks of hosts may differ by more than that. Where no host took part in both, the
    clocks are believed."""
    ended, begun = _by_host(before), _by_host(after)
    seen = [_difference_s(ended[host], begun[host]) for host in ended.keys() & begun.keys()]
    between = [time_s for time_s in seen if time_s is not None]
    shortest = min(between) if between else _difference_s(before, after)
    return max(0.0, shortest or 0.0)  # a clock may have been set meanwhile


def _difference_s(before: list[RankFigures], after: list[RankFigures]) -> float | None:
    ended = [figures.worked_until_s for figures in before if figures.worked_until_s is not None]
    begun = [figures.stepping_s for figures in after if figures.stepping_s is not None]
    return min(begun) - max(ended) if ended and begun else None


def _by_host(ranks: list[RankFigures]) -> dict[str | None, list[RankFigures]]:
    hosts: dict[str | None, list[RankFigures]] = {}
    for figures in ranks:
        hosts.setdefault(figures.start.host, []).append(figures)
    return hosts


def list_attempts(
    record: RunRecord, attempts: dict[int, list[RankFigures]]
) -> list[AttemptSummary]:
    """Describe each attempt; the run's verdict is that of the last one."""
    summaries = []
    for number in sorted({*attempts, *record.attempts}):
        attempt = record.attempts.get(number, AttemptRecord())
        begun = [f.first_step for f in attempts.get(number, []) if f.first_step is not None]
        verdict = attempt.verdict
        if verdict is None and record.verdict and record.verdict.attempt == number:
            verdict = record.verdict
        summaries.append(
            AttemptSummary(
                attempt=number,
                life=attempt.life,
                first_step=min(begun, default=None),
                last_step=largest(figures.last_step for figures in attempts.get(number, [])),
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
    """Correct the cost by the scheduler's books, which overrule the events."""
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
    """Return the time that attempts after the first took before they stepped, and the time from
    the last step of those before until their end was noticed; all of one that never stepped."""
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


_STEPS_OF_TARGET = 1_000
"""A target that nobody gave is rounded down to a tenth of a percent."""


def list_bests(attempts: Mapping[int, Sequence[RankFigures]]) -> list[Tested]:
    """Return each test of a run that was better than all before it, its time from the first step
    on."""
    bests: list[Tested] = []
    for test in _in_order(_of_lowest_rank(attempts)):
        if not bests or test.accuracy > bests[-1].accuracy:
            bests.append(test)
    return bests


def times_to_accuracy(
    measured: Sequence[MeasuredRun], *, target: float | None
) -> list[TimeToAccuracy | None]:
    """Return when each run reached the target; without one, the most that all done runs of its job,
    or of its comparison, came to."""
    targets = _targets(measured) if target is None else {}
    own = [target if target is not None else targets.get(_compared_as(run)) for run in measured]
    return [
        None if goal is None else reach(run.bests, goal)
        for run, goal in zip(measured, own, strict=True)
    ]


def reach(bests: Sequence[Tested], target: float) -> TimeToAccuracy | None:
    """Return when the target was reached first; None where nothing was tested."""
    if not bests:
        return None
    best = bests[-1].accuracy
    first = next((test for test in bests if test.accuracy >= target), None)
    if first is None:
        return TimeToAccuracy(target=target, is_reached=False, best=best)
    return TimeToAccuracy(
        target=target,
        is_reached=True,
        best=best,
        time_s=first.time_s,
        step=first.step,
        epoch=first.epoch,
    )


def _targets(measured: Iterable[MeasuredRun]) -> dict[str, float]:
    bests: dict[str, list[float]] = {}
    for run in measured:
        if run.bests and run.figures.state == "done":
            bests.setdefault(_compared_as(run), []).append(run.bests[-1].accuracy)
    return {name: _rounded(min(accuracies)) for name, accuracies in bests.items()}


def _compared_as(run: MeasuredRun) -> str:
    return run.figures.comparison or run.figures.job


def _rounded(accuracy: float) -> float:
    """Down, so that all still reach it."""
    rounded = math.floor(accuracy * _STEPS_OF_TARGET) / _STEPS_OF_TARGET
    return rounded if rounded > 0 else accuracy


def _of_lowest_rank(attempts: Mapping[int, Sequence[RankFigures]]) -> list[RankFigures]:
    """The attempts in which it stepped."""
    tested = [figures.rank for ranks in attempts.values() for figures in ranks if figures.tests]
    lowest = min(tested, default=-1)
    of_rank = [
        figures for ranks in attempts.values() for figures in ranks if figures.rank == lowest
    ]
    stepped = [figures for figures in of_rank if figures.stepping_s is not None]
    return sorted(stepped, key=lambda figures: figures.attempt)


def _in_order(attempts: Sequence[RankFigures]) -> list[Tested]:
    """The tests that count, their times from the first step of the run on."""
    spans = [
        (attempt.stepping_s or 0.0, attempt.ended_s or attempt.stepping_s or 0.0)
        for attempt in attempts
    ]
    last_steps = last_counting_steps([attempt.first_step or 0 for attempt in attempts])
    return [
        test._replace(time_s=offset_s + max(0.0, test.time_s - begin_s))
        for figures, (begin_s, _), offset_s, last_step in zip(
            attempts, spans, offsets_s(spans), last_steps, strict=True
        )
        for test in figures.tests
        if (test.step or 0) <= last_step
    ]
