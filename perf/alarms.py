"""False alarms and detections of the summary, over generated runs whose truth is known.

A family is what one question needs: a baseline and some variants with repeats, or the ranks of a
run. Runs vary by a spread from one to the next; windows of a run resemble their neighbours.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from sidebyside import parse_options

from hpcdist.base import statistics
from hpcdist.summary.figures.stragglers import Place, Stretch, find_straggler
from hpcdist.summary.figures.timing import warm_up_length

_SPREAD = 0.02
_WINDOWS = 100

Alarms = Callable[[random.Random, float], bool]
"""Returns whether a family says that there is something, from random numbers and the true
difference, which is 0 for false alarms."""


def variants(num: int, repeats: int, first_spread: float = _SPREAD) -> Alarms:
    """The last of some variants is slower than the first one, or any is said to be."""
    spreads = [first_spread, *[_SPREAD] * (num - 1)]

    def alarms(draw: random.Random, difference: float) -> bool:
        rates = [[draw.gauss(1, spread) for _ in range(repeats)] for spread in spreads]
        rates[-1] = [rate / (1 + difference) for rate in rates[-1]]
        first, *others = map(statistics.measure, rates)
        judged = [
            statistics.differs(ratio)
            for ratio in statistics.ratios([(other, first) for other in others], pooled=True)
        ]
        return bool(judged[-1]) if difference else any(judged)

    return alarms


def single_runs(correlation: float) -> Alarms:
    """Two runs without repeats, by their windows."""

    def alarms(draw: random.Random, difference: float) -> bool:
        sides = []
        for slower in (1.0, 1 + difference):
            deviation, rates = draw.gauss(0, 1), []
            for _ in range(_WINDOWS):
                fresh = draw.gauss(0, (1 - correlation**2) ** 0.5)
                deviation = correlation * deviation + fresh
                rates.append((1 / slower * (1 + _SPREAD * deviation), 1.0))
            blocks = [rate for rate, _ in statistics.in_blocks(rates)]
            mean, sd = statistics.mean(blocks), statistics.measure(blocks).sd
            own = statistics.count_independent(blocks)
            side = statistics.spread_measure(mean, sd, len(blocks), over="windows", independent=own)
            sides.append(side)
        (ratio,) = statistics.ratios([(sides[1], sides[0])])
        return bool(statistics.differs(ratio))

    return alarms


def ranks(num: int) -> Alarms:
    """One rank is slower than the others, and it alone is named; or any is."""

    def alarms(draw: random.Random, difference: float) -> bool:
        slow = draw.randrange(num)
        stretches = [
            [draw.gauss(1 + difference * (rank == slow), _SPREAD) for rank in range(num)]
            for _ in range(20)
        ]
        places = [Place(rank, 0, "n0") for rank in range(num)]
        times = [Stretch(10, own_s, [0.0] * num) for own_s in stretches]
        found = find_straggler(times, places, 1.0)
        is_right = not difference or (found and (found.rank, found.others) == (slow, []))
        return found is not None and bool(is_right)

    return alarms


def warm_up(draw: random.Random, difference: float) -> bool:
    """More than the first window is left out; with a difference, all of eight slower ones are."""
    times_s = [draw.gauss(1 + difference * (w < 8), _SPREAD) for w in range(_WINDOWS)]
    length = warm_up_length(times_s)
    return length >= 8 if difference else length > 1


CASES: dict[str, Alarms] = {
    "2 variants, 3 repeats": variants(2, 3),
    "4 variants, 3 repeats": variants(4, 3),
    "4 variants, 5 repeats": variants(4, 5),
    "4 variants, 3 repeats, of which the first spreads by 6 %": variants(4, 3, 0.06),
    "4 variants, 5 repeats, of which the first spreads by 6 %": variants(4, 5, 0.06),
    "2 single runs": single_runs(0.0),
    "2 single runs, windows correlated by 0.9": single_runs(0.9),
    "8 ranks": ranks(8),
    "warm-up of 8 windows": warm_up,
}


def main() -> None:
    num = parse_options(__doc__, families=60).families
    print("| what is compared | false alarms (%) | 10 % is found (%) |\n|---|--:|--:|")
    for name, alarms in CASES.items():
        counts = [
            sum(alarms(random.Random(seed), difference) for seed in range(num))
            for difference in (0.0, 0.1)
        ]
        print(f"| {name} |", *(f"{100 * n / num:.1f} |" for n in counts))


if __name__ == "__main__":
    main()
