"""The summary as text for people: part by part, the conclusion first.

This and table are the modules of the summary that import rich.
"""

from __future__ import annotations

from rich.console import Console

from hpcdist.base.text import shown
from hpcdist.summary.report.benchmark_table import benchmark_tables
from hpcdist.summary.report.part import Part, part_conclusions, parts
from hpcdist.summary.report.part_tables import PartTables, all_tables, main_tables
from hpcdist.summary.report.table import print_plain, print_remarks, print_titled, say, say_each
from hpcdist.summary.values import Summary


def print_tables(
    summary: Summary, console: Console, *, details: bool = False, times_accuracy: bool = False
) -> None:
    """Print every job's part, then what could not be read.

    Without `details` about a page: the answers, and the tables that they rest on. `times_accuracy`:
    a target was asked for, so that the times to it are an answer.
    """
    if not summary.runs:
        say(console, "There is no run to summarize.", style="bold")
    left_out: dict[str, None] = {}
    for part in parts(summary):
        tables = all_tables(part) if details else main_tables(part, times_accuracy=times_accuracy)
        _print_part(console, part, tables)
        left_out |= dict.fromkeys(tables.left_out)
    if summary.skipped:
        say(console, "What could not be read:", style="bold")
        say_each(console, summary.skipped)
    if left_out:
        say(console, f"Not shown: {', '.join(left_out)}. `hpcdist summary --details` has all.")


def _print_part(console: Console, part: Part, tables: PartTables) -> None:
    texts = part_conclusions(part)
    first = " ".join(texts[:1])  # a comparison of which only the first variant is there has none
    if part.comparison:
        first = ": ".join([f"comparison {shown(part.comparison.id)}", *texts[:1]])
    say(console, first, style="bold")
    say_each(console, [*texts[1:], *tables.told])
    console.print()
    for table in (*tables.first, *tables.runs):
        print_titled(console, table)
    for row in tables.rows:
        for plain in benchmark_tables(row.run, row.number):
            print_plain(console, plain)
    for table in tables.last:
        print_titled(console, table)
    print_remarks(console, tables.rows)
