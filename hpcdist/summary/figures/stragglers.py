"""Find the rank or node that holds the others up, by a test over stretches of steps: pure.

The steps that all ranks did are cut into equal stretches, and in each the ranks' own times (without
the wait for others, and without checkpoints) are compared. Stretches go by steps, never by the time
of day. A rank is named only where chance would hardly make it the slowest so often, and where what
it takes longer is worth it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from operator import sub
from typing import NamedTuple

from hpcdist.base.statistics import lower_median, mean
from hpcdist.summary.figures.timing import Spans
from hpcdist.summary.values import Straggler

_MOST_STRETCHES = 20
_CHANCE = 0.01
"""A rank that is the slowest so often by chance, in one of so many runs, is named wrongly."""
_LEAST_SHARE = 0.05
"""Of a step: less is within what machines differ."""

_SAME_STEPS = 1e-6


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
    """The stretches of one attempt, whose ranks all recorded steps; no more than the rank with the
    fewest windows has, without those that some rank lacks steps of."""
    first = max(spans.first_steps[0] for spans in ranks)
    last = min(spans.last_steps[-1] for spans in ranks)
    number = min(_MOST_STRETCHES, last - first, *(len(spans) for spans in ranks))
    if len(ranks) < 2 or number < 1:
        return []
    steps = (last - first) / number
    borders = [first + steps * place for place in range(number + 1)]
    own, waited, are_whole = zip(*_paces(ranks, borders), strict=True)
    return [
        Stretch(steps, list(own_s), list(waited_s))
        for own_s, waited_s, whole in zip(
            zip(*own, strict=True),
            zip(*waited, strict=True),
            zip(*are_whole, strict=True),
            strict=True,
        )
        if all(whole)
    ]


def rotating_s(stretches: Sequence[Stretch]) -> float:
    """Return the seconds per step that the typical rank of each stretch waited for the slowest of
    it."""
    steps = sum(stretch.steps for stretch in stretches)
    if not steps:
        return 0.0
    return sum(stretch.steps * _straggling_s(stretch) for stretch in stretches) / steps


def find_straggler(
    stretches: Sequence[Stretch], places: Sequence[Place], step_s: float
) -> Straggler | None:
    """The rank that is the slowest throughout, or the node whose ranks all are; None where no one
    is. `step_s`: mean time of a step."""
    if not stretches:
        return None
    return _find_node(stretches, places, step_s) or _find_rank(stretches, places, step_s)


def _paces(
    ranks: Sequence[Spans], borders: Sequence[float]
) -> Iterator[tuple[list[float], list[float], list[bool]]]:
    """Each rank's own and waiting seconds per step between each two borders, and whether all steps
    between them are there."""
    steps = borders[1] - borders[0]
    before: Spans | None = None
    for spans in ranks:
        if before is None or not spans.is_in_step_with(before):
            marks = _marks(spans, borders)
            is_whole = _are_whole(spans, marks, steps)
        own_s = list(map(sub, map(sub, spans.stepped_s, spans.waited_s), spans.saved_s))
        yield (
            [time_s / steps for time_s in _between(marks, own_s)],
            [time_s / steps for time_s in _between(marks, spans.waited_s)],
            is_whole,
        )
        before = spans


def _are_whole(spans: Spans, marks: Sequence[tuple[int, float]], steps: float) -> list[bool]:
    """True between each two marks where so many steps are there."""
    done = list(map(sub, spans.last_steps, spans.first_steps))
    if sum(done) == spans.last_steps[-1] - spans.first_steps[0]:
        return [True] * (len(marks) - 1)
    return [abs(num_steps - steps) < _SAME_STEPS for num_steps in _between(marks, done)]


def _marks(spans: Spans, borders: Sequence[float]) -> list[tuple[int, float]]:
    """The span that each border lies in, and how much of it lies before; its steps are equal."""
    firsts, lasts = spans.first_steps, spans.last_steps
    marks = []
    for border in borders:
        place = bisect_left(lasts, border, 0, len(lasts) - 1)
        part = (border - firsts[place]) / (lasts[place] - firsts[place])
        marks.append((place, part if 0 < part < 1 else float(part >= 1)))
    return marks


def _between(marks: Sequence[tuple[int, float]], values: Sequence[float]) -> list[float]:
    """The part of `values`, one for each span, that lies between each two marks."""
    before = [0.0, *accumulate(values)]
    at = [before[place] + part * values[place] for place, part in marks]
    return [end - begin for begin, end in pairwise(at)]


def _straggling_s(stretch: Stretch) -> float:
    own_s, waited_s = stretch.own_s, stretch.waited_s
    order = sorted(range(len(own_s)), key=own_s.__getitem__)
    typical, slowest = order[(len(order) - 1) // 2], order[-1]
    longer_s = own_s[slowest] - own_s[typical]
    return min(longer_s, max(0.0, waited_s[typical] - waited_s[slowest]))


def _find_rank(
    stretches: Sequence[Stretch], places: Sequence[Place], step_s: float
) -> Straggler | None:
    by_stretch = [dict(enumerate(stretch.own_s)) for stretch in stretches]
    slowest = _slowest(by_stretch, by_stretch)
    if slowest is None:
        return None
    longer_s = mean([_longer(stretch.own_s, slowest.key) for stretch in stretches])
    if longer_s < _LEAST_SHARE * step_s:
        return None
    place = places[slowest.key]
    return Straggler(
        rank=place.rank,
        node=place.node,
        host=place.host,
        longer_s=longer_s,
        slowest_in=slowest.num_slowest,
        stretches=len(stretches),
    )


def _find_node(
    stretches: Sequence[Stretch], places: Sequence[Place], step_s: float
) -> Straggler | None:
    """Every rank of a node is slower than every rank of all others."""
    ranks_of: dict[int, list[int]] = defaultdict(list)
    for index, place in enumerate(places):
        if place.node is None:
            return None
        ranks_of[place.node].append(index)
    if len(ranks_of) < 2 or min(map(len, ranks_of.values())) < 2:
        return None
    fastest = [_per_node(stretch, ranks_of, min) for stretch in stretches]
    slowest = [_per_node(stretch, ranks_of, max) for stretch in stretches]
    held_up_most = _slowest(fastest, slowest)
    if held_up_most is None:
        return None
    others = [
        index for node, ranks in ranks_of.items() if node != held_up_most.key for index in ranks
    ]
    longer_s = mean(
        [
            mean([stretch.own_s[index] for index in ranks_of[held_up_most.key]])
            - lower_median([stretch.own_s[index] for index in others])
            for stretch in stretches
        ]
    )
    if longer_s < _LEAST_SHARE * step_s:
        return None
    return Straggler(
        rank=None,
        node=held_up_most.key,
        host=places[ranks_of[held_up_most.key][0]].host,
        longer_s=longer_s,
        slowest_in=held_up_most.num_slowest,
        stretches=len(stretches),
    )


class _Slowest(NamedTuple):
    key: int
    num_slowest: int


def _slowest(
    least: Sequence[Mapping[int, float]], most: Sequence[Mapping[int, float]]
) -> _Slowest | None:
    """The one whose least is above the most of all others, more often than by chance."""
    keys = list(least[0])
    key = max(keys, key=lambda one: sum(stretch[one] for stretch in least))
    wins = sum(
        low[key] > max(high[other] for other in keys if other != key)
        for low, high in zip(least, most, strict=True)
    )
    # Any of them could have been the one.
    chance = len(keys) * _tail(len(least), wins, 1 / len(keys))
    return _Slowest(key, wins) if chance < _CHANCE and 2 * wins > len(least) else None


def _tail(number: int, least: int, chance: float) -> float:
    """Probability of `least` or more of `number` by chance (binomial)."""
    return sum(
        math.comb(number, wins) * chance**wins * (1 - chance) ** (number - wins)
        for wins in range(least, number + 1)
    )


def _per_node(
    stretch: Stretch, ranks_of: Mapping[int, Sequence[int]], pick: Callable[[list[float]], float]
) -> dict[int, float]:
    return {
        node: pick([stretch.own_s[index] for index in ranks]) for node, ranks in ranks_of.items()
    }


def _longer(own_s: Sequence[float], index: int) -> float:
    return own_s[index] - lower_median(own_s)
