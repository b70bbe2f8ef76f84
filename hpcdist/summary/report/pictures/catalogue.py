"""The pictures that a section has, and how to draw each; nothing is drawn yet.

The first picture of a section carries its answer. Each says below its title on what hardware and
when its runs were, for it may be shown without the page.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdist.base import plotting
from hpcdist.base.plotting import Picture, first, label
from hpcdist.base.text import first_few, format_ranges, number_of, shown, unique
from hpcdist.bench.cells import BenchmarkRun
from hpcdist.bench.cells import pictures as pictures_of_cells
from hpcdist.job.goal import Goal
from hpcdist.runs.run import Run, slug
from hpcdist.summary.compare.cells import size_text
from hpcdist.summary.figures.learning import Learning, decode_learning
from hpcdist.summary.report.cells import alone_cells
from hpcdist.summary.report.pictures import over_time, speed
from hpcdist.summary.report.report import Section, Topic
from hpcdist.summary.report.runs import Row, goal_text
from hpcdist.summary.values import Cell, RunSummary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LEAST_POINTS = 2
"""Nothing is drawn of fewer."""


def find_pictures(sections: Iterable[Section]) -> Iterator[tuple[int, Picture]]:
    """Yield every picture with the index of its section."""
    taken: set[str] = set()
    makers = (_values, _scaling, _benchmarks, _shares, _learning)
    for index, section in enumerate(sections):
        if section.comparison and sum(bool(cell.speedup) for cell in section.comparison.cells) > 1:
            picture = comparison_picture(section)
            yield index, picture._replace(name=unique(picture.name, taken))
        for make in makers:
            for picture in make(section):
                yield index, picture._replace(name=unique(picture.name, taken))


_TOPICS = {
    "comparison": Topic.SPEED,
    "values": Topic.LEARNING,
    "scaling": Topic.SPEED,
    "losses": Topic.TIME,
    "shares": Topic.TIME,
    "learning": Topic.LEARNING,
}
"""By the end of the file's name."""


def _picture(
    kind: str, title: tuple[str, str], rows: Sequence[Row], draw: Callable[[], Figure], text: str
) -> Picture:
    """Return the picture of a job or run; `title` is its name, and what is drawn of it."""
    name = f"{label(title[0])}: {title[1]}"
    draw = partial(_draw_titled, draw, name, rows)
    return Picture(f"{slug(title[0])}-{kind}", name, text, draw, _TOPICS[kind].value)


def _draw_titled(draw: Callable[[], Figure], title: str, rows: Sequence[Row]) -> Figure:
    figure = draw()
    plotting.title(figure, title, _made_on([row.run for row in rows]))
    return figure


def comparison_picture(section: Section) -> Picture:
    """Return the picture of a comparison, which stands in its sweep's folder, too."""
    assert section.comparison is not None
    cells = section.comparison.cells
    names = [label(cell.name) for cell in cells]
    described = f"Times as fast as {names[0]}, and what the rest was lost to."
    draw = partial(speed.draw_bars, cells, names)
    title = (section.name, "compared")
    return _picture("comparison", title, section.rows, draw, described)


def _values(section: Section) -> Iterator[Picture]:
    if values := section.values:
        title = (
            section.name,
            f"which {' and '.join(map(label, values[0].run.differs_in))} is best",
        )
        draw = partial(speed.draw_values, values)
        described = "Each point is the mean of the runs with one value."
        yield _picture("values", title, section.rows, draw, described)


def _scaled(section: Section) -> Iterator[tuple[list[Cell], list[Row], str, str]]:
    """Yield the cells of each group of several sizes with their runs, their numbers, and which of
    several groups it is."""
    by_id = {row.run.run: row for row in section.rows}
    scaled = [group for group in section.groups if group.baseline]
    for group in scaled:
        members = dict.fromkeys((*group.baseline, *group.runs))
        rows = [by_id[run] for run in members if run in by_id]
        numbers = format_ranges(sorted(row.number for row in rows))
        yield group.cells, rows, numbers, f", runs {numbers}" if len(scaled) > 1 else ""


def _scaling(section: Section) -> Iterator[Picture]:
    for cells, rows, numbers, which in _scaled(section):
        kind = f" ({cells[-1].scaling} scaling)" if cells[-1].scaling else ""
        has_forecast = any(cell.forecast and cell.forecast.sizes for cell in cells)
        dashed = "; the dashed line is the forecast" if has_forecast else ""
        title = (section.name, f"speed against size{kind}{which}")
        draw = partial(speed.draw_scaling, cells)
        described = f"Runs {numbers}; the dotted line is the ideal{dashed}."
        yield _picture("scaling", title, rows, draw, described)


