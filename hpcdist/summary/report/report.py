"""The report: one value of sections, each with sentences and tables, which renderers show.

Which tables there are depends on who reads: on a terminal those that answer, elsewhere all.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from hpcdist.base.table import Table
from hpcdist.base.text import format_ranges, shown
from hpcdist.runs import benchmarks
from hpcdist.summary.compare.conclusions import (
    conclusions,
    headline,
    place_sentences,
    run_conclusions,
)
from hpcdist.summary.report.best import find_values, value_sentence, value_tables
from hpcdist.summary.report.cells import comparison_tables, share_tables, speed_tables
from hpcdist.summary.report.remarks import conclusion, leading_run, remarks
from hpcdist.summary.report.runs import (
    Row,
    accuracy_tables,
    goal_sentences,
    memory_tables,
    phase_tables,
    resource_tables,
    run_table,
    step_tables,
)
from hpcdist.summary.values import Comparison, Group, RunSummary, Summary

_MOST_RUNS = 20
"""Most runs in a brief report: a page, and all of a small sweep with repeats."""


class Topic(Enum):
    """The subject of tables and pictures that belong together."""

    SPEED = "Speed of each run"
    MEASURED = "Measurements"
    TIME = "Where the time goes"
    LEARNING = "Steps and learning"
    RESOURCES = "Memory and resources"


class Section(NamedTuple):
    """The runs of a job or of a comparison, and what they come to."""

    name: str
    """Name of the job, or id of the comparison."""
    comparison: Comparison | None
    groups: list[Group]
    """Groups of the job's runs that can be compared."""
    rows: list[Row]
    conclusions: list[str]
    """The first is the answer; the others are about the same run."""
    sentences: Sequence[str] = ()
    """Words that stand for a table that is left out."""
    tables: Sequence[Table[Any]] = ()
    topics: Mapping[Topic, Sequence[Table[Any]]] = {}
    """All tables by their subjects; empty in a brief report."""
    remarks: Sequence[str] = ()
    left_out: Sequence[str] = ()
    """Names of the tables that are left out."""


class Report(NamedTuple):
    """All that renderers show of a summary."""

    sections: list[Section]
    skipped: list[str]
    """Sentences on what could not be read."""


def make_report(summary: Summary, *, is_brief: bool = False) -> Report:
    """Make the report, with every table.

    With `is_brief` it has about a page: the answers, and the tables that they rest on.
    """
    sections = [
        _brief(section) if is_brief else _whole(section) for section in make_sections(summary)
    ]
    return Report(sections, summary.skipped)


def make_sections(summary: Summary) -> Iterator[Section]:
    """Yield the sections in order, without tables; runs are numbered through all of them: job by
    job in the order given, of a job comparable runs together, smallest first."""
    place = {
        run: (number, index)
        for number, group in enumerate(summary.groups)
        for index, run in enumerate(group.runs)
    }
    last = (len(summary.groups), 0)
    sections: dict[str, list[RunSummary]] = {}
    for run in summary.runs:
        sections.setdefault(run.comparison or run.job, []).append(run)
    comparisons = {comparison.id: comparison for comparison in summary.comparisons}
    numbers = itertools.count(1)
    for key, members in sections.items():
        runs = sorted(members, key=lambda run: place.get(run.run, last))
        ids = {run.run for run in runs}
        groups = [group for group in summary.groups if group.runs[0] in ids]
        comparison = comparisons.get(key)
        if comparison is not None:
            first = headline(comparison)
            texts = [*([first] if first else []), *conclusions(comparison)]
        else:
            leading = leading_run(runs, groups)
            texts = [conclusion(runs, groups), *run_conclusions(leading)]
            if values := find_values(runs):
                # Without a run that leads there is nothing else to conclude.
                answer = f"{shown(runs[0].job)}: {value_sentence(values)}"
                texts = [answer, *(texts if leading else [])]
            # What the same runs on several clusters answer is what was asked.
            texts[:0] = [
                f"{shown(places.job)}: {sentence}"
                for places in summary.places
                if places.job == key and places.places[0].runs[0] in ids
                for sentence in place_sentences(places)
            ]
        yield Section(
            name=comparison.id if comparison else runs[0].job,
            comparison=comparison,
            groups=groups,
            rows=[Row(number, run) for run, number in zip(runs, numbers, strict=False)],
            conclusions=texts,
        )


