"""The report as Markdown, for issues, wikis and pull requests."""

from __future__ import annotations

from collections.abc import Iterator

from hpcdist.base.table import escape_markdown
from hpcdist.base.table import to_markdown as table_markdown
from hpcdist.base.text import shown
from hpcdist.summary.report.report import Report, Section


def to_markdown(report: Report) -> str:
    """Return a heading per section, its conclusions, its tables, and what was skipped."""
    lines = ["# Summary of runs"]
    if not report.sections:
        lines += ["", "There is no run to summarize."]
    for section in report.sections:
        lines += _section(section)
    if report.skipped:
        lines += ["", "## What could not be read", ""]
        lines += [f"- {escape_markdown(shown(text))}" for text in report.skipped]
    return "\n".join(lines) + "\n"


def _section(section: Section) -> Iterator[str]:
    yield from ("", f"## {escape_markdown(shown(section.name))}")
    for text in section.conclusions:
        yield from ("", f"**{escape_markdown(text)}**")
    for table in section.tables:
        yield from ("", *table_markdown(table))
    if section.remarks:
        yield ""
        yield from (f"- {escape_markdown(text)}" for text in section.remarks)
