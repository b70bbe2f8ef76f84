"""Sizes as people read them."""

from __future__ import annotations

_UNITS = ("bytes", "kB", "MB", "GB", "TB")
_BINARY_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_AGES = ((86400.0, "day"), (3600.0, "hour"), (60.0, "minute"), (1.0, "second"))


def show_bytes(number: float) -> str:
    """`512 bytes`, `1.5 MB`: in powers of 1000, as disks are sold and limits are given."""
    unit = 0
    while number >= 999.5 and unit < len(_UNITS) - 1:
        number /= 1000
        unit += 1
    return f"{number:.0f} {_UNITS[unit]}" if unit == 0 or number >= 100 else _short(number, unit)


def _short(number: float, unit: int) -> str:
    return f"{number:.1f}".removesuffix(".0") + f" {_UNITS[unit]}"


def show_age(age_s: float) -> str:
    """`3 days`, `5 hours`, `1 minute`: the largest unit that it has one of, rounded down."""
    unit_s, name = next((unit for unit in _AGES if age_s >= unit[0]), _AGES[-1])
    number = max(0, int(age_s / unit_s))
    return f"{number:,} {name}" if number == 1 else f"{number:,} {name}s"


def show_binary(number: int) -> str:
    """`1 KiB`, `256 MiB`: in powers of 1024 where it is a whole number of them, as sizes of
    messages are chosen."""
    unit = 0
    while number and number % 1024 == 0 and unit < len(_BINARY_UNITS) - 1:
        number //= 1024
        unit += 1
    return f"{number:,} {_BINARY_UNITS[unit]}"


def show_percent(share: float) -> str:
    """`41 %` of 0.41."""
    return f"{100 * share:.0f} %"


def show_time(time_s: float) -> str:
    """`12.3 ms`: three digits, in the unit in which it is at least 1; for sentences."""
    unit_s, unit = next((unit for unit in _TIMES if time_s >= unit[0]), _TIMES[-1])
    value = time_s / unit_s
    return f"{value:.3g} {unit}" if value < 1e3 else f"{value:,.0f} {unit}"


def show_mean_sd(mean_s: float, sd_s: float | None) -> str:
    """`33.0 ± 0.4 ms`: three digits of the mean, and the unit once; the mean alone without sd."""
    if sd_s is None:
        return show_time(mean_s)
    unit_s, unit = next((unit for unit in _TIMES if mean_s >= unit[0]), _TIMES[-1])
    mean = mean_s / unit_s
    decimals = 0 if mean >= 100 else 1 if mean >= 10 else 2
    return f"{mean:,.{decimals}f} ± {sd_s / unit_s:,.{decimals}f} {unit}"


_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
