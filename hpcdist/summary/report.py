"""The summary as text for people: part by part, the conclusion first.

This, table and comparison_table are the modules of the summary that import rich.
"""

from __future__ import annotations

import itertools

from rich.console import Console

from hpcdist.summary.comparison_table import print_comparison
from hpcdist.summary.remarks import conclusion
from hpcdist.summary.repeats_table import print_repeats
from hpcdist.summary.table import Row, print_runs, say, say_each
from hpcdist.summary.values import RunSummary, Summary


def print_tables(summary: Summary, console: Console) -> None:
    """Print every job's part, then what could not be read."""
    if not summary.runs:
        say(console, "There is no run to summarize.", style="bold")
    rows = _rows(summary)
    comparisons = {comparison.id: comparison for comparison in summary.comparisons}
    for key, grouped in itertools.groupby(rows, key=lambda row: _part(row.run)):
        part = list(grouped)
        if (comparison := comparisons.get(key)) is not None:
            print_comparison(console, comparison, part)
        else:
            say(console, conclusion([row.run for row in part]), style="bold")
            console.print()
            print_repeats(console, part)
            print_runs(console, part)
    if summary.skipped:
        say(console, "What could not be read:", style="bold")
        say_each(console, summary.skipped)


def _rows(summary: Summary) -> list[Row]:
    """Job by job in the order given; within a job comparable runs together, smallest first."""
    place = {
        run: (number, index)
        for number, group in enumerate(summary.groups)
        for index, run in enumerate(group.runs)
    }
    parts: dict[str, int] = {}
    for run in summary.runs:
        parts.setdefault(_part(run), len(parts))
    last = (len(summary.groups), 0)
    ordered = sorted(summary.runs, key=lambda run: (parts[_part(run)], place.get(run.run, last)))
    return [Row(number, run) for number, run in enumerate(ordered, 1)]


def _part(run: RunSummary) -> str:
    """Runs that are looked at together: those of a comparison, or of a job."""
    return run.comparison or run.job
