"""What the runs came to against the value of a setting, or of two."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hpcdist.base.plotting import LINES, error_bars, finish, label, new_figure, plain_log_ticks
from hpcdist.base.statistics import Measure
from hpcdist.base.text import format_number
from hpcdist.summary.report.best import Value

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LOG_FROM = 10.0
"""Values that differ by such a factor stand on a logarithmic axis."""
_KEYS_OF_GRID = 2


def draw_values(values: Sequence[Value]) -> Figure:
    """Draw accuracy, or else loss, with its interval against the values of one setting; those of
    two settings as a grid."""
    keys = list(values[0].run.differs_in)
    results = [value.result[0] or Measure(mean=math.nan) for value in values]
    what = "test accuracy (%)" if values[0].result[1] else "test loss"
    if len(keys) == _KEYS_OF_GRID:
        return _draw_grid(values, results, keys, what)
    texts = [value.run.differs_in[keys[0]] for value in values]
    numbers = [_number(text) for text in texts]
    known = [number for number in numbers if number is not None]
    is_numeric = len(keys) == 1 and len(known) == len(texts)
    places = known if is_numeric else [float(place) for place in range(len(values))]
    order = sorted(range(len(values)), key=places.__getitem__)
    figure = new_figure(7, 4)
    axes = figure.subplots()
    ordered = [results[place] for place in order]
    axes.errorbar(
        [places[place] for place in order],
        [result.mean for result in ordered],
        yerr=error_bars(ordered),
        capsize=4,
        **LINES[0] | {"linestyle": "-" if is_numeric else "none"},
    )
    if not is_numeric:
        axes.set_xticks(places, [label(value.run.settings_text) for value in values])
    elif min(known) > 0 and max(known) >= _LOG_FROM * min(known):
        axes.set_xscale("log")
        plain_log_ticks(axes.xaxis)
    has_intervals = any(result.interval for result in results)
    finish(
        axes,
        x=label(keys[0]) if len(keys) == 1 else "",
        y=what + (", mean ± 95 % interval" if has_intervals else ""),
    )
    return figure


def _draw_grid(
    values: Sequence[Value], results: Sequence[Measure], keys: Sequence[str], what: str
) -> Figure:
    import numpy as np

    sides = [
        sorted(
            {value.run.differs_in[key] for value in values},
            key=lambda text: (_number(text) is None, _number(text) or 0.0, text),
        )
        for key in keys
    ]
    means = np.full((len(sides[0]), len(sides[1])), np.nan)
    figure = new_figure(2.5 + len(sides[1]), 1.8 + 0.6 * len(sides[0]))
    axes = figure.subplots()
    for value, result in zip(values, results, strict=True):
        row, column = (
            side.index(value.run.differs_in[key]) for side, key in zip(sides, keys, strict=True)
        )
        means[row, column] = result.mean
        text = format_number(result.mean, 2)
        box = {"facecolor": "white", "alpha": 0.7, "linewidth": 0}
        axes.annotate(text, (column, row), ha="center", va="center", color="black", bbox=box)
    image = axes.imshow(means, aspect="auto", cmap="cividis")
    axes.set_xticks(range(len(sides[1])), list(map(label, sides[1])))
    axes.set_yticks(range(len(sides[0])), list(map(label, sides[0])))
    axes.set_xlabel(label(keys[1]))
    axes.set_ylabel(label(keys[0]))
    figure.colorbar(image, ax=axes).set_label(what)
    return figure


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
