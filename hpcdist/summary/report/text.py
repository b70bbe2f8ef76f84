"""The report as text, on a terminal and in Markdown: section by section, the conclusion first."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TextIO

import msgspec
from rich.console import Console
from rich.text import Text

from hpcdist.base import table
from hpcdist.base.table import escape_markdown
from hpcdist.base.text import harmless, number_of, shown
from hpcdist.summary.report.report import Report

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
        say_each(console, section.conclusions[1:])
        console.print()
        for each in section.tables:
            console.print(msgspec.structs.replace(each, rows=each.rows[:_MOST_ROWS]))
            if (more := len(each.rows) - _MOST_ROWS) > 0:
                say(console, f"... and {number_of(more, 'row')} more: --csv and --html have all")
            console.print()
        say_each(console, section.remarks)
        if section.remarks:
            console.print()
    if report.skipped:
        say(console, "What could not be read:", style="bold")
        say_each(console, report.skipped)


def say(console: Console, text: str, style: str = "") -> None:
    """Print a text as it is, also brackets, which rich would take for markup; nothing in it acts on
    the terminal."""
    _print_wrapped(console, Text(harmless(text), style=style))


def say_each(console: Console, texts: Iterable[str]) -> None:
    """Print texts, indented, each on lines of its own."""
    for text in texts:
        _print_wrapped(console, Text(shown(text)), indent="  ")


def _print_wrapped(console: Console, text: Text, indent: str = "") -> None:
    """Print a text on lines of the console's width, none of which ends in blanks."""
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
