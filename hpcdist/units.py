"""Sizes as people read them."""

from __future__ import annotations

_UNITS = ("bytes", "kB", "MB", "GB", "TB")


def show_bytes(number: float) -> str:
    """`512 bytes`, `1.5 MB`: in powers of 1000, as disks are sold and limits are given."""
    unit = 0
    while number >= 999.5 and unit < len(_UNITS) - 1:
        number /= 1000
        unit += 1
    return f"{number:.0f} {_UNITS[unit]}" if unit == 0 or number >= 100 else _short(number, unit)


def _short(number: float, unit: int) -> str:
    return f"{number:.1f}".removesuffix(".0") + f" {_UNITS[unit]}"
