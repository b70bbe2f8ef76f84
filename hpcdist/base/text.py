"""Values as text: numbers with sensible digits, and the words of others made harmless."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hpcdist.base.estimates import Estimate
from hpcdist.base.printable import one_line

UNDEFINED = "-"

_LOPSIDED = 0.2
"""Wider intervals reach farther up than down: they are told by their ends."""

_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def shown(text: str) -> str:
    """Text of others on one line, without codes that would act on the terminal."""
    return one_line(" ".join(text.split()))


def number_of(number: int, noun: str) -> str:
    """`1 rank`, `2 ranks`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def format_ranges(numbers: Sequence[int]) -> str:
    """`1-3, 7` for 1, 2, 3, 7."""
    known = set(numbers)
    starts = [number for number in numbers if number - 1 not in known]
    ends = [number for number in numbers if number + 1 not in known]
    pairs = zip(starts, ends, strict=True)
    return ", ".join(str(start) if start == end else f"{start}-{end}" for start, end in pairs)


def decimals_for(values: Sequence[float]) -> int:
    """Decimals for a column: three digits of the smallest value, at most four of the largest."""
    digits = [math.floor(math.log10(value)) for value in values if value > 0] or [0]
    return max(0, min(2 - min(digits), 3 - max(digits)))


def column_decimals(values: Sequence[float]) -> int:
    """Decimals for a column of large and small values: at least two digits of the smallest."""
    least = min((value for value in values if value > 0), default=1.0)
    return max(decimals_for(values), 1 - math.floor(math.log10(least)))


def time_unit(time_s: float) -> tuple[float, str]:
    """The unit, in seconds and by name, in which a time is at least 1."""
    return next((unit for unit in _TIME_UNITS if time_s >= unit[0]), _TIME_UNITS[-1])


def format_time(time_s: float) -> str:
    """`12.3 ms`: three digits, with the unit that suits it; for sentences."""
    unit_s, unit = time_unit(time_s)
    value = time_s / unit_s
    return f"{format_number(value, decimals_for([value]))} {unit}"


def format_number(value: float | None, decimals: int) -> str:
    """A number, or a dash where it is not known; no zero is negative."""
    return UNDEFINED if value is None else f"{round(value, decimals) + 0.0:,.{decimals}f}"


def format_mean_sd(mean: float, sd: float | None, decimals: int) -> str:
    """`12.3 ± 0.4`; the mean alone where the sd is not known."""
    spread = "" if sd is None else f" ± {format_number(sd, decimals)}"
    return format_number(mean, decimals) + spread


def spread_text(estimate: Estimate, decimals: int) -> str:
    """`1.83 ± 0.04`, half the interval; `1.8 (1.1 to 2.9)` where that is wide."""
    text = format_number(estimate.mean, decimals)
    if estimate.interval is None:
        return text
    half = (estimate.interval.high - estimate.interval.low) / 2
    if half <= _LOPSIDED * estimate.mean:
        return f"{text} ± {format_number(half, decimals)}"
    low, high = (
        format_number(end, decimals) for end in (estimate.interval.low, estimate.interval.high)
    )
    return f"{text} ({low} to {high})"


def format_percent(share: float | None, decimals: int = 0) -> str:
    """A share in percent, without the sign: units stand in headers."""
    return format_number(None if share is None else 100 * share, decimals)


def whole_percents(shares: Sequence[float]) -> list[int]:
    """Shares in whole percent that add up to their sum in whole percent.

    Those whose rest weighs most are rounded up, so that none is off by 1 or more.
    """
    percents = [math.floor(100 * share) for share in shares]
    missing = round(100 * math.fsum(shares)) - sum(percents)
    by_rest = sorted(range(len(shares)), key=lambda i: percents[i] - 100 * shares[i])
    for place in by_rest[:missing]:
        percents[place] += 1
    return percents


def format_integer(value: int | None) -> str:
    """A count, or a dash where it is not known."""
    return UNDEFINED if value is None else f"{value:,}"
