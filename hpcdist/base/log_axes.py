"""Ticks of a logarithmic axis that are read as numbers, however little or much it spans."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axis import Axis

_FEW_DECADES = 100.0


def plain_log_ticks(axis: Axis) -> None:
    """Plain numbers, and enough of them: by default an axis within a decade has none, and others
    have powers of ten. To be called when all is drawn."""
    from matplotlib.ticker import LogLocator, NullLocator

    low, high = axis.get_data_interval()
    subs = (1.0, 2.0, 5.0) if high < _FEW_DECADES * low else (1.0,)
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter("{x:,.10g}")
    axis.set_minor_locator(NullLocator())
