"""What the page shows, as plain values for the template."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from hpcdist.base.terminal_lines import last_lines
from hpcdist.base.text import UNDEFINED, shown
from hpcdist.runs.run import Run
from hpcdist.runs.spec import RunSpec
from hpcdist.summary.report.page.again import command_again
from hpcdist.summary.report.page.inline_svg import draw_inline
from hpcdist.summary.report.pictures.catalogue import find_pictures
from hpcdist.summary.report.sections import Section, TextTable, make_sections
from hpcdist.summary.report.table import Row
from hpcdist.summary.values import RunSummary, Summary

LOG_LINES = 40
_LONGEST_LINE = 2_000
"""Of a log, in characters: those of progress bars can be long, and many runs may have failed."""

_NUMBER = re.compile(r"(-?[\d,]*\.?\d+)(?:\s*(?:([KMGTP])iB|B)\b)?")
_SIZE = re.compile(r"(\d+) x (\d+)")
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}


class Cell(NamedTuple):
    """A cell, and by what its column is sorted; that is empty where the value is not known."""

    text: str
    sort: str


class PageTable(NamedTuple):
    """A table whose columns can be sorted."""

    table: TextTable
    rows: list[list[Cell]]


class PageRun(NamedTuple):
    """What there is to say of one run below the tables."""

    number: int
    id: str
    state: str
    is_failed: bool
    told: str
    """The verdict on a run that did not end well."""
    log_name: str
    log: str
    """The end of the log of the rank that failed first."""
    again: str | None


class PagePicture(NamedTuple):
    """A picture in the page."""

    title: str
    told: str
    svg: str


class PagePart(NamedTuple):
    """One part of the summary."""

    section: Section
    tables: list[PageTable]
    pictures: list[PagePicture]
    runs: list[PageRun]


def page_parts(summary: Summary) -> list[PagePart]:
    """All parts; draws their pictures, and reads the specs of runs and the logs of failed ones."""
    pictures: dict[int, list[PagePicture]] = defaultdict(list)
    for index, picture in find_pictures(summary):
        drawn = PagePicture(picture.title, picture.told, draw_inline(picture))
        pictures[index].append(drawn)
    return [
        PagePart(
            section=section,
            tables=[PageTable(table, _cells(table)) for table in section.tables],
            pictures=pictures[index],
            runs=[_run(row) for row in section.runs],
        )
        for index, section in enumerate(make_sections(summary))
    ]


def sort_key(text: str) -> str:
    """The first number in a cell, sizes in bytes, and of nodes x GPUs how many GPUs that are; the
    text itself where it begins with none."""
    if text == UNDEFINED:
        return ""
    if size := _SIZE.fullmatch(text):
        return repr(float(int(size[1]) * int(size[2])))
    match = _NUMBER.match(text)
    if match is None:
        return text
    number = float(match[1].replace(",", ""))
    return repr(number * _BINARY.get(match[2] or "", 1))


def _cells(table: TextTable) -> list[list[Cell]]:
    return [
        [
            Cell(text, sort_key(text) if is_number else text)
            for text, is_number in zip(row, table.are_numbers, strict=True)
        ]
        for row in table.rows
    ]


def _run(row: Row) -> PageRun:
    run = row.run
    is_failed = run.verdict is not None and run.verdict.kind != "done"
    log = _log_file(run) if is_failed else None
    spec = Run(Path(run.path)).read_spec() if run.path else None
    return PageRun(
        number=row.number,
        id=shown(run.run),
        state=run.state or "unknown",
        is_failed=is_failed,
        told=shown(run.verdict.message) if run.verdict and is_failed else "",
        log_name=shown(run.verdict.log or "") if run.verdict else "",
        log=_tail(log) if log else "",
        again=command_again(spec or RunSpec()),
    )


def _log_file(run: RunSummary) -> Path | None:
    """Only a file of the run itself: a folder from elsewhere could name any."""
    if run.path is None or run.verdict is None or not run.verdict.log:
        return None
    folder = Path(run.path).resolve()
    file = (folder / run.verdict.log).resolve()
    return file if file.is_relative_to(folder) and file.is_file() else None


def _tail(file: Path) -> str:
    return "\n".join(_cut(line) for line in last_lines(file, LOG_LINES))


def _cut(line: str) -> str:
    left = len(line) - _LONGEST_LINE
    return line if left <= 0 else f"{line[:_LONGEST_LINE]} ... and {left:,} more characters"
