"""The pictures that a section has, and how to draw each; nothing is drawn yet.

The first picture of a section carries its answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from hpcdist.base.plotting import Picture, label
from hpcdist.base.text import format_ranges, number_of, shown
from hpcdist.bench.cells import BenchmarkRun
from hpcdist.bench.cells import pictures as pictures_of_cells
from hpcdist.job.goal import Goal
from hpcdist.runs.run import slug
from hpcdist.summary.compare.cells import size_text
from hpcdist.summary.figures.learning import Learning, decode_learning
from hpcdist.summary.report.pictures import over_time, speed
from hpcdist.summary.report.report import Section, Topic
from hpcdist.summary.report.runs import Row, goal_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def find_pictures(sections: Iterable[Section]) -> Iterator[tuple[int, Picture]]:
    """Yield every picture with the index of its section."""
    taken: Counter[str] = Counter()
    makers = (_comparison, _values, _sizes, _benchmarks, _learning)
    for index, section in enumerate(sections):
        for make in makers:
            for picture in make(section):
                taken[picture.name] += 1
                again = f"-{taken[picture.name]}" if taken[picture.name] > 1 else ""
                yield index, picture._replace(name=f"{picture.name}{again}")


def _picture(
    section: Section, kind: str, what: str, text: str, draw: Callable[[], Figure], *, topic: Topic
) -> Picture:
    """Return the picture of a job or comparison; `kind` ends the name of its file."""
    title = f"{label(section.name)}: {what}"
    return Picture(f"{slug(section.name)}-{kind}", title, text, draw, topic.value)


def _comparison(section: Section) -> Iterator[Picture]:
    cells = section.comparison.cells if section.comparison else []
    if sum(bool(cell.speedup) for cell in cells) > 1:
        names = [label(cell.name) for cell in cells]
        described = f"Times as fast as {names[0]}, and what the rest was lost to."
        draw = partial(speed.draw_bars, cells, names)
        yield _picture(section, "comparison", "compared", described, draw, topic=Topic.SPEED)


def _values(section: Section) -> Iterator[Picture]:
    if values := section.values:
        what = f"which {' and '.join(map(label, values[0].run.differs_in))} is best"
        draw = partial(speed.draw_values, values)
        described = "Each point is the mean of the runs with one value."
        yield _picture(section, "values", what, described, draw, topic=Topic.LEARNING)


def _sizes(section: Section) -> Iterator[Picture]:
    """Yield the speed-ups of each group of several sizes, and where its time goes."""
    numbers = {row.run.run: row.number for row in section.rows}
    unit = "ranks" if any(row.run.num_cpus is not None for row in section.rows) else "GPUs"
    scaled = [group for group in section.groups if group.baseline]
    for group in scaled:
        cells = group.cells
        runs = f"runs {format_ranges(sorted(numbers[run] for run in group.runs))}"
        which = f", {runs}" if len(scaled) > 1 else ""
        kind = f" ({cells[-1].scaling} scaling)" if cells[-1].scaling else ""
        has_forecast = any(cell.forecast and cell.forecast.sizes for cell in cells)
        dashed = "; the dashed line is the forecast" if has_forecast else ""
        draw = partial(speed.draw_scaling, cells)
        described = f"Of {runs}; the dotted line is the ideal{dashed}."
        what = f"speed against size{kind}{which}"
        yield _picture(section, "scaling", what, described, draw, topic=Topic.SPEED)
        if lossy := [cell for cell in cells if cell.lost]:
            sizes = [size_text(cell) for cell in lossy]
            draw = partial(speed.draw_bars, lossy, sizes, y=f"nodes x {unit}")
            described = "One bar per size: what was not lost, and what the rest was lost to."
            what = f"where the time goes{which}"
            yield _picture(section, "losses", what, described, draw, topic=Topic.TIME)


def _learning(section: Section) -> Iterator[Picture]:
    repeats: dict[tuple[str, ...], list[Row]] = {}
    for row in section.rows:
        if row.run.path in section.series and row.run.step_time_s:
            alike = row.run.cell.runs if row.run.cell else [row.run.run]
            repeats.setdefault(tuple(alike), []).append(row)
    most = over_time.MOST_LINES
    left_out = f" Only {most} of {len(repeats)} runs are drawn." if len(repeats) > most else ""
    found: list[tuple[list[Row], list[Learning]]] = []
    for rows in [*repeats.values()][:most]:
        learned = [decode_learning(section.series[row.run.path or ""]) for row in rows]
        if any(len(curve.values) > 1 for one in learned for curve in one):
            found.append((rows, learned))
    if not found:
        return
    runs = [row for rows, _ in found for row in rows]
    names = run_names([rows[0] for rows, _ in found])
    curves = dict(zip(names, (learned for _, learned in found), strict=True))
    goals = [row.run.time_to_accuracy for row in runs if row.run.time_to_accuracy]
    lines = "Thin lines are training, those with markers are tests."
    lines += " Bands hold all repeats." if any(len(rows) > 1 for rows, _ in found) else ""
    aim = f" Dotted is {goal_text(goals[0])}." if goals else ""
    goal = Goal(goals[0].goal, goals[0].target) if goals else None
    has_accuracy = any(one.accuracy.values for _, learned in found for one in learned)
    what = "loss and accuracy" if has_accuracy else "loss"
    draw = partial(over_time.draw_learning, curves, goal=goal)
    yield _picture(section, "learning", what, f"{lines}{aim}{left_out}", draw, topic=Topic.LEARNING)


def _benchmarks(section: Section) -> Iterator[Picture]:
    rows = [row for row in section.rows if row.run.benchmark is not None]
    results = [
        BenchmarkRun(row.run.run, name, row.run.benchmark)
        for row, name in zip(rows, run_names(rows), strict=True)
        if row.run.benchmark is not None
    ]
    for picture in pictures_of_cells(section.name, results):
        yield picture._replace(topic=Topic.MEASURED.value)


def run_names(rows: Sequence[Row]) -> list[str]:
    """Name each run, and its repeats, by its variant or settings, its size and their number; and by
    its number, where others have the same name."""
    names = []
    for _, run in rows:
        num = len(run.cell.runs) if run.cell else 1
        repeats = number_of(num, "run") if num > 1 else ""
        words = (shown(run.variant or run.settings_text), size_text(run), repeats)
        names.append(", ".join(filter(None, words)))
    taken = Counter(names)
    return [
        f"{name} (#{row.number})" if taken[name] > 1 else name
        for row, name in zip(rows, names, strict=True)
    ]
