"""A run's attempts: how each ended, and what was lost from one to the next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from hpcdist.summary.records import AttemptRecord, RunRecord
from hpcdist.summary.values import AttemptSummary

if TYPE_CHECKING:
    from hpcdist.summary.metrics import RankFigures


def lost_steps(attempts: dict[int, list[RankFigures]]) -> int:
    """Steps that were done again after restarts."""
    lost = 0
    reached = 0
    for number in sorted(attempts):
        begun = [figures.first_step for figures in attempts[number]]
        first_step = min((step for step in begun if step is not None), default=reached)
        lost += max(0, reached - first_step)
        ended = _largest_step(attempts[number])
        # A rank that ends while it starts up says step 0.
        reached = max(first_step, ended or 0)
    return lost


def lost_time_s(
    attempts: dict[int, list[RankFigures]], num_lost: int, step_time_s: float
) -> float | None:
    """From each attempt's end to the next one's first step, and for what was done again; None
    where there was one attempt. Attempts without a step belong to the time between."""
    if len(attempts) < 2:
        return None
    stepped = [
        attempts[number]
        for number in sorted(attempts)
        if any(figures.stepping_s is not None for figures in attempts[number])
    ]
    between_s = sum(_between_s(before, after) for before, after in pairwise(stepped))
    return between_s + num_lost * step_time_s


def _between_s(before: Sequence[RankFigures], after: Sequence[RankFigures]) -> float:
    """From the end of an attempt to the next one's first step: by the clock of a rank that was on
    the same host both times, of those the one that ended last, as clocks of hosts may differ."""
    ended = {(f.rank, f.start.host): f.ended_s for f in before if f.ended_s is not None}
    begun = {(f.rank, f.start.host): f.stepping_s for f in after if f.stepping_s is not None}
    if not ended or not begun:
        return 0.0
    gaps_s = [begun[key] - ended[key] for key in begun.keys() & ended.keys()]
    gap_s = min(gaps_s) if gaps_s else min(begun.values()) - max(ended.values())
    return max(0.0, gap_s)


def list_attempts(
    record: RunRecord, attempts: dict[int, list[RankFigures]]
) -> list[AttemptSummary]:
    """Each attempt; that of the run's verdict is the last one's."""
    found = []
    for number in sorted({*attempts, *record.attempts}):
        known = record.attempts.get(number, AttemptRecord())
        begun = [f.first_step for f in attempts.get(number, []) if f.first_step is not None]
        verdict = known.verdict
        if verdict is None and record.verdict and record.verdict.attempt == number:
            verdict = record.verdict
        found.append(
            AttemptSummary(
                attempt=number,
                life=known.life,
                first_step=min(begun, default=None),
                last_step=_largest_step(attempts.get(number, [])),
                kind=verdict.kind if verdict else None,
                message=verdict.message if verdict else None,
            )
        )
    return found


def _largest_step(ranks: Iterable[RankFigures]) -> int | None:
    steps = (figures.last_step for figures in ranks)
    return max((step for step in steps if step is not None), default=None)