def _remarks(rows: Sequence[Row]) -> list[str]:
    """Number the remarks; one that holds for several runs stands once."""
    numbers: dict[str, list[int]] = {}
    for row in rows:
        for remark in dict.fromkeys(remarks(row.run, is_alone=len(rows) == 1)):
            numbers.setdefault(remark, []).append(row.number)
    return [f"#{format_ranges(runs)}: {remark}" for remark, runs in numbers.items()]


_DETAILS: tuple[tuple[str, Topic, Callable[[Sequence[Row]], Iterable[Table[Row]]]], ...] = (
    ("step times", Topic.LEARNING, step_tables),
    ("phases of a step", Topic.TIME, phase_tables),
    ("model states", Topic.RESOURCES, memory_tables),
    ("resources", Topic.RESOURCES, resource_tables),
    ("time to accuracy", Topic.LEARNING, accuracy_tables),
)


def _whole(section: Section) -> Section:
    rows, comparison = section.rows, section.comparison
    topics: dict[Topic, list[Table[Any]]] = {
        Topic.SPEED: [
            *(comparison_tables(comparison) if comparison else value_tables(rows)),
            *(() if comparison else speed_tables(section.groups, rows)),
            run_table(rows),
        ],
        Topic.MEASURED: list(_benchmarks(rows)),
        Topic.TIME: list(share_tables(section.groups, rows)),
        Topic.LEARNING: [],
        Topic.RESOURCES: [],
    }
    for _, topic, make in _DETAILS:
        topics[topic] += make(rows)
    tables = [table for of_topic in topics.values() for table in of_topic]
    return section._replace(tables=tables, topics=topics, remarks=_remarks(rows))


def _benchmarks(rows: Sequence[Row]) -> Iterator[Table[Any]]:
    for row in rows:
        if row.run.benchmark is not None:
            yield from benchmarks.to_tables(row.run.benchmark, row.number)


def _brief(section: Section) -> Section:
    """Fill in the tables that the conclusion rests on, and the table of runs: all of a few runs; of
    many, first those that are not done."""
    groups, comparison = section.groups, section.comparison
    by_need = sorted(section.rows, key=lambda row: row.run.state == "done")
    rows = sorted(by_need[:_MOST_RUNS], key=lambda row: row.number)
    shares: list[Table[Any]] = []
    num_shares = 0
    if comparison:
        answers: list[Table[Any]] = list(comparison_tables(comparison))
    else:
        # Of the group that the conclusion is about, or of all where each has one size only.
        leading = next(([group] for group in groups if group.baseline), groups)
        lossy = [group for group in leading if any(cell.largest for cell in group.cells)]
        shares = list(share_tables(lossy, section.rows))
        num_shares = len(list(share_tables(groups, section.rows)))
        answers = [*value_tables(section.rows), *speed_tables(groups, section.rows)]
    details = {name: list(make(rows)) for name, _, make in _DETAILS}
    is_goal_asked = any(run.time_to_accuracy and run.time_to_accuracy.is_asked for _, run in rows)
    has_phases = any(len(row.run.phase_s or {}) > 1 for row in rows)
    wanted = {
        "step times": not comparison,
        "phases of a step": has_phases and not (shares or comparison),
        "model states": len({row.run.model_states for row in rows} - {None}) > 1,
        "time to accuracy": is_goal_asked,
    }
    tables = [
        *answers,
        run_table(rows),
        *_benchmarks(rows),
        *shares,
        *(table for name in details if wanted.get(name) for table in details[name]),
    ]
    other = "where the time of other groups goes" if shares else "where the time goes"
    left_out = [
        *([other] if num_shares > len(shares) else []),
        *([f"some runs of {rows[0].run.job}"] if len(rows) < len(section.rows) else []),
        *(name for name, found in details.items() if found and not wanted.get(name)),
    ]
    goals = list(goal_sentences([row.run for row in section.rows])) if is_goal_asked else []
    return section._replace(
        sentences=goals, tables=tables, remarks=_remarks(rows), left_out=left_out
    )
