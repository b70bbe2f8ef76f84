"""How all pictures look, and how a figure becomes a file.

Colours are those of Okabe and Ito, which all kinds of sight tell apart; markers, lines and hatches
say the same again, for who prints without colours.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from hpcdist.base.text import shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INKS = (
    *("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor"),
    *("xtick.color", "ytick.color"),
)
_LONGEST_LABEL = 48
_DPI = 150

PLAIN_NUMBERS = "{x:,.10g}"
"""For the ticks of logarithmic axes, which are powers of ten else."""


@contextmanager
def drawing(ink: str = "#000000") -> Iterator[None]:
    """Figures made and saved within have texts and axes of this colour; `$` means nothing."""
    import matplotlib as mpl

    settings: Any = {
        "text.parse_math": False,
        "legend.framealpha": 0.0,  # no white box on a dark page
        "svg.fonttype": "none",  # text stays text: to be searched, read aloud and selected
        "font.size": 10,
        **dict.fromkeys(_INKS, ink),
    }
    with mpl.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def save(figure: Figure, form: str, *, is_transparent: bool = False) -> bytes:
    """The figure as `png` or `svg`."""
    file = io.BytesIO()
    metadata = {"Date": None} if form == "svg" else None
    figure.savefig(file, format=form, dpi=_DPI, metadata=metadata, transparent=is_transparent)
    return file.getvalue()


def new_figure(width_in: float, height_in: float) -> Figure:
    """An empty figure that needs no window."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_in, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def label(text: str) -> str:
    """Text of others as a label; one that begins with `_` would be left out of a legend."""
    line = shown(text)
    if len(line) > _LONGEST_LABEL:
        line = f"{line[: _LONGEST_LABEL // 2]}...{line[-_LONGEST_LABEL // 2 :]}"
    return f" {line}" if line.startswith("_") else line


def finish(axes: Axes, *, x: str, y: str) -> None:
    """Labels, and a grid that stays in the background."""
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(visible=True, alpha=0.3)
    axes.set_axisbelow(True)


def counts_axis(axes: Axes, counts: Sequence[int]) -> None:
    """An x axis with these counts as its ticks."""
    axes.set_xticks(list(counts), [f"{count:,}" for count in counts])
    axes.minorticks_off()


def shared_legend(figure: Figure, all_axes: Sequence[Axes], *, columns: int = 3) -> None:
    """One below all axes, each label once."""
    found: dict[str, Any] = {}
    for axes in all_axes:
        for handle, text in zip(*axes.get_legend_handles_labels(), strict=True):
            found.setdefault(text, handle)
    figure.legend(
        list(found.values()),
        list(found),
        loc="outside lower center",
        ncols=min(columns, max(1, len(found))),
        frameon=False,
    )


def long_unit(time_s: float) -> tuple[float, str]:
    """The unit, in seconds and by name, for an axis that is so long."""
    if time_s >= 2 * 3600:
        return 3600.0, "h"
    return (60.0, "min") if time_s >= 2 * 60 else (1.0, "s")
