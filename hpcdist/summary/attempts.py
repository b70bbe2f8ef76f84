"""A run's attempts: how each ended, and what was lost from one to the next."""

from __future__ import annotations

from collections.abc import Iterable
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
    between_s = 0.0
    ended_s: float | None = None
    for number in sorted(attempts):
        begun = [f.stepping_s for f in attempts[number] if f.stepping_s is not None]
        if not begun:
            continue
        if ended_s is not None:
            between_s += max(0.0, min(begun) - ended_s)  # clocks of hosts may differ
        ended_s = max((f.ended_s for f in attempts[number] if f.ended_s is not None), default=None)
    return between_s + num_lost * step_time_s


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
