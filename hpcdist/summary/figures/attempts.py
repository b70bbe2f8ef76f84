"""A run's attempts: how each ended, and what was lost from one to the next."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from hpcdist.summary.read.records import AttemptRecord, RunRecord
from hpcdist.summary.values import AttemptSummary

if TYPE_CHECKING:
    from hpcdist.summary.figures.metrics import RankFigures


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
