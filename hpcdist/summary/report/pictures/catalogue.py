"""The pictures that a section has, and how to draw each; nothing is drawn yet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdist.base.plotting import Picture, first, label
from hpcdist.base.text import format_percent, format_ranges, format_time, unique
from hpcdist.bench.benchmark import NumberedResult
from hpcdist.bench.registry import BENCHMARKS
from hpcdist.runs.run import slug
from hpcdist.summary.report.pictures import over_time, scaling, shares
from hpcdist.summary.report.pictures.series import read_heat_map, read_learning, read_usage
from hpcdist.summary.report.report import Section
from hpcdist.summary.report.runs import Row
from hpcdist.summary.report.shares import alone_losses
from hpcdist.summary.values import Losses, RunSummary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_OWN = 3
"""Runs that have pictures of their own: those with most ranks."""


def find_pictures(sections: Iterable[Section]) -> Iterator[tuple[int, Picture]]:
    """Yield every picture with the index of its section; events are read one by one."""
    taken: set[str] = set()
    for index, section in enumerate(sections):
        for picture in _of_section(section):
            yield index, picture._replace(name=unique(picture.name, taken))


def _of_section(section: Section) -> Iterator[Picture]:
    if section.comparison:
        id_, faster = section.comparison.id, "times as fast as the first variant"
        description = f"Bars: {faster}, and what the rest of the time was lost to."
        draw = partial(shares.draw_comparison, section.comparison)
        yield Picture(f"{slug(id_)}-comparison", f"{label(id_)}: compared", description, draw)
    else:
        yield from _scaling(section)
    yield from _shares(section)
    yield from _phases(section)
    yield from _heat_maps(section)
    yield from _learning(section)
    yield from _usage(section)
    yield from _benchmarks(section)


def _picture(
    kind: str, name: str, title: str, description: str, draw: Callable[[], Figure]
) -> Picture:
    """Name the picture of a job or run, and draw its title as well."""

    def draw_titled() -> Figure:
        figure = draw()
        figure.suptitle(title)
        return figure

    return Picture(f"{slug(name)}-{kind}", title, description, draw_titled)


def _scaling(section: Section) -> Iterator[Picture]:
    by_id = {row.run.run: row for row in section.rows}
    for group in section.groups:
        members = dict.fromkeys((*group.baseline, *group.runs))
        rows = [by_id[run] for run in members if run in by_id]
        if group.baseline and rows:
            kind = f" ({group.scaling} scaling)" if group.scaling else ""
            title = f"{label(section.name)}: speed against size{kind}"
            has_forecast = any(row.run.forecast and row.run.forecast.sizes for row in rows)
            dashed = "; dashed, what more would bring" if has_forecast else ""
            numbers = format_ranges(sorted(row.number for row in rows))
            description = f"Runs {numbers}; the dotted line is the ideal{dashed}."
            draw = partial(scaling.draw, [row.run for row in rows])
            yield _picture("scaling", section.name, title, description, draw)


def _shares(section: Section) -> Iterator[Picture]:
    title = f"{label(section.name)}: where the time goes"
    for group in section.groups:
        if group.baseline and group.losses:
            description = "One bar per size: what was not lost, and what the rest was lost to."
            draw = partial(shares.draw_sizes, group.losses, list(map(_size, group.losses)))
            yield _picture("losses", section.name, title, description, draw)
    # Of groups of one size; in these computing is the ideal.
    if alone := alone_losses(section.groups):
        numbers = {row.run.run: row.number for row in section.rows}
        drawn = alone[: shares.MOST_RUNS]
        left_out = "" if drawn == alone else f" Only {len(drawn)} of {len(alone)} are drawn."
        names = [
            f"#{format_ranges(sorted(numbers[run] for run in losses.runs))}: {_size(losses)}"
            for losses in drawn
        ]
        title = f"{title}, without another size to compare with"
        description = f"One bar per kind of run: computing, and what the rest went into.{left_out}"
        draw = partial(shares.draw_sizes, drawn, names)
        yield _picture("shares", section.name, title, description, draw)


def _phases(section: Section) -> Iterator[Picture]:
    if rows := [row for row in section.rows if row.run.phase_s and row.run.step_time_s]:
        drawn, left_out = first(rows, shares.MOST_RUNS)
        title = f"{label(section.name)}: what a step consists of"
        description = f"One bar per run: number, nodes x GPUs.{left_out}"
        draw = partial(shares.draw_phases, drawn)
        yield _picture("phases", section.name, title, description, draw)


def _heat_maps(section: Section) -> Iterator[Picture]:
    rows = [row for row in section.rows if row.run.world_size > 1 and row.run.step_time_s]
    for row, path, left_out in _largest(rows):
        if times := read_heat_map(path):
            title = f"#{row.number} {label(row.run.run)}: step time by rank"
            ends = [
                f"{format_time(pace.own_time_s)} (rank {over_time.rank_name(pace.rank, pace.host)})"
                for pace in (row.run.fastest_rank, row.run.slowest_rank)
                if pace  # of a single rank that stepped neither is known
            ]
            means = f"Mean over all steps: {' to '.join(dict.fromkeys(ends))}." if ends else ""
            description = f"{means}{left_out}"
            draw = partial(over_time.draw_heat_map, times)
            yield _picture("ranks", row.run.run, title, description, draw)


def _learning(section: Section) -> Iterator[Picture]:
    rows = [row for row in section.rows if row.run.path and row.run.step_time_s]
    drawn, left_out = first(_of_each_size_first(rows), over_time.MOST_LINES)
    drawn = sorted(drawn, key=lambda row: row.number)
    read = {f"#{row.number}": read_learning(Path(row.run.path or "")) for row in drawn}
    named = {
        name: learning for name, learning in read.items() if any(curve.values for curve in learning)
    }
    if named:
        title = f"{label(section.name)}: loss and accuracy"
        targets = [row.run.time_to_accuracy.target for row in rows if row.run.time_to_accuracy]
        target = targets[0] if targets else None
        aim = "" if target is None else f" Dotted is {format_percent(target, 1)} %."
        description = f"Thin lines are training, those with markers are tests.{aim}{left_out}"
        draw = partial(over_time.draw_learning, named, target=target)
        yield _picture("learning", section.name, title, description, draw)


def _usage(section: Section) -> Iterator[Picture]:
    rows = [row for row in section.rows if row.run.usage]
    for row, path, left_out in _largest(rows):
        if series := read_usage(path):
            title = f"#{row.number} {label(row.run.run)}: what it used"
            description = f"{over_time.describe_usage(series)}{left_out}"
            draw = partial(over_time.draw_usage, series)
            yield _picture("usage", row.run.run, title, description, draw)


def _largest(rows: Sequence[Row]) -> Iterator[tuple[Row, Path, str]]:
    """Yield the largest of the runs, with their directories, and what is said of the others."""
    drawn, left_out = first(sorted(rows, key=lambda row: -row.run.world_size), _MOST_OWN)
    for row in drawn:
        if row.run.path:
            yield row, Path(row.run.path), left_out


def _benchmarks(section: Section) -> Iterator[Picture]:
    for benchmark in BENCHMARKS:
        runs = [
            NumberedResult(number=row.number, run=row.run.run, size=_size(row.run), result=result)
            for row in section.rows
            if (result := getattr(row.run, benchmark.key)) is not None
        ]
        if runs:
            yield from benchmark.pictures(section.name, runs)


def _of_each_size_first(rows: Sequence[Row]) -> list[Row]:
    """Sort repeats after a run of every size, strategy and variant: they learn alike."""
    counts: Counter[tuple[object, ...]] = Counter()
    places = {}
    for number, run in rows:
        kind = (run.configuration, run.variant, run.nodes, run.gpus_per_node)
        places[number] = counts[kind]
        counts[kind] += 1
    return sorted(rows, key=lambda row: places[row.number])


def _size(sized: RunSummary | Losses) -> str:
    return f"{sized.nodes} x {sized.gpus_per_node}"
