"""The parts of a summary: runs that are looked at together, numbered through all of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from hpcdist.summary.compare.conclusions import conclusions, headline, run_conclusions
from hpcdist.summary.report.remarks import conclusion, run_told_of
from hpcdist.summary.report.table import Row
from hpcdist.summary.values import Comparison, Group, RunSummary, Summary


class Part(NamedTuple):
    """Runs that are looked at together: those of a job, or of a comparison."""

    rows: list[Row]
    comparison: Comparison | None
    groups: list[Group]
    """Of the job's runs that can be compared."""


def parts(summary: Summary) -> Iterator[Part]:
    """The parts of a summary, in order; runs are numbered through all of them."""
    comparisons = {comparison.id: comparison for comparison in summary.comparisons}
    for key, rows in itertools.groupby(_rows(summary), key=lambda row: _part(row.run)):
        found = list(rows)
        ids = {row.run.run for row in found}
        groups = [group for group in summary.groups if group.runs[0] in ids]
        yield Part(found, comparisons.get(key), groups)


def part_conclusions(part: Part) -> list[str]:
    """What the part says, in words; the first one is the answer, and the others are about the same
    run."""
    if part.comparison is not None:
        first = headline(part.comparison)
        return [*([first] if first else []), *conclusions(part.comparison)]
    runs = [row.run for row in part.rows]
    return [conclusion(runs, part.groups), *run_conclusions(run_told_of(runs, part.groups))]


def _rows(summary: Summary) -> list[Row]:
    """Job by job in the order given; within a job comparable runs together, smallest first."""
    place = {
        run: (number, index)
        for number, group in enumerate(summary.groups)
        for index, run in enumerate(group.runs)
    }
    order: dict[str, int] = {}
    for run in summary.runs:
        order.setdefault(_part(run), len(order))
    last = (len(summary.groups), 0)
    ordered = sorted(summary.runs, key=lambda run: (order[_part(run)], place.get(run.run, last)))
    return [Row(number, run) for number, run in enumerate(ordered, 1)]


def _part(run: RunSummary) -> str:
    """Runs that are looked at together: those of a comparison, or of a job."""
    return run.comparison or run.job
