"""The summary as Markdown: the tables of the terminal, for issues, wikis and pull requests."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hpcdist.base.text import shown
from hpcdist.summary.report.sections import Section, TextTable, make_sections
from hpcdist.summary.values import Summary

_MARKS = re.compile(r"([\\`*_{}\[\]<>#|~$])")


def to_markdown(summary: Summary) -> str:
    """A heading per part, its conclusion, its tables, and what was skipped."""
    lines = ["# Summary of runs"]
    if not summary.runs:
        lines += ["", "There is no run to summarize."]
    for section in make_sections(summary):
        lines += _section(section)
    if summary.skipped:
        lines += ["", "## What could not be read", ""]
        lines += [f"- {escaped(shown(text))}" for text in summary.skipped]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    """Text in which nothing means anything to Markdown, nor to HTML in it."""
    return _MARKS.sub(r"\\\1", text.replace("&", "&amp;"))


def _section(section: Section) -> Iterator[str]:
    yield from ("", f"## {escaped(section.name)}")
    for text in section.conclusions:
        yield from ("", f"**{escaped(text)}**")
    for table in section.tables:
        yield from _table(table)
    if section.remarks:
        yield ""
        yield from (f"- {escaped(text)}" for text in section.remarks)


def _table(table: TextTable) -> Iterator[str]:
    yield ""
    if table.caption:
        yield from (escaped(table.caption), "")
    yield _line([escaped(header) for header in table.headers])
    yield _line(["---:" if is_number else "---" for is_number in table.are_numbers])
    for row in table.rows:
        yield _line([escaped(cell) for cell in row])
    for note in table.footnote.splitlines():  # lines that follow each other would be run together
        yield from ("", escaped(note))


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
