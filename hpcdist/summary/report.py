"""The summary as text for people: part by part, the conclusion first.

This, table and comparison_table are the modules of the summary that import rich.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

from rich.console import Console

from hpcdist.summary.accuracy_table import accuracy_tables
from hpcdist.summary.comparison_table import print_comparison
from hpcdist.summary.losses_table import losses_tables
from hpcdist.summary.remarks import conclusion, run_told_of
from hpcdist.summary.repeats_table import repeats_tables
from hpcdist.summary.size_table import size_tables
from hpcdist.summary.table import Row, print_runs, print_titled, say, say_each
from hpcdist.summary.values import Comparison, Group, RunSummary, Summary
from hpcdist.summary.why import run_conclusions


def print_tables(summary: Summary, console: Console) -> None:
    """Print every job's part, then what could not be read."""
    if not summary.runs:
        say(console, "There is no run to summarize.", style="bold")
    for part in parts(summary):
        if part.comparison is not None:
            print_comparison(console, part.comparison, part.rows)
        else:
            first, *more = part_conclusions(part)
            say(console, first, style="bold")
            say_each(console, more)
            console.print()
            for table in (*size_tables(part.rows), *repeats_tables(part.rows)):
                print_titled(console, table)
            print_runs(
                console,
                part.rows,
                after_speed=losses_tables(part.groups, part.rows),
                last=accuracy_tables(part.rows),
            )
    if summary.skipped:
        say(console, "What could not be read:", style="bold")
        say_each(console, summary.skipped)


class Part(NamedTuple):
    """Runs that are looked at together: those of a job, or of a comparison."""

    rows: list[Row]
    comparison: Comparison | None
    groups: list[Group]
    """Of the job's runs that can be compared."""


def part_conclusions(part: Part) -> list[str]:
    """What the runs of a job say, and where the time of that goes which the first sentence is
    about."""
    runs = [row.run for row in part.rows]
    told_of = run_told_of(runs, part.groups)
    return [conclusion(runs, part.groups), *run_conclusions(told_of)]


def parts(summary: Summary) -> Iterator[Part]:
    """The parts of a summary, in order; runs are numbered through all of them."""
    comparisons = {comparison.id: comparison for comparison in summary.comparisons}
    for key, rows in itertools.groupby(_rows(summary), key=lambda row: _part(row.run)):
        found = list(rows)
        ids = {row.run.run for row in found}
        groups = [group for group in summary.groups if group.runs[0] in ids]
        yield Part(found, comparisons.get(key), groups)


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
