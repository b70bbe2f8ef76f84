"""The report: one value of sections, each with sentences and tables, which renderers show."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from msgspec import Raw

from hpcdist.base.table import Table
from hpcdist.base.text import format_ranges, shown
from hpcdist.bench.cells import to_tables
from hpcdist.summary.compare.planned import sentence
from hpcdist.summary.report.best import Value, find_values, value_sentence, value_tables
from hpcdist.summary.report.cells import share_tables, speed_tables
from hpcdist.summary.report.runs import (
    Row,
    memory_tables,
    resource_tables,
    run_table,
    step_tables,
)
from hpcdist.summary.report.sentences import (
    cell_conclusions,
    conclusion,
    conclusions,
    headline,
    leading_run,
    place_sentences,
    remarks,
)
from hpcdist.summary.values import Group, RunSummary, Summary


class Topic(Enum):
    """The subject of tables and pictures that belong together."""

    SPEED = "Results of each run"
    MEASURED = "Measurements"
    TIME = "Where the time goes"
    LEARNING = "Steps and learning"
    RESOURCES = "Memory and resources"


class Section(NamedTuple):
    """The runs of a job or of a comparison, and what they come to."""

    name: str
    """Name of the job, or id of the comparison."""
    comparison: Group | None
    groups: list[Group]
    """Groups of the job's runs that can be compared."""
    rows: list[Row]
    conclusions: list[str]
    """The first is the answer."""
    topics: Mapping[Topic, Sequence[Table[Any]]] = {}
    values: Sequence[Value] = ()
    """The values of settings that the runs differ in, best first."""
    remarks: Sequence[str] = ()
    series: Mapping[str, Raw] = {}
    """Encoded curves of runs, by their directories."""

    @property
    def tables(self) -> list[Table[Any]]:
        return [table for of_topic in self.topics.values() for table in of_topic]


class Report(NamedTuple):
    """All that renderers show of a summary."""

    sections: list[Section]
    skipped: list[str]
    """Sentences on what could not be read."""


def make_report(summary: Summary) -> Report:
    """Make the report, with every table."""
    return Report([_with_tables(each) for each in make_sections(summary)], summary.skipped)


def make_sections(summary: Summary) -> Iterator[Section]:
    """Yield the sections in order, without tables; runs are numbered through all of them: job by
    job in the order given, of a job comparable runs together, smallest first."""
    ordered = itertools.chain.from_iterable(group.runs for group in summary.groups)
    place = {run: place for place, run in enumerate(ordered)}
    sections: dict[str, list[RunSummary]] = {}
    for run in summary.runs:
        sections.setdefault(run.comparison or run.job, []).append(run)
    comparisons = {comparison.name: comparison for comparison in summary.comparisons}
    numbers = itertools.count(1)
    for key, members in sections.items():
        runs = sorted(members, key=lambda run: place.get(run.run, len(place)))
        ids = {run.run for run in runs}
        groups = [group for group in summary.groups if group.runs[0] in ids]
        comparison, values = comparisons.get(key), find_values(runs)
        if comparison is not None:
            texts = [text for text in [headline(comparison)] if text] + conclusions(comparison)
        else:
            leading = leading_run(runs, groups)
            of_leading = cell_conclusions(leading.cell) if leading and leading.cell else []
            texts = [conclusion(runs, groups), *of_leading]
            if values:
                # Without a run that leads there is nothing else to conclude.
                answer = f"{shown(runs[0].job)}: {value_sentence(values)}"
                texts = [answer, *(texts if leading else [])]
            # What the same runs on several clusters answer is what was asked.
            texts[:0] = [
                f"{shown(places.job)}: {sentence}"
                for places in summary.places
                if places.runs[0] in ids
                for sentence in place_sentences(places)
            ]
        yield Section(
            name=key,
            comparison=comparison,
            groups=groups,
            rows=[Row(number, run) for run, number in zip(runs, numbers, strict=False)],
            conclusions=texts,
            values=values,
            series=summary.series,
        )


def _with_tables(section: Section) -> Section:
    rows = section.rows
    compared = [section.comparison] if section.comparison else section.groups
    topics: dict[Topic, list[Table[Any]]] = {
        Topic.SPEED: [
            *value_tables(section.values),
            *speed_tables(compared, rows),
            run_table(rows),
        ],
        Topic.MEASURED: list(_benchmarks(rows)),
        Topic.TIME: list(share_tables(compared, rows)),
        Topic.LEARNING: list(step_tables(rows)),
        Topic.RESOURCES: [
            *memory_tables(rows),
            *resource_tables(rows),
        ],
    }
    planned = filter(None, [sentence([row.run for row in rows])])
    return section._replace(topics=topics, remarks=[*_remarks(rows), *planned])


def _remarks(rows: Sequence[Row]) -> list[str]:
    """Number the remarks; one that holds for several runs stands once."""
    numbers: dict[str, list[int]] = {}
    for row in rows:
        for remark in dict.fromkeys(map(shown, remarks(row.run, is_alone=len(rows) == 1))):
            numbers.setdefault(remark, []).append(row.number)
    return [f"#{format_ranges(runs)}: {remark}" for remark, runs in numbers.items()]


def _benchmarks(rows: Sequence[Row]) -> Iterator[Table[Any]]:
    for row in rows:
        if row.run.benchmark is not None:
            yield from to_tables(row.run.benchmark, row.number)
