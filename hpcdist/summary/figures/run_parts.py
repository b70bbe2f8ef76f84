"""What the time of one run consists of: from the figures of its ranks, over all attempts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from hpcdist.summary.figures import stretches
from hpcdist.summary.figures.attempts import lost_steps, lost_time_s
from hpcdist.summary.figures.parts import Pauses, divide
from hpcdist.summary.figures.timing import StepTotals
from hpcdist.summary.values import Straggler

if TYPE_CHECKING:
    from hpcdist.summary.figures.metrics import RankFigures


class HeldUp(NamedTuple):
    """What waiting for slower ranks costs per step, and who is waited for."""

    rotating_s: float = 0.0
    straggler: Straggler | None = None


def held_up_by(attempts: dict[int, list[RankFigures]], world_size: int) -> HeldUp:
    """From the stretches of all attempts in which every rank recorded steps."""
    if world_size < 2:
        return HeldUp()
    found: list[stretches.Stretch] = []
    places: list[stretches.Place] = []
    totals = StepTotals()
    for number in sorted(attempts):
        stepped = [figures for figures in attempts[number] if figures.spans]
        if len(stepped) >= world_size:
            stepped.sort(key=lambda figures: figures.rank)
            found += stretches.cut([figures.spans for figures in stepped])
            places = [_place(figures) for figures in stepped]
            for figures in stepped:
                totals.steps += figures.totals.steps
                totals.sum_s += figures.totals.sum_s
    if not found:
        return HeldUp()
    step_s = totals.sum_s / totals.steps
    straggler = stretches.find_straggler(found, places, step_s)
    return HeldUp(rotating_s=stretches.rotating_s(found), straggler=straggler)


def parts_of_run(attempts: dict[int, list[RankFigures]], held_up: HeldUp) -> dict[str, float]:
    """Mean seconds per step by part, as `parts.PARTS` has them; some rank recorded steps."""
    by_rank: dict[int, list[StepTotals]] = defaultdict(list)
    saves_s: dict[int, float] = defaultdict(float)
    for ranks in attempts.values():
        for figures in ranks:
            by_rank[figures.rank].append(figures.totals)
            saves_s[figures.rank] += figures.saves_s
    totals = {rank: _merged(found) for rank, found in by_rank.items()}
    stepped = [rank for rank in sorted(totals) if totals[rank].steps]
    saver = max(stepped, key=lambda rank: saves_s[rank])
    num_steps = max(1, _num_steps(attempts))
    step_s = _mean_step_s([totals[rank] for rank in stepped])
    lost_s = lost_time_s(attempts, lost_steps(attempts), step_s) or 0.0
    return divide(
        [totals[rank] for rank in stepped],
        rotating_s=held_up.rotating_s,
        pauses=Pauses(
            saves_s=saves_s[saver] / num_steps,
            saver=stepped.index(saver),
            restarts_s=lost_s / num_steps,
        ),
    )


def _place(figures: RankFigures) -> stretches.Place:
    return stretches.Place(figures.rank, figures.start.node, figures.start.host)


def _merged(found: Sequence[StepTotals]) -> StepTotals:
    if len(found) == 1:
        return found[0]
    totals = StepTotals()
    for one in found:
        totals.merge(one)
    return totals


def _num_steps(attempts: dict[int, list[RankFigures]]) -> int:
    """Steps that this run did, those that were done again once."""
    done = 0
    for ranks in attempts.values():
        begun = [figures.first_step for figures in ranks if figures.first_step is not None]
        ended = [figures.last_step for figures in ranks if figures.last_step is not None]
        if begun and ended:
            done += max(0, max(ended) - min(begun))
    return done - lost_steps(attempts)


def _mean_step_s(ranks: Sequence[StepTotals]) -> float:
    return sum(totals.sum_s for totals in ranks) / sum(totals.steps for totals in ranks)
