"""A run over time: its attempts behind each other, what of them counts after restarts, and what the
run cost.

What a restart did again counts as the newest attempt did it: of an attempt, what lies beyond the
step at which a later one began is left out. Times are by the clock of node 0, where the lowest rank
is: clocks of other nodes may differ by minutes. After a restart that rank may be on another host,
whose clock is behind, so no attempt begins before the last one ended.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence

from msgspec import Struct

from hpcdist.runs.events import ClockSet
from hpcdist.runs.spec import Accounting
from hpcdist.runs.verdict import Verdict
from hpcdist.summary.figures.rank import RankFigures, largest
from hpcdist.summary.read.collect import RunRecord
from hpcdist.summary.values import Cost


class Attempt(Struct, frozen=True, kw_only=True):
    """One start of the run's ranks."""

    number: int
    life: int | None
    """Number of times that the scheduler had started the job before."""
    ranks: list[RankFigures]
    """The ranks that left events, the lowest first."""
    verdict: Verdict | None
    begin_s: float | None
    end_s: float | None
    """When the job had an end or a verdict on it: a lost node is noticed late."""
    shift_s: float
    """By so much the host's clock was set while it ran: its times are as if it had not been, and
    those of a later life are by the new clock."""
    first_step: int | None
    """Finished steps when it began."""
    last_step: int | None

    @property
    def stepping_s(self) -> float | None:
        """Return when the first step of the lowest rank began."""
        return self.ranks[0].stepping_s if self.ranks else None

    @property
    def worked_until_s(self) -> float | None:
        """Return when the ranks on the lowest rank's host worked last; None where it never did."""
        if self.stepping_s is None:
            return None
        host = self.ranks[0].start.host
        return largest(own.worked_until_s for own in self.ranks if own.start.host == host)


def list_attempts(record: RunRecord, ranks: Sequence[RankFigures]) -> list[Attempt]:
    """Return all attempts that are known, oldest first."""
    by_attempt: dict[int, list[RankFigures]] = defaultdict(list)
    for figures in sorted(ranks, key=lambda figures: figures.rank):
        by_attempt[figures.attempt].append(figures)
    attempts = []
    for number in sorted({*by_attempt, *record.begins}):
        own, beginning = by_attempt[number], record.begins.get(number)
        verdict = record.attempt_verdicts.get(number)
        start_s, ended_s = (own[0].start.time_s, own[0].ended_s) if own else (None, None)
        clock = own[0].events.last(ClockSet) if own else None
        shift_s = clock.shift_s if clock else 0.0
        # Agents write by the clock of the host.
        begin_s = (beginning and beginning.time_s) or start_s
        if clock and begin_s is not None and start_s is not None:
            begin_s = min(begin_s, start_s)
        firsts = [each.first_step for each in own if each.first_step is not None]
        verdict_s = verdict.time_s - shift_s if verdict and verdict.time_s else None
        attempts.append(
            Attempt(
                number=number,
                life=beginning.life if beginning else None,
                ranks=own,
                verdict=verdict,
                begin_s=begin_s,
                end_s=largest((ended_s, verdict_s)),
                shift_s=shift_s,
                first_step=min(firsts, default=None),
                last_step=largest(figures.last_step for figures in own),
            )
        )
    return attempts


def count_steps(attempts: Sequence[Attempt]) -> tuple[int, int]:
    """Return the steps that were done, those that were done again counting once, and how many were
    done again after restarts."""
    done = lost = reached = 0
    for attempt in attempts:
        first_step = reached if attempt.first_step is None else attempt.first_step
        lost += max(0, reached - first_step)
        # A rank that ends while it starts up says step 0.
        reached = max(first_step, attempt.last_step or 0)
        done += reached - first_step
    return done - lost, lost


def _timed(attempts: Sequence[Attempt]) -> list[tuple[Attempt, float, float]]:
    """Return the attempts whose begin and end are known, with these."""
    return [
        (own, own.begin_s, own.end_s)
        for own in attempts
        if own.begin_s is not None and own.end_s is not None
    ]


