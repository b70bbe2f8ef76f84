"""The summary as plain text in tables, part by part: what Markdown and the page are made of.

The columns and their texts are those of the tables on the terminal.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from hpcdist.base.text import shown
from hpcdist.summary.report.benchmark_table import benchmark_tables
from hpcdist.summary.report.part import Part, part_conclusions, parts
from hpcdist.summary.report.part_tables import all_tables
from hpcdist.summary.report.plain_table import PlainTable
from hpcdist.summary.report.table import Row, Titled, numbered_remarks
from hpcdist.summary.values import Summary

_HYPHENATED = ("speed-", "GPU-", "CPU-")
"""Words that have a hyphen on one line, too."""


class TextTable(NamedTuple):
    """Headers and cells as plain text; columns of text stand left, those of numbers right."""

    caption: str
    headers: list[str]
    are_numbers: list[bool]
    rows: list[list[str]]
    footnote: str


class Section(NamedTuple):
    """One part of the summary."""

    name: str
    """Of the job, or of the comparison."""
    conclusions: list[str]
    tables: list[TextTable]
    remarks: list[str]
    runs: list[Row]


def make_sections(summary: Summary) -> Iterator[Section]:
    """Every part of the summary, the conclusion first."""
    for part in parts(summary):
        yield Section(
            name=shown(part.comparison.id if part.comparison else part.rows[0].run.job),
            conclusions=part_conclusions(part),
            tables=list(_tables(part)),
            remarks=numbered_remarks(part.rows),
            runs=part.rows,
        )


def one_line(header: str) -> str:
    """A header as one line: the breaks, and hyphens at them, are for narrow terminals."""
    return shown(header.replace("-\n", "-" if header.startswith(_HYPHENATED) else ""))


def _tables(part: Part) -> Iterator[TextTable]:
    tables = all_tables(part)
    yield from map(_from_titled, (*tables.first, *tables.runs))
    for row in part.rows:
        yield from map(_from_plain, benchmark_tables(row.run, row.number))
    yield from map(_from_titled, tables.last)


def _from_titled(titled: Titled) -> TextTable:
    return TextTable(
        caption=titled.caption,
        headers=[one_line(column.header) for column in titled.columns],
        are_numbers=[column.is_number for column in titled.columns],
        rows=[[shown(str(column.cell(row))) for column in titled.columns] for row in titled.rows],
        footnote=titled.footnote,
    )


def _from_plain(plain: PlainTable) -> TextTable:
    return TextTable(
        caption=plain.caption,
        headers=[one_line(header) for header in plain.headers],
        are_numbers=[True] * len(plain.headers),
        rows=[[shown(cell) for cell in row] for row in plain.rows],
        footnote="",
    )
