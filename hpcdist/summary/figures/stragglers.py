"""Find the rank or node that holds the others up, by a test over stretches of steps: pure.

The steps that all ranks did are cut into equal stretches, and in each the ranks' own times (without
the wait for others, and without checkpoints) are compared. Stretches go by steps, never by the time
of day. A rank is named only where chance would hardly make it the slowest so often, and where what
it takes longer is worth it.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from operator import truediv
from statistics import median_low
from typing import NamedTuple

from hpcdist.base.statistics import mean
from hpcdist.base.text import listed
from hpcdist.summary.figures import timing
from hpcdist.summary.figures.rank import RankFigures
from hpcdist.summary.figures.timing import Spans
from hpcdist.summary.values import Straggler

_MOST_STRETCHES = 20
_CHANCE = 0.01
"""A rank that is the slowest so often by chance, in one of so many runs, is named wrongly."""
_LEAST_SHARE = 0.05
"""Least share of a step that counts: less is within what machines differ."""

_SAME_STEPS = 1e-6
_MANY_STEPS = 10.0
"""A window with a pause takes so many typical steps longer."""
_LEAST_PAUSES = 3
_LEAST_SIDE = 5
"""Windows before and after a change."""
_MOST = 0.9
_CHANGED = 1.2


class Place(NamedTuple):
    """The place of a rank: its node and host."""

    rank: int
    node: int | None
    host: str | None


class Stretch(NamedTuple):
    """Equal steps of every rank: mean seconds per step, by the ranks' places in a list."""

    steps: float
    own_s: list[float]
    waited_s: list[float]


def cut(ranks: Sequence[Spans]) -> list[Stretch]:
    """Return the stretches of one attempt, whose ranks all recorded steps; no more than the rank
    with the fewest windows has, without those that some rank lacks steps of."""
    first = max(spans.first_steps[0] for spans in ranks)
    last = min(spans.last_steps[-1] for spans in ranks)
    number = min(_MOST_STRETCHES, last - first, *(len(spans) for spans in ranks))
    if len(ranks) < 2 or number < 1:
        return []
    steps = (last - first) / number
    borders = [first + steps * place for place in range(number + 1)]
    # By rank, then by stretch: turned round.
    columns = (zip(*column, strict=True) for column in zip(*_paces(ranks, borders), strict=True))
    return [
        Stretch(steps, list(own_s), list(waited_s))
        for own_s, waited_s, are_whole in zip(*columns, strict=True)
        if all(are_whole)
    ]


