"""The pictures that a section has, and how to draw each; nothing is drawn yet.

The first picture of a section carries its answer. Each says below its title on what hardware and
when its runs were, for it may be shown without the page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdist.base import plotting
from hpcdist.base.plotting import Picture, first, label
from hpcdist.base.text import format_ranges, format_time, number_of, unique
from hpcdist.job.goal import Goal
from hpcdist.runs import benchmarks
from hpcdist.runs.benchmarks import BenchmarkRun
from hpcdist.runs.run import slug
from hpcdist.summary.report.best import find_values
from hpcdist.summary.report.cells import alone_cells
from hpcdist.summary.report.pictures import over_time, scaling, shares
from hpcdist.summary.report.pictures.best import draw_values
from hpcdist.summary.report.pictures.labels import made_on, run_names, size, unit_of
from hpcdist.summary.report.pictures.series import (
    Learning,
    read_heat_map,
    read_learning,
    read_usage,
)
from hpcdist.summary.report.report import Section, Topic
from hpcdist.summary.report.runs import Row, goal_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_OWN = 3
"""Runs that have pictures of their own: those with most ranks."""
_LEAST_POINTS = 2
"""Nothing is drawn of fewer."""


def find_pictures(sections: Iterable[Section]) -> Iterator[tuple[int, Picture]]:
    """Yield every picture with the index of its section; events are read one by one."""
    taken: set[str] = set()
    for index, section in enumerate(sections):
        for picture in _of_section(section):
            yield index, picture._replace(name=unique(picture.name, taken))


def _of_section(section: Section) -> Iterator[Picture]:
    if section.comparison:
        yield from _comparison(section)
    else:
        yield from _values(section)
        yield from _scaling(section)
    yield from _benchmarks(section)
    yield from _shares(section)
    yield from _heat_maps(section)
    yield from _learning(section)
    yield from _usage(section)


def _picture(
    name: str, topic: Topic, what: str, rows: Sequence[Row], draw: Callable[[], Figure]
) -> Callable[[str, str], Picture]:
    """Return what makes the picture of a job or run from its kind and description; its title, with
    the hardware and date of the runs, is drawn as well."""
    title = f"{label(name)}: {what}"

    def make(kind: str, description: str) -> Picture:
        draw_titled = partial(_titled, draw, title, rows)
        return Picture(f"{slug(name)}-{kind}", title, description, draw_titled, topic.value)

    return make


def _titled(draw: Callable[[], Figure], title: str, rows: Sequence[Row]) -> Figure:
    figure = draw()
    plotting.title(figure, title, made_on(row.run for row in rows))
    return figure


def comparison_picture(section: Section) -> Picture:
    """Return the picture of a comparison, which stands in its sweep's folder, too."""
    comparison = section.comparison
    assert comparison is not None
    draw = partial(shares.draw_comparison, comparison)
    make = _picture(comparison.id, Topic.SPEED, "compared", section.rows, draw)
    against = label(comparison.baseline)
    return make("comparison", f"Times as fast as {against}, and what the rest was lost to.")


def _comparison(section: Section) -> Iterator[Picture]:
    variants = section.comparison.variants if section.comparison else []
    if sum(variant.samples_per_s is not None for variant in variants) >= _LEAST_POINTS:
        yield comparison_picture(section)


def _values(section: Section) -> Iterator[Picture]:
    if values := find_values([row.run for row in section.rows]):
        keys = " and ".join(map(label, values[0].run.differs_in))
        draw = partial(draw_values, values)
        make = _picture(section.name, Topic.LEARNING, f"which {keys} is best", section.rows, draw)
        yield make("values", "Each point is the mean of the runs with one value.")


def _scaling(section: Section) -> Iterator[Picture]:
    by_id = {row.run.run: row for row in section.rows}
    num_scaled = sum(bool(group.baseline) for group in section.groups)
    for group in section.groups:
        members = dict.fromkeys((*group.baseline, *group.runs))
        rows = [by_id[run] for run in members if run in by_id]
        if group.baseline and rows:
            kind = f" ({group.scaling} scaling)" if group.scaling else ""
            has_forecast = any(cell.forecast and cell.forecast.sizes for cell in group.cells)
            dashed = "; the dashed line is the forecast" if has_forecast else ""
            numbers = format_ranges(sorted(row.number for row in rows))
            draw = partial(scaling.draw, group.cells)
            which = f", runs {numbers}" if num_scaled > 1 else ""
            what = f"speed against size{kind}{which}"
            make = _picture(section.name, Topic.SPEED, what, rows, draw)
            yield make("scaling", f"Runs {numbers}; the dotted line is the ideal{dashed}.")


