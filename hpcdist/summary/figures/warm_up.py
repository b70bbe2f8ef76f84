"""Where a rank's warm-up ends, found in its step times: pure.

By MSER (K. P. White, "An effective truncation heuristic for bias reduction in simulation output",
Simulation 69, 1997): leave out as many windows as make the standard error of the mean of the others
smallest, at most half of all. Leaving out a window that is unlike the others makes their spread
smaller; leaving out one that is like them only makes them fewer. Windows of steps are the means of
batches that the method is mostly given.

The first window always is warm-up, however few there are: memory is allocated and kernels are
chosen in the first steps. More is only where those after the first are slower than the rest by more
than chance makes of windows that are alike: else every run would lose its slowest window where that
comes early. What was faster than the rest is no warm-up: where a run slows down, later steps are
not more typical than earlier ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hpcdist.base.statistics import quantile

_MOST_SHARE = 2
"""At most one in so many windows is warm-up."""
_FEWEST_LEFT = 3
"""Windows whose spread says something."""
_CONFIDENCE = 0.99


def warm_up_length(times_s: Sequence[float]) -> int:
    """How many of the windows with these mean step times are warm-up; never all of them."""
    num = len(times_s)
    most = min(num // _MOST_SHARE, num - _FEWEST_LEFT)
    if most < 2:
        return min(1, max(0, num - 1))
    found = _least_error(times_s, most)
    return found if found > 1 and _is_slower(times_s[1:found], times_s[found:]) else 1


def _least_error(times_s: Sequence[float], most: int) -> int:
    """How many to leave out, from 1 to `most`, for the smallest error of the others' mean."""
    shift_s = times_s[-1]  # so that no digits are lost where all are much alike
    slack = (1e-9 * shift_s) ** 2  # what rounding makes of no difference
    rest = [time_s - shift_s for time_s in times_s[most + 1 :]]
    total, squares = sum(rest), sum([value * value for value in rest])
    num = len(rest)
    found, least = most, math.inf
    for index in range(most, 0, -1):
        value = times_s[index] - shift_s
        total += value
        squares += value * value
        num += 1
        error = (squares - total * total / num) / (num * num)
        if error <= least + slack:  # of equal ones the fewest
            found, least = index, error
    return found


def _is_slower(early_s: Sequence[float], rest_s: Sequence[float]) -> bool:
    """Beyond chance, were both of one kind."""
    mean_s = sum(rest_s) / len(rest_s)
    more_s = sum(early_s) / len(early_s) - mean_s
    if more_s <= 0:
        return False
    squares = sum([(time_s - mean_s) ** 2 for time_s in rest_s])  # stdev() takes ten times as long
    freedom = len(rest_s) - 1
    error_s = math.sqrt(squares / freedom * (1 / len(early_s) + 1 / len(rest_s)))
    return more_s > quantile(_CONFIDENCE, freedom) * error_s
