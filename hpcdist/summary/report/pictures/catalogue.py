"""The pictures that a section has, and how to draw each; nothing is drawn yet."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpcdist.base.plotting import Picture, first, label
from hpcdist.base.text import format_percent, format_ranges
from hpcdist.bench.benchmark import NumberedResult
from hpcdist.bench.registry import BENCHMARKS
from hpcdist.runs.run import slug
from hpcdist.summary.report.pictures import over_time, scaling, shares
from hpcdist.summary.report.pictures.series import read_heat_map, read_learning, read_usage
from hpcdist.summary.report.report import Section
from hpcdist.summary.report.runs import Row
from hpcdist.summary.report.shares import alone_losses
from hpcdist.summary.values import Losses

if TYPE_CHECKING:
    pass

MOST_HEAT_MAPS = 3
MOST_USAGES = 3


def find_pictures(sections: Iterable[Section]) -> Iterator[tuple[int, Picture]]:
    """Yield every picture with the index of its section; events are read one by one."""
    taken: set[str] = set()
    for index, section in enumerate(sections):
        for picture in _of_section(section):
            name = _unique(picture.name, taken)
            yield index, picture._replace(name=name)


def _of_section(section: Section) -> Iterator[Picture]:
    yield from _scaling(section)
    yield from _shares(section)
    yield from _phases(section)
    yield from _heat_maps(section)
    yield from _learning(section)
    yield from _usage(section)
    yield from _benchmarks(section)


def _scaling(section: Section) -> Iterator[Picture]:
    job = section.name
    if section.comparison is not None:
        draw = functools.partial(shares.draw_comparison, section.comparison)
        description = (
            "Bars: times as fast as the first variant, and what the rest of the time was lost to."
        )
        yield Picture(f"{slug(job)}-comparison", f"{label(job)}: compared", description, draw)
        return
    by_id = {row.run.run: row for row in section.rows}
    for group in section.groups:
        members = dict.fromkeys((*group.baseline, *group.runs))
        rows = [by_id[run] for run in members if run in by_id]
        if not group.baseline or not rows:
            continue
        kind = f" ({group.scaling} scaling)" if group.scaling else ""
        title = f"{label(job)}: speed against size{kind}"
        dashed = "; dashed, what more would bring" if _is_forecast(rows) else ""
        description = f"Runs {_numbers(rows)}; the dotted line is the ideal{dashed}."
        draw = functools.partial(scaling.draw, [row.run for row in rows], title)
        yield Picture(f"{slug(job)}-scaling", title, description, draw)


def _is_forecast(rows: Sequence[Row]) -> bool:
    return any(row.run.forecast and row.run.forecast.sizes for row in rows)


def _shares(section: Section) -> Iterator[Picture]:
    job = section.name
    for group in section.groups:
        if group.baseline and group.losses:
            title = f"{label(job)}: where the time goes"
            description = "One bar per size: what was not lost, and what the rest was lost to."
            names = [f"{one.nodes} x {one.gpus_per_node}" for one in group.losses]
            draw = functools.partial(shares.draw_sizes, group.losses, names, title)
            yield Picture(f"{slug(job)}-losses", title, description, draw)
    if alone := alone_losses(section.groups):
        yield _alone_shares(section, alone)


def _alone_shares(section: Section, alone: Sequence[Losses]) -> Picture:
    """Make the picture of groups of one size, in which computing is the ideal."""
    numbers = {row.run.run: row.number for row in section.rows}
    drawn, left_out = alone[: shares.MOST_RUNS], ""
    if len(drawn) < len(alone):
        left_out = f" Only {len(drawn)} of {len(alone)} are drawn."
    names = [
        f"#{format_ranges(sorted(numbers[run] for run in one.runs))}: "
        f"{one.nodes} x {one.gpus_per_node}"
        for one in drawn
    ]
    title = f"{label(section.name)}: where the time goes, without another size to compare with"
    description = f"One bar per kind of run: computing, and what the rest went into.{left_out}"
    draw = functools.partial(shares.draw_sizes, drawn, names, title)
    return Picture(f"{slug(section.name)}-shares", title, description, draw)


def _phases(section: Section) -> Iterator[Picture]:
    rows = [row for row in section.rows if row.run.phase_s and row.run.step_time_s]
    if rows:
        drawn, left_out = first(rows, shares.MOST_RUNS)
        title = f"{label(section.name)}: what a step consists of"
        description = f"One bar per run: number, nodes x GPUs.{left_out}"
        draw = functools.partial(shares.draw_phases, drawn, title)
        yield Picture(f"{slug(section.name)}-phases", title, description, draw)


def _heat_maps(section: Section) -> Iterator[Picture]:
    """Of the largest runs."""
    several = [row for row in section.rows if row.run.world_size > 1 and row.run.step_time_s]
    largest = sorted(several, key=lambda row: -row.run.world_size)
    drawn, left_out = first(largest, MOST_HEAT_MAPS)
    for row in drawn:
        found = read_heat_map(Path(row.run.path)) if row.run.path else None
        if found is not None:
            title = f"#{row.number} {label(row.run.run)}: step time by rank"
            description = f"{over_time.describe_heat_map(found)}{left_out}"
            draw = functools.partial(over_time.draw_heat_map, found, title)
            yield Picture(f"{slug(row.run.run)}-ranks", title, description, draw)


def _learning(section: Section) -> Iterator[Picture]:
    rows = [row for row in section.rows if row.run.path and row.run.step_time_s]
    drawn, left_out = first(_of_each_size_first(rows), over_time.MOST_LINES)
    drawn = sorted(drawn, key=lambda row: row.number)
    named = [
        over_time.Named(f"#{row.number}", read_learning(Path(row.run.path or ""))) for row in drawn
    ]
    named = [run for run in named if not run.learning.is_empty]
    if named:
        title = f"{label(section.name)}: loss and accuracy"
        targets = [row.run.time_to_accuracy.target for row in rows if row.run.time_to_accuracy]
        target = targets[0] if targets else None
        aim = "" if target is None else f" Dotted is {format_percent(target, 1)} %."
        description = f"Thin lines are training, those with markers are tests.{aim}{left_out}"
        draw = functools.partial(over_time.draw_learning, named, title, target)
        yield Picture(f"{slug(section.name)}-learning", title, description, draw)


def _usage(section: Section) -> Iterator[Picture]:
    """Of the largest runs."""
    sampled = [row for row in section.rows if row.run.usage and row.run.path]
    largest = sorted(sampled, key=lambda row: -row.run.world_size)
    drawn, left_out = first(largest, MOST_USAGES)
    for row in drawn:
        found = read_usage(Path(row.run.path or ""))
        if found is not None:
            title = f"#{row.number} {label(row.run.run)}: what it used"
            draw = functools.partial(over_time.draw_usage, found, title)
            description = f"{over_time.describe_usage(found)}{left_out}"
            yield Picture(f"{slug(row.run.run)}-usage", title, description, draw)


def _benchmarks(section: Section) -> Iterator[Picture]:
    for benchmark in BENCHMARKS:
        runs = [
            NumberedResult(
                number=row.number,
                run=row.run.run,
                size=f"{row.run.nodes} x {row.run.gpus_per_node}",
                result=result,
            )
            for row in section.rows
            if (result := getattr(row.run, benchmark.key)) is not None
        ]
        if runs:
            yield from benchmark.pictures(section.name, runs)


def _of_each_size_first(rows: Sequence[Row]) -> list[Row]:
    """Repeats after a run of every size, strategy and variant: they learn alike."""
    counts: Counter[tuple[object, ...]] = Counter()
    places = []
    for row in rows:
        run = row.run
        kind = (run.configuration, run.variant, run.nodes, run.gpus_per_node)
        places.append(counts[kind])
        counts[kind] += 1
    return [row for _, row in sorted(zip(places, rows, strict=True), key=lambda pair: pair[0])]


def _numbers(rows: Sequence[Row]) -> str:
    return format_ranges(sorted(row.number for row in rows))


def _unique(name: str, taken: set[str]) -> str:
    """With a number where another picture has the name already."""
    names = (name if number == 1 else f"{name}-{number}" for number in range(1, len(taken) + 2))
    found = next(name for name in names if name not in taken)
    taken.add(found)
    return found
