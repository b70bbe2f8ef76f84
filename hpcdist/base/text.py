"""Values as text: numbers with sensible digits, sizes with units, names nearest to a misspelt one,
and the words of others made harmless.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpcdist.base.statistics import Measure


def one_line(text: str) -> str:
    """Return text on one line, with control characters escaped: they could act on the terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def harmless(text: str) -> str:
    """Return text, which may have several lines, with control characters escaped."""
    return "\n".join(map(one_line, text.split("\n")))


def listed(numbers: Sequence[int], noun: str = "rank") -> str:
    """Return numbers for a sentence: `rank 1`, `ranks 0, 2 and 3`; four in a row are a range."""
    if len(numbers) == 1:
        return f"{noun} {numbers[0]}"
    parts = _ranges(sorted(numbers), at_least=4)
    whole = ", ".join(parts[:-1]) + f" and {parts[-1]}" if len(parts) > 1 else parts[0]
    return f"{noun}s {whole}"


def format_ranges(numbers: Sequence[int]) -> str:
    """Return `1-3, 7` for 1, 2, 3, 7."""
    return ", ".join(_ranges(numbers, at_least=2))


def _ranges(numbers: Sequence[int], *, at_least: int) -> list[str]:
    """Return the numbers as text, so many or more in a row as a range."""
    texts: list[str] = []
    for _, row in itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
        members = [number for _, number in row]
        is_range = len(members) >= at_least
        texts += [f"{members[0]}-{members[-1]}"] if is_range else map(str, members)
    return texts


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most like `name`; None where none is like it."""
    import difflib

    matches = difflib.get_close_matches(name, list(known), n=1)
    return matches[0] if matches else None


def nearest_first(name: str, known: Iterable[str]) -> list[str]:
    """Return all known names, the one most like `name` first."""
    import difflib

    like = {other: difflib.SequenceMatcher(a=name, b=other).ratio() for other in known}
    return sorted(like, key=lambda other: (-like[other], other))


UNDEFINED = "-"

_LOPSIDED = 0.2
"""Wider intervals reach farther up than down: their ends are shown."""

_TIME_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def shown(text: str) -> str:
    """Text of others on one line, without codes that would act on the terminal."""
    return one_line(" ".join(text.split()))


def number_of(number: int, noun: str) -> str:
    """`1 rank`, `2 ranks`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def first_few(names: Iterable[str], most: int = 5) -> str:
    """Return `a, b, c, d, e and 2 more`, each once."""
    different = list(dict.fromkeys(names))
    more = f" and {len(different) - most} more" if len(different) > most else ""
    return ", ".join(map(shown, different[:most])) + more


def decimals_for(values: Sequence[float]) -> int:
    """Decimals for a column: three digits of the smallest value, at most four of the largest."""
    digits = [math.floor(math.log10(value)) for value in values if value > 0] or [0]
    return max(0, min(2 - min(digits), 3 - max(digits)))


def time_unit(time_s: float) -> tuple[float, str]:
    """Return the unit, in seconds and by name, in which a time is at least 1."""
    return next((unit for unit in _TIME_UNITS if time_s >= unit[0]), _TIME_UNITS[-1])


def format_time(time_s: float) -> str:
    """`12.3 ms`: three digits, with the unit that suits it; for sentences."""
    unit_s, unit = time_unit(time_s)
    value = time_s / unit_s
    return f"{format_number(value, decimals_for([value]))} {unit}"


def format_number(value: float | None, decimals: int) -> str:
    """A number, or a dash where it is not known; no zero is negative."""
    return UNDEFINED if value is None else f"{round(value, decimals) + 0.0:,.{decimals}f}"


_NOT_KNOWN = 100
"""Times the mean from which on the end of an interval says nothing."""


def interval_text(measure: Measure, decimals: int) -> str:
    """`1.83 (1.10 to 2.90)`; the mean alone where no interval is known, or none is to be seen."""
    text, ends = format_number(measure.mean, decimals), measure.interval
    if ends is None:
        return text
    if ends.high > _NOT_KNOWN * abs(measure.mean) > 0:
        return f"{text} (interval not known)"
    # Half of it lies below zero only because it is as long to both sides.
    least = max(0.0, ends.low) if measure.mean > 0 else ends.low
    low, high = (format_number(end, decimals) for end in (least, ends.high))
    return text if low == high == text else f"{text} ({low} to {high})"


def spread_text(measure: Measure, decimals: int, *, is_symmetric: bool = False) -> str:
    """`1.83 ± 0.04`, half the interval; `1.8 (1.1 to 2.9)` where a wide one is lopsided."""
    text = format_number(measure.mean, decimals)
    if measure.interval is None:
        return text
    half = (measure.interval.high - measure.interval.low) / 2
    if is_symmetric or half <= _LOPSIDED * measure.mean:
        return f"{text} ± {format_number(half, decimals)}"
    return interval_text(measure, decimals)


def format_percent(share: float | None, decimals: int = 0) -> str:
    """A share in percent, without the sign: units stand in headers."""
    return format_number(None if share is None else 100 * share, decimals)


def whole_percents(shares: Mapping[str, float]) -> dict[str, int]:
    """Return shares in whole percent that add up to their sum in whole percent.

    The shares with the largest rests are rounded up, so that none is off by 1 or more.
    """
    percents = {name: math.floor(100 * share) for name, share in shares.items()}
    missing = round(100 * math.fsum(shares.values())) - sum(percents.values())
    for name in sorted(shares, key=lambda name: percents[name] - 100 * shares[name])[:missing]:
        percents[name] += 1
    return percents


_UNITS = ("bytes", "kB", "MB", "GB", "TB")
_BINARY_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def show_bytes(number: float) -> str:
    """`512 bytes`, `1.5 MB`: in powers of 1000, as disks are sold and limits are given."""
    unit = 0
    while number >= 999.5 and unit < len(_UNITS) - 1:
        number /= 1000
        unit += 1
    decimals = 0 if unit == 0 or number >= 100 else 1
    return f"{number:.{decimals}f}".removesuffix(".0") + f" {_UNITS[unit]}"


def show_binary(number: int) -> str:
    """`1 KiB`, `256 MiB`: in powers of 1024 where it is a whole number of them."""
    factors = (number & -number).bit_length() - 1  # of two
    unit = max(0, min(factors // 10, len(_BINARY_UNITS) - 1))
    return f"{number >> 10 * unit:,} {_BINARY_UNITS[unit]}"
