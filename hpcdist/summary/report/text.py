"""The report as text, on a terminal and in Markdown: section by section, the conclusion first; and
the figures as CSV."""

from __future__ import annotations

import operator
import sys
from typing import TextIO

import msgspec
from rich.console import Console
from rich.text import Text

from hpcdist.base import table
from hpcdist.base.table import Column, Table, escape_markdown
from hpcdist.base.text import harmless, number_of, shown
from hpcdist.summary.figures.run import flatten
from hpcdist.summary.report.report import Report
from hpcdist.summary.values import Summary, to_json

WIDTH_WITHOUT_TERMINAL = 120
_MOST_ROWS = 40
"""Rows of a table that are printed: of the runs of a large sweep, others are in files."""


def make_console(file: TextIO | None = None) -> Console:
    """Return a console on `file`, or on stdout, without colour and of fixed width where that is not
    a terminal."""
    is_terminal = (file or sys.stdout).isatty()
    return Console(file=file, width=None if is_terminal else WIDTH_WITHOUT_TERMINAL)


def print_report(report: Report, console: Console) -> None:
    """Print every section, of long tables the first rows, then what could not be read."""
    if not report.sections:
        say(console, "There is no run to summarize.", style="bold")
    for section in report.sections:
        head = section.conclusions[:1]  # of a comparison's first variant alone there is none
        name = [f"comparison {shown(section.name)}"] if section.comparison else []
        say(console, ": ".join([*name, *head]), style="bold")
        say(console, *map(shown, section.conclusions[1:]), indent="  ")
        console.print()
        for each in section.tables:
            console.print(msgspec.structs.replace(each, rows=each.rows[:_MOST_ROWS]))
            if (more := len(each.rows) - _MOST_ROWS) > 0:
                say(console, f"... and {number_of(more, 'row')} more: --csv and --html have all")
            console.print()
        say(console, *map(shown, section.remarks), indent="  ")
        if section.remarks:
            console.print()
    if report.skipped:
        say(console, "What could not be read:", style="bold")
        say(console, *map(shown, report.skipped), indent="  ")


def say(console: Console, *texts: str, style: str = "", indent: str = "") -> None:
    """Print texts as they are, also brackets, which rich would take for markup: each on lines of
    the console's width, none of which ends in blanks. Nothing in them acts on the terminal."""
    for each in texts:
        text = Text(harmless(each), style=style)
        for line in text.wrap(console, console.width - len(indent)):
            line.rstrip()
            console.print(Text(indent).append_text(line))


def to_markdown(report: Report) -> str:
    """Return the report as Markdown: a heading for each section, its conclusions and tables, and
    what was skipped."""
    lines = ["# Summary of runs"]
    if not report.sections:
        lines += ["", "There is no run to summarize."]
    for section in report.sections:
        lines += ["", f"## {escape_markdown(shown(section.name))}"]
        for text in section.conclusions:
            lines += ["", f"**{escape_markdown(text)}**"]
        for each in section.tables:
            lines += ["", *table.to_markdown(each)]
        if section.remarks:
            lines += ["", *(f"- {escape_markdown(text)}" for text in section.remarks)]
    if report.skipped:
        lines += ["", "## What could not be read", ""]
        lines += [f"- {escape_markdown(shown(text))}" for text in report.skipped]
    return "\n".join(lines) + "\n"


def to_csv(summary: Summary) -> str:
    """Return a header and a line per run, in order, for spreadsheets and data frames.

    Columns are called as the keys of the JSON, with dots between keys within keys: so units stand
    in the headers, and numbers are not rounded. Lists have no column, nor has what no run has;
    unknown values are empty.
    """
    rows = [
        {
            name: value
            for name, value in flatten(run).items()
            if value is not None and not isinstance(value, (list, dict))
        }
        for run in to_json(summary)
    ]
    names = dict.fromkeys(name for row in rows for name in row)
    columns = [Column(name, operator.methodcaller("get", name)) for name in names]
    return table.to_csv(Table("", columns, rows))
