"""A comparison as a picture: speed-ups with their errors, and what each step was lost to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcdist.base.text import shown
from hpcdist.summary.figures.shares import SHARES
from hpcdist.summary.report.pictures.parts_style import LABELS, STYLES, USED
from hpcdist.summary.values import Comparison, VariantSummary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LABELS_PER_LINE = 4
_VISIBLE = 0.002
"""Smaller shares of a step are thinner than a line."""


def write_plot(comparison: Comparison, path: Path) -> None:
    """Write the picture as PNG; raises OSError."""
    make_figure(comparison).savefig(path, format="png", dpi=120)


def make_figure(comparison: Comparison) -> Figure:
    """The picture, before it has a format."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    height_in = 2.2 + 0.5 * len(comparison.variants)
    figure = Figure(figsize=(10, height_in), layout="constrained")
    FigureCanvasAgg(figure)
    speed, step = figure.subplots(1, 2, sharey=True)
    _draw_speedups(speed, comparison)
    _draw_steps(step, comparison)
    names = [shown(variant.name) for variant in comparison.variants]
    speed.set_yticks(range(len(names)), names)
    speed.set_ylim(len(names) - 0.5, -0.5)  # the first one on top
    figure.legend(
        loc="outside upper center", ncols=_LABELS_PER_LINE, frameon=False, markerscale=0.4
    )
    return figure


def _draw_speedups(axes: Any, comparison: Comparison) -> None:
    from matplotlib import rcParams

    ink = rcParams["text.color"]  # black is not to be seen on a dark page
    ideals = []
    for place, variant in enumerate(comparison.variants):
        if variant.name == comparison.baseline:
            mean, sd = 1.0, None
        elif variant.speedup is None:
            continue
        else:
            speedup = variant.speedup
            mean, sd = speedup.mean, speedup.sd if speedup.over == "runs" else None
        if not variant.is_without_its_gpus:
            ideals.append((variant.ideal, place))
        axes.barh(place, mean, height=0.6, **USED, xerr=sd, ecolor=ink, capsize=4)
        axes.annotate(  # beside the axes, where no bar and no error is
            f"{mean:.2f}" if sd is None else f"{mean:.2f} ± {sd:.2f}",
            (1, place),
            xycoords=("axes fraction", "data"),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
        )
    if ideals:
        axes.scatter(*zip(*ideals, strict=True), marker="|", s=700, color=ink, label="ideal")
    axes.set_xlim(left=0)
    axes.set_xlabel(f"times as fast as {shown(comparison.baseline)} (± sd over the repeats)")


def _draw_steps(axes: Any, comparison: Comparison) -> None:
    labelled: set[str] = set()
    for place, variant in enumerate(comparison.variants):
        left = 0.0
        for part, share in _shares(variant, comparison.baseline):
            label = None if part in labelled else LABELS.get(part, "not lost")
            labelled.add(part)
            axes.barh(
                place,
                100 * share,
                left=100 * left,
                height=0.6,
                edgecolor="white",
                label=label,
                **STYLES.get(part, USED),
            )
            left += share
    axes.set_xlim(0, 100)
    axes.set_xlabel("share of the time (%): not lost, and lost to")


def _shares(variant: VariantSummary, baseline: str) -> list[tuple[str, float]]:
    """What the bar of a variant consists of; a part that won time is taken off the losses."""
    if variant.name == baseline and variant.samples_per_s is not None:
        return [("used", 1.0)]
    if variant.lost is None:
        return []
    lost = {part: max(0.0, variant.lost[part]) for part in SHARES}
    used = min(1.0, variant.overall or 0.0)
    in_all = sum(lost.values())
    scale = (1 - used) / in_all if in_all else 0.0
    return [
        ("used", used),
        *((part, share * scale) for part, share in lost.items() if share > _VISIBLE),
    ]