def _shares(section: Section) -> Iterator[Picture]:
    by_id = {row.run.run: row for row in section.rows}
    unit = unit_of(row.run for row in section.rows)
    num_scaled = sum(bool(group.baseline) for group in section.groups)
    for group in section.groups:
        cells = [cell for cell in group.cells if cell.lost]
        if group.baseline and cells:
            rows = [by_id[run] for cell in cells for run in cell.runs if run in by_id]
            draw = partial(shares.draw_sizes, cells, [*map(size, cells)])
            numbers = format_ranges(sorted(row.number for row in rows))
            what = "where the time goes" + (f", runs {numbers}" if num_scaled > 1 else "")
            make = _picture(section.name, Topic.TIME, what, rows, partial(draw, unit=unit))
            described = "One bar per size: what was not lost, and what the rest was lost to."
            yield make("losses", described)
    # Of groups of one size; in these computing is the ideal.
    if alone := alone_cells(section.groups):
        drawn = alone[: shares.MOST_RUNS]
        left_out = "" if drawn == alone else f" Only {len(drawn)} of {len(alone)} are drawn."
        firsts = [by_id[cell.runs[0]] for cell in drawn]
        names = [
            f"{name}, {number_of(len(cell.runs), 'run')}" if len(cell.runs) > 1 else name
            for name, cell in zip(run_names(firsts), drawn, strict=True)
        ]
        draw = partial(shares.draw_sizes, drawn, names, unit=unit)
        what = "where the time goes, without another size to compare with"
        make = _picture(section.name, Topic.TIME, what, firsts, draw)
        yield make(
            "shares", f"One bar per kind of run: computing, and what the rest went into.{left_out}"
        )


def _heat_maps(section: Section) -> Iterator[Picture]:
    rows = [row for row in section.rows if row.run.world_size > 1 and row.run.step_time_s]
    for row, path, left_out in _largest(rows):
        if times := read_heat_map(path):
            ends = [
                f"{format_time(pace.own_time_s)} (rank {over_time.rank_name(pace.rank, pace.host)})"
                for pace in (row.run.fastest_rank, row.run.slowest_rank)
                if pace  # of a single rank that stepped neither is known
            ]
            means = f" Mean over all steps: {' to '.join(dict.fromkeys(ends))}." if ends else ""
            draw = partial(over_time.draw_heat_map, times)
            make = _picture(row.run.run, Topic.TIME, "step time by rank", [row], draw)
            yield make("ranks", f"Run {row.number}.{means}{left_out}")


def _learning(section: Section) -> Iterator[Picture]:
    rows = [row for row in section.rows if row.run.path and row.run.step_time_s]
    drawn, left_out = first(_of_each_size_first(rows), over_time.MOST_LINES)
    drawn = sorted(drawn, key=lambda row: row.number)
    found: list[tuple[Row, Learning]] = []
    for row in drawn:
        learning = read_learning(Path(row.run.path or ""))
        if any(len(curve.values) >= _LEAST_POINTS for curve in learning):
            found.append((row, learning))
    if found:
        shown = [row for row, _ in found]
        named = dict(zip(run_names(shown), (learning for _, learning in found), strict=True))
        goals = [row.run.time_to_accuracy for row in rows if row.run.time_to_accuracy]
        goal = Goal(goals[0].goal, goals[0].target) if goals else None
        aim = f" Dotted is {goal_text(goals[0])}." if goals else ""
        draw = partial(over_time.draw_learning, named, goal=goal)
        if left_out:  # a picture without its page says so, too
            draw = partial(_noted, draw, left_out.strip())
        make = _picture(section.name, Topic.LEARNING, "loss and accuracy", shown, draw)
        lines = over_time.describe_lines(named)
        yield make("learning", f"{lines}{aim}{left_out}")


def _noted(draw: Callable[[], Figure], text: str) -> Figure:
    figure = draw()
    figure.supxlabel(text, fontsize="small")
    return figure


def _usage(section: Section) -> Iterator[Picture]:
    rows = [row for row in section.rows if row.run.usage]
    for row, path, left_out in _largest(rows):
        if series := read_usage(path):
            draw = partial(over_time.draw_usage, series)
            make = _picture(row.run.run, Topic.RESOURCES, "what it used", [row], draw)
            described = over_time.describe_usage(series)
            yield make("usage", f"Run {row.number}. {described}{left_out}")


def _largest(rows: Sequence[Row]) -> Iterator[tuple[Row, Path, str]]:
    """Yield the largest of the runs, with their directories, and what is said of the others."""
    drawn, left_out = first(sorted(rows, key=lambda row: -row.run.world_size), _MOST_OWN)
    for row in drawn:
        if row.run.path:
            yield row, Path(row.run.path), left_out


def _benchmarks(section: Section) -> Iterator[Picture]:
    rows = [row for row in section.rows if row.run.benchmark is not None]
    by_id = {row.run.run: row for row in rows}
    results = [
        BenchmarkRun(row.run.run, name, row.run.benchmark)
        for row, name in zip(rows, run_names(rows), strict=True)
        if row.run.benchmark is not None
    ]
    for picture in benchmarks.pictures(section.name, results):
        own = [by_id[run] for run in picture.runs]
        draw = partial(_titled, picture.draw, picture.title, own)
        yield picture._replace(draw=draw, topic=Topic.MEASURED.value)


def _of_each_size_first(rows: Sequence[Row]) -> list[Row]:
    """Sort repeats after a run of every size, strategy and variant: they learn alike."""
    counts: Counter[tuple[object, ...]] = Counter()
    places = {}
    for number, run in rows:
        kind = (run.configuration, run.variant, run.nodes, run.gpus_per_node)
        places[number] = counts[kind]
        counts[kind] += 1
    return sorted(rows, key=lambda row: places[row.number])