def rotating_s(stretches: Sequence[Stretch]) -> float:
    """Return the seconds per step that the typical rank of each stretch waited for the slowest of
    it."""
    steps = sum(stretch.steps for stretch in stretches)
    if not steps:
        return 0.0
    waited_s = 0.0
    for stretch in stretches:
        own_s, waits_s = stretch.own_s, stretch.waited_s
        order = sorted(range(len(own_s)), key=own_s.__getitem__)
        typical, slowest = order[(len(order) - 1) // 2], order[-1]
        longer_s = own_s[slowest] - own_s[typical]
        wait_s = min(longer_s, max(0.0, waits_s[typical] - waits_s[slowest]))
        waited_s += stretch.steps * wait_s
    return waited_s / steps


def find_straggler(
    stretches: Sequence[Stretch], places: Sequence[Place], step_s: float
) -> Straggler | None:
    """Return the nodes all of whose ranks are slower than the others throughout, or else the ranks
    that are; None where there is none, or where what it takes longer is within what machines
    differ. `step_s`: mean time of a step."""
    by_node: dict[int | None, list[int]] = defaultdict(list)
    for index, place in enumerate(places):
        by_node[place.node].append(index)
    has_nodes = None not in by_node and len(by_node) > 1 and min(map(len, by_node.values())) > 1
    nodes = list(by_node.values()) if has_nodes else []
    everyone = list(range(len(places)))
    for groups in (nodes, [[index] for index in everyone]):
        for slow, wins in (_several_slow(stretches, groups, step_s), _slowest(stretches, groups)):
            own = [index for group in slow for index in groups[group]]
            if not own:
                continue
            # A node's ranks are compared with those of other nodes, all else with all.
            is_node = groups is nodes and len(slow) == 1
            others = [index for index in everyone if index not in own] if is_node else everyone
            longer_s = mean(
                mean(stretch.own_s[index] for index in own)
                - median_low(stretch.own_s[index] for index in others)
                for stretch in stretches
            )
            if longer_s >= _LEAST_SHARE * step_s:
                firsts = [places[groups[group][0]] for group in slow]
                numbers = [(place.node or 0) if groups is nodes else place.rank for place in firsts]
                return Straggler(
                    rank=None if groups is nodes else numbers[0],
                    node=firsts[0].node,
                    host=firsts[0].host if len(slow) == 1 else None,
                    others=numbers[1:],
                    longer_s=longer_s,
                    slowest_in=wins,
                    stretches=len(stretches),
                )
    return None


def _slowest(stretches: Sequence[Stretch], groups: Sequence[list[int]]) -> tuple[list[int], int]:
    """Return the group whose fastest rank is slower than all others, more often than by chance, and
    how often; none where there is none."""
    if not groups:
        return [], 0
    times = [[[s.own_s[index] for index in group] for group in groups] for s in stretches]
    least, most = ([list(map(pick, own)) for own in times] for pick in (min, max))
    sums = [sum(own) for own in zip(*least, strict=True)]
    own = sums.index(max(sums))
    wins = sum(
        low[own] > max(high[:own] + high[own + 1 :]) for low, high in zip(least, most, strict=True)
    )
    # By chance each wins a stretch of so many, and any of them could have been the one.
    chance = len(groups) * _tail(wins, len(stretches), 1 / len(groups))
    return ([own], wins) if chance < _CHANCE and 2 * wins > len(stretches) else ([], 0)


def _several_slow(
    stretches: Sequence[Stretch], groups: Sequence[list[int]], step_s: float
) -> tuple[list[int], int]:
    """Return two groups or more whose fastest ranks take longer than the typical group, by what
    counts, more often than by chance, and how often: half of the groups at most, as the rest says
    what is typical."""
    wins = [0] * len(groups)
    for stretch in stretches:
        least = [min(stretch.own_s[index] for index in group) for group in groups]
        limit_s = median_low(least) + _LEAST_SHARE * step_s if least else 0.0
        wins = [won + (own_s > limit_s) for won, own_s in zip(wins, least, strict=True)]
    num = len(stretches)
    slow = [place for place, won in enumerate(wins) if len(groups) * _tail(won, num, 0.5) < _CHANCE]
    return (slow, min(wins[place] for place in slow)) if len(slow) > 1 else ([], 0)


@functools.cache  # the same few numbers come again and again
def _tail(wins: int, num: int, share: float) -> float:
    """Return the probability of so many wins or more by chance (binomial)."""
    return sum(
        math.comb(num, won) * share**won * (1 - share) ** (num - won)
        for won in range(wins, num + 1)
    )


def _paces(
    ranks: Sequence[Spans], borders: Sequence[float]
) -> Iterator[tuple[list[float], list[float], list[bool]]]:
    """Yield each rank's own and waiting seconds per step between each two borders, and whether all
    steps between them are there."""
    steps = borders[1] - borders[0]
    before: Spans | None = None
    for spans in ranks:
        if before is None or not spans.is_in_step_with(before):
            at, done = timing.marks(spans, borders), spans.lengths()
            has_all = sum(done) == spans.last_steps[-1] - spans.first_steps[0]
            numbers = _between(at, done)
            is_whole = [has_all or abs(number - steps) < _SAME_STEPS for number in numbers]
        yield (
            [time_s / steps for time_s in _between(at, spans.own_s())],
            [time_s / steps for time_s in _between(at, spans.waited_s)],
            is_whole,
        )
        before = spans


def _between(marks: Sequence[tuple[int, float]], values: Sequence[float]) -> list[float]:
    """Return the part of `values`, one for each span, that lies between each two marks."""
    return [end - begin for begin, end in pairwise(timing.read(values, marks))]


def pauses_of(ranks: Sequence[RankFigures]) -> list[str]:
    """Return a sentence on ranks whose steps rarely take many times as long as they typically do,
    apart from checkpoints that are known and from waiting for others."""
    found: dict[str, list[int]] = defaultdict(list)
    for rank in ranks:
        spans, pauses = rank.spans, list[tuple[int, float]]()
        lengths, own_s = spans.lengths(), spans.own_s()
        typical_s = median_low(map(truediv, own_s, lengths)) if own_s else 0.0
        # Nearly all ranks have none, and a loop over all windows takes time.
        if not own_s or max(own_s) <= (min(lengths) + _MANY_STEPS) * typical_s:
            continue
        for step, steps, time_s in zip(spans.last_steps, lengths, own_s, strict=True):
            if (longer_s := time_s - steps * typical_s) > _MANY_STEPS * typical_s > 0:
                pauses.append((step, longer_s))
        if len(pauses) < _LEAST_PAUSES or 2 * len(pauses) > len(spans):
            continue
        every = (pauses[-1][0] - pauses[0][0]) / (len(pauses) - 1)
        pause_s = mean(longer_s for _, longer_s in pauses)
        if len(pauses) * pause_s >= _LEAST_SHARE * sum(spans.wall_s):
            text = f"{float(f'{pause_s:.2g}'):g} s every {float(f'{every:.2g}'):g} steps"
            found[text].append(rank.rank)
    return [
        f"{listed(own)} {'pauses' if len(own) == 1 else 'pause'} about {text} (saving, or testing?)"
        for text, own in found.items()
    ]


def change_of(ranks: Sequence[RankFigures]) -> list[str]:
    """Return a sentence where the steps of the lowest rank became longer or shorter for good, at
    the step at which the sum of differences from the mean is largest (a CUSUM chart)."""
    if not ranks or len(spans := ranks[0].spans) < 2 * _LEAST_SIDE:
        return []
    times_s = list(map(truediv, spans.stepped_s, spans.lengths()))
    middle_s = mean(times_s)
    sums = list(accumulate(time_s - middle_s for time_s in times_s))
    place = max(range(len(sums)), key=lambda index: abs(sums[index])) + 1
    sides = times_s[:place], times_s[place:]
    if min(map(len, sides)) < _LEAST_SIDE:
        return []
    before_s, after_s = map(median_low, sides)
    # Nearly all steps of one side are longer than nearly all of the other.
    (slow, fast) = sides if before_s > after_s else sides[::-1]
    limit_s = (before_s + after_s) / 2
    beyond = sum(time_s > limit_s for time_s in slow) + sum(time_s < limit_s for time_s in fast)
    times = after_s / before_s if before_s else 1.0
    if beyond < _MOST * len(times_s) or 1 / _CHANGED < times < _CHANGED:
        return []
    return [f"from step {spans.last_steps[place - 1]:,} on, steps took {times:.2f} times as long"]
