"""Drawing with matplotlib: how all pictures look, and how a figure becomes a file, or a part of a
page.

Colours are those of Okabe and Ito, which people with any colour vision can tell apart. Markers,
lines and hatches repeat them for prints without colours. matplotlib is imported where it is used,
and no window system is.
"""

from __future__ import annotations

import io
import re
import textwrap
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from hpcdist.base.statistics import Interval, Measure
from hpcdist.base.text import shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

_INKS = (
    *("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor"),
    *("xtick.color", "ytick.color"),
)
_LONGEST_LABEL = 48
_DPI = 150
_TITLE_WIDTH = 12
"""Characters of a title for each inch."""

INK = "#010203"
"""A colour that nothing else has, black to the eye: a page puts its own in its place."""
_SVG_DPI = 72
_BETWEEN_ELEMENTS = re.compile(rb"<metadata>.*?</metadata>|(?<=>)\s*\n\s*(?=<)", re.DOTALL)

PLAIN_NUMBERS = "{x:,.10g}"
"""Format of the ticks of logarithmic axes, which are powers of ten by default."""

LINES: tuple[dict[str, Any], ...] = (
    {"color": "#0072B2", "marker": "o", "linestyle": "-"},
    {"color": "#D55E00", "marker": "s", "linestyle": "--"},
    {"color": "#009E73", "marker": "^", "linestyle": "-."},
    {"color": "#CC79A7", "marker": "D", "linestyle": ":"},
    {"color": "#56B4E9", "marker": "v", "linestyle": "-"},
    {"color": "#E69F00", "marker": "P", "linestyle": "--"},
    {"color": "#888888", "marker": "X", "linestyle": "-."},
)
"""A style for each of several things; more than these cannot be told apart."""


class Picture(NamedTuple):
    """A picture that can be drawn."""

    name: str
    """Name of its file, without an ending."""
    title: str
    description: str
    """Text for readers who cannot see it, with what was left out."""
    draw: Callable[[], Figure]
    topic: str = ""
    """The tables that it belongs to."""
    runs: Sequence[str] = ()
    """Ids of the runs of a benchmark that it draws."""


def error_bars(measures: Sequence[Measure]) -> tuple[list[float], list[float]]:
    """Return how far the intervals of means reach below and above them; 0 where none is known."""
    ends = [each.interval or Interval(low=each.mean, high=each.mean) for each in measures]
    pairs = list(zip(measures, ends, strict=True))
    below = [max(0.0, each.mean - end.low) for each, end in pairs]
    return below, [max(0.0, end.high - each.mean) for each, end in pairs]


def render(picture: Picture, form: Literal["png", "svg"]) -> bytes:
    """Draw a picture: on white, or as an SVG with INK for texts and axes and no background."""
    import matplotlib as mpl

    settings: Any = {
        "text.parse_math": False,
        "legend.framealpha": 0.0,  # no white box on a dark page
        "svg.fonttype": "none",  # text stays text: to be searched, read aloud and selected
        "font.size": 10,
        **dict.fromkeys(_INKS, INK),
    }
    with mpl.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure, file = picture.draw(), io.BytesIO()
        width = int(_TITLE_WIDTH * figure.get_figwidth())
        figure.suptitle(textwrap.fill(picture.title, width), fontsize="medium")
        if form == "png":
            figure.savefig(file, format=form)
            return file.getvalue()
        figure.set_dpi(_SVG_DPI)
        figure.savefig(file, format=form, transparent=True, metadata={"Date": None})
    return _BETWEEN_ELEMENTS.sub(b"", file.getvalue())


def new_figure(width_in: float, height_in: float) -> Figure:
    """Return an empty figure that needs no window."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width_in, height_in), layout="constrained", dpi=_DPI)


def label(text: str) -> str:
    """Return text of others as a short label; a leading `_` would hide it from a legend."""
    line = shown(text)
    if len(line) > _LONGEST_LABEL:
        line = f"{line[: _LONGEST_LABEL // 2]}...{line[-_LONGEST_LABEL // 2 :]}"
    return f" {line}" if line.startswith("_") else line


def finish(axes: Axes, *, x: str, y: str) -> None:
    """Label the axes, and draw a grid in the background."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(visible=True, alpha=0.3)
    axes.set_axisbelow(True)


def shared_legend(
    figure: Figure,
    all_axes: Sequence[Axes],
    *,
    columns: int = 3,
    **options: Any,
) -> None:
    """Add one legend for all axes, with each label once; `options` are matplotlib's."""
    found: dict[str, Any] = {}
    for axes in all_axes:
        for handle, text in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(text, handle)
    width = _TITLE_WIDTH * figure.get_figwidth()  # in characters; a handle takes some, too
    figure.legend(
        list(found.values()),
        list(found),
        loc="outside lower center",
        ncols=max(1, min(columns, len(found), int(width // (max(map(len, found), default=1) + 8)))),
        frameon=False,
        **options,
    )


def plain_log_ticks(axis: Axis) -> None:
    """Give a logarithmic axis, when all is drawn, enough ticks with plain numbers: by default there
    are none within a decade, and else powers of ten."""
    from matplotlib.ticker import LogLocator, NullLocator

    low, high = axis.get_data_interval()
    subs = (1.0, 2.0, 5.0) if high < 100 * low else (1.0,)
    axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(PLAIN_NUMBERS)
    axis.set_minor_locator(NullLocator())


def long_unit(time_s: float) -> tuple[float, str]:
    """Return the unit, in seconds and by name, for an axis of this length."""
    if time_s >= 2 * 3600:
        return 3600.0, "h"
    return (60.0, "min") if time_s >= 2 * 60 else (1.0, "s")