def _shares(section: Section) -> Iterator[Picture]:
    y = f"nodes x {unit_of(row.run for row in section.rows)}"
    for cells, rows, _, which in _scaled(section):
        if lossy := [cell for cell in cells if cell.lost]:
            draw = partial(speed.draw_bars, lossy, [*map(size_text, lossy)], y=y)
            title = (section.name, f"where the time goes{which}")
            described = "One bar per size: what was not lost, and what the rest was lost to."
            yield _picture("losses", title, rows, draw, described)
    # Of groups of one size; in these computing is the ideal.
    if alone := alone_cells(section.groups):
        by_id = {row.run.run: row for row in section.rows}
        drawn, left_out = first(alone, speed.MOST_BARS)
        firsts = [by_id[cell.runs[0]] for cell in drawn]
        names = _names_of_repeats(firsts)
        draw = partial(speed.draw_bars, drawn, names, y=y)
        title = (section.name, "where the time goes, without another size to compare with")
        described = f"One bar per kind of run: computing, and what the rest went into.{left_out}"
        yield _picture("shares", title, firsts, draw, described)


def _learning(section: Section) -> Iterator[Picture]:
    repeats: dict[tuple[str, ...], list[Row]] = {}
    for row in section.rows:
        if row.run.path in section.series and row.run.step_time_s:
            alike = row.run.cell.runs if row.run.cell else [row.run.run]
            repeats.setdefault(tuple(alike), []).append(row)
    drawn, left_out = first([*repeats.values()], over_time.MOST_LINES)
    found: list[tuple[list[Row], list[Learning]]] = []
    for rows in drawn:
        learned = [decode_learning(section.series[row.run.path or ""]) for row in rows]
        if any(len(curve.values) >= _LEAST_POINTS for one in learned for curve in one):
            found.append((rows, learned))
    if not found:
        return
    runs = [row for rows, _ in found for row in rows]
    names = _names_of_repeats([rows[0] for rows, _ in found])
    curves = dict(zip(names, (learned for _, learned in found), strict=True))
    goals = [row.run.time_to_accuracy for row in runs if row.run.time_to_accuracy]
    lines = "Thin lines are training, those with markers are tests."
    lines += " Bands hold all repeats." if any(len(rows) > 1 for rows, _ in found) else ""
    aim = f" Dotted is {goal_text(goals[0])}." if goals else ""
    goal = Goal(goals[0].goal, goals[0].target) if goals else None
    has_accuracy = any(one.accuracy.values for _, learned in found for one in learned)
    title = (section.name, "loss and accuracy" if has_accuracy else "loss")
    draw = partial(over_time.draw_learning, curves, goal=goal)
    yield _picture("learning", title, runs, draw, f"{lines}{aim}{left_out}")


def _benchmarks(section: Section) -> Iterator[Picture]:
    rows = [row for row in section.rows if row.run.benchmark is not None]
    by_id = {row.run.run: row for row in rows}
    results = [
        BenchmarkRun(row.run.run, name, row.run.benchmark)
        for row, name in zip(rows, run_names(rows), strict=True)
        if row.run.benchmark is not None
    ]
    for picture in pictures_of_cells(section.name, results):
        own = [by_id[run] for run in picture.runs]
        draw = partial(_draw_titled, picture.draw, picture.title, own)
        yield picture._replace(draw=draw, topic=Topic.MEASURED.value)


def unit_of(runs: Iterable[RunSummary]) -> str:
    """Return what there are several of for each node: no GPUs where runs were on CPUs."""
    return "ranks" if any(run.num_cpus is not None for run in runs) else "GPUs"


def run_names(rows: Sequence[Row]) -> list[str]:
    """Name each run by its variant or settings, and its size; and by its number, where others have
    the same name."""
    names = [
        ", ".join(filter(None, [shown(run.variant or run.settings_text), size_text(run)]))
        for _, run in rows
    ]
    taken = Counter(names)
    return [
        f"{name} (#{row.number})" if taken[name] > 1 else name
        for row, name in zip(rows, names, strict=True)
    ]


def _names_of_repeats(firsts: Sequence[Row]) -> list[str]:
    """Name kinds of runs by the first run of each, with the number of repeats."""
    nums = [len(row.run.cell.runs) if row.run.cell else 1 for row in firsts]
    return [
        f"{name}, {number_of(num, 'run')}" if num > 1 else name
        for num, name in zip(nums, run_names(firsts), strict=True)
    ]


def _made_on(runs: Sequence[RunSummary]) -> str:
    """Return `CPUs, 2026-11-23`: the devices of the runs, and the days of their submission; what is
    not known is left out."""
    models = [run.ran_with.device_model if run.num_cpus is None else "CPUs" for run in runs]
    days = set()
    for run in runs:
        created_s = Run(Path(run.path)).spec.created_s if run.path else None
        with suppress(OverflowError, ValueError, OSError):  # a damaged file says 1e400
            if created_s is not None:
                days.add(time.strftime("%Y-%m-%d", time.localtime(created_s)))
    when = " to ".join(dict.fromkeys([min(days), max(days)])) if days else ""
    return ", ".join(filter(None, [first_few(filter(None, models), 2), when]))