def lost_time_s(attempts: Sequence[Attempt], again_s: float) -> float | None:
    """Return the time that attempts after the first took before they stepped, and the time from
    the last step of those before until their end was noticed; all of one that never stepped.

    Between two lives the job waits in a queue and holds nothing: `waited_s` counts that.
    """
    timed = _timed(attempts)
    if len(timed) < 2 or all(own.stepping_s is None for own, *_ in timed):
        return None
    lost_s = again_s
    for (before, _, noticed_s), (attempt, begin_s, end_s) in itertools.pairwise(timed):
        until_s = end_s if attempt.stepping_s is None else attempt.stepping_s
        worked_s = before.worked_until_s
        since_s = noticed_s if worked_s is None else worked_s
        if (before.life or 0) != (attempt.life or 0):
            lost_s += max(0.0, noticed_s - since_s)
            since_s = begin_s
        lost_s += max(0.0, until_s - since_s)
    return lost_s


def startup_s(attempts: Sequence[Attempt]) -> float | None:
    """Return the time from the begin of the first attempt to its first step."""
    first = attempts[0] if attempts else None
    if first is None or first.begin_s is None or first.stepping_s is None:
        return None
    return max(0.0, first.stepping_s - first.begin_s)


def waited_s(attempts: Sequence[Attempt]) -> float | None:
    """Return the time from the end of each life to the begin of the next; None with one life."""
    gaps = [
        max(0.0, begin_s - end_s - before.shift_s)
        for (before, _, end_s), (after, begin_s, _) in itertools.pairwise(_timed(attempts))
        if (before.life or 0) != (after.life or 0)
    ]
    return sum(gaps) if gaps else None


def cost_by_events(
    attempts: Sequence[Attempt],
    *,
    lost_s: float | None,
    num_gpus: float | None,
    num_cpus: float | None,
    price_per_hour: float | None = None,
) -> Cost | None:
    """Return the cost as the run's own files tell it; None where they hold no time.

    `lost_s` is `lost_time_s`; `price_per_hour` is that of all nodes.
    """
    # From the begin of the first attempt of each life to the end of its last.
    lives: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for attempt, begin_s, end_s in _timed(attempts):
        lives[attempt.life or 0].append((begin_s, end_s))
    held_s = sum(max(0.0, max(end for _, end in own) - own[0][0]) for own in lives.values())
    if held_s <= 0:
        return None
    hours = held_s / 3600
    return Cost(
        held_s=held_s,
        gpu_hours=num_gpus and num_gpus * hours,
        cpu_hours=num_cpus * hours if num_cpus and not num_gpus else None,
        lost_share=None if lost_s is None else min(1.0, lost_s / held_s),
        price=price_per_hour and price_per_hour * hours,
    )


def with_accounting(cost: Cost | None, accounting: Accounting | None) -> Cost | None:
    """Correct the cost by the scheduler's time, which overrules the events."""
    if cost is None or accounting is None or not accounting.elapsed_s:
        return cost
    times = accounting.elapsed_s / cost.held_s
    lost_share = cost.lost_share and min(1.0, cost.lost_share / times)
    amounts = {name: getattr(cost, name) for name in ("held_s", "gpu_hours", "cpu_hours", "price")}
    grown = {name: amount and amount * times for name, amount in amounts.items()}
    return Cost(**grown, lost_share=lost_share)


def offsets_s(attempts: Sequence[Attempt]) -> dict[int, float]:
    """Return when each attempt began to step, after the run's first step, by its number."""
    offsets: dict[int, float] = {}
    ended_s, zero_s = 0.0, None
    for attempt in attempts:
        if (begin_s := attempt.stepping_s) is not None:
            zero_s = begin_s if zero_s is None else zero_s
            offsets[attempt.number] = max(begin_s - zero_s, ended_s)
            ended = attempt.ranks[0].ended_s
            ended_s = offsets[attempt.number] + max(0.0, (ended or begin_s) - begin_s)
    return offsets
