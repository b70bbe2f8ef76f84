"""The report: one value of sections, each with sentences and tables, which renderers show.

Which tables there are depends on who reads: on a terminal those that answer, elsewhere all. Each
figure stands once on a terminal: the speed-up of repeated sizes in the table of sizes, that of
single runs in the table of runs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from hpcdist.base.table import Table
from hpcdist.base.text import format_ranges
from hpcdist.summary.compare.conclusions import conclusions, headline, run_conclusions
from hpcdist.summary.report.remarks import conclusion, leading_run, remarks
from hpcdist.summary.report.resources import resource_tables
from hpcdist.summary.report.runs import (
    Row,
    accuracy_tables,
    memory_tables,
    phase_tables,
    repeats_tables,
    speed_table,
    step_tables,
)
from hpcdist.summary.report.scaling import forecast_sentence, once_run, size_tables
from hpcdist.summary.report.shares import comparison_tables, share_tables
from hpcdist.summary.values import Comparison, Group, RunSummary, Summary

_MOST_RUNS = 20
"""Most runs in a brief report: a page, and all of a small sweep with repeats."""
_ONE_EACH = "each size was run once: only repeats show how certain a speed-up is (--repeat 3)"


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
    remarks: Sequence[str] = ()
    left_out: Sequence[str] = ()
    """Names of the tables that are left out."""


class Report(NamedTuple):
    """All that renderers show of a summary."""

    sections: list[Section]
    skipped: list[str]
    """Sentences on what could not be read."""


def make_report(
    summary: Summary, *, is_brief: bool = False, times_accuracy: bool = False
) -> Report:
    """Make the report, with every table.

    With `is_brief` it has about a page: the answers, and the tables that they rest on.
    `times_accuracy`: a target was asked for, so that the times to it are an answer.
    """
    sections = [
        _brief(section, times_accuracy=times_accuracy) if is_brief else _whole(section)
        for section in make_sections(summary)
    ]
    return Report(sections, summary.skipped)


def make_sections(summary: Summary) -> Iterator[Section]:
    """Yield the sections in order, without tables; runs are numbered through all of them."""
    comparisons = {comparison.id: comparison for comparison in summary.comparisons}
    for key, grouped in itertools.groupby(_rows(summary), key=lambda row: _key(row.run)):
        rows = list(grouped)
        ids = {row.run.run for row in rows}
        groups = [group for group in summary.groups if group.runs[0] in ids]
        comparison = comparisons.get(key)
        yield Section(
            name=comparison.id if comparison else rows[0].run.job,
            comparison=comparison,
            groups=groups,
            rows=rows,
            conclusions=_conclusions(rows, groups, comparison),
        )


def _rows(summary: Summary) -> list[Row]:
    """Sort job by job in the order given; of a job comparable runs together, smallest first."""
    place = {
        run: (number, index)
        for number, group in enumerate(summary.groups)
        for index, run in enumerate(group.runs)
    }
    order: dict[str, int] = {}
    for run in summary.runs:
        order.setdefault(_key(run), len(order))
    last = (len(summary.groups), 0)
    ordered = sorted(summary.runs, key=lambda run: (order[_key(run)], place.get(run.run, last)))
    return [Row(number, run) for number, run in enumerate(ordered, 1)]


def _key(run: RunSummary) -> str:
    """Return what the runs of one section have in common."""
    return run.comparison or run.job


def _conclusions(
    rows: Sequence[Row], groups: Sequence[Group], comparison: Comparison | None
) -> list[str]:
    if comparison is not None:
        first = headline(comparison)
        return [*([first] if first else []), *conclusions(comparison)]
    runs = [row.run for row in rows]
    return [conclusion(runs, groups), *run_conclusions(leading_run(runs, groups))]


def _remarks(rows: Sequence[Row]) -> list[str]:
    """Number the remarks; one that holds for several runs stands once."""
    numbers: dict[str, list[int]] = {}
    for row in rows:
        for remark in remarks(row.run, is_alone=len(rows) == 1):
            numbers.setdefault(remark, []).append(row.number)
    return [f"#{format_ranges(runs)}: {remark}" for remark, runs in numbers.items()]


_DETAILS: tuple[tuple[str, Callable[[Sequence[Row]], Iterable[Table[Row]]]], ...] = (
    ("step times", step_tables),
    ("phases of a step", phase_tables),
    ("model states", memory_tables),
    ("resources", resource_tables),
    ("time to accuracy", accuracy_tables),
)


def _whole(section: Section) -> Section:
    rows, comparison = section.rows, section.comparison
    tables = [
        *(comparison_tables(comparison) if comparison else ()),
        *size_tables(rows),
        *(() if comparison else repeats_tables(rows)),
        speed_table(rows),
        *_benchmarks(rows),
        *share_tables(section.groups, rows),
        *(table for _, make in _DETAILS for table in make(rows)),
    ]
    return section._replace(tables=tables, remarks=_remarks(rows))


def _benchmarks(rows: Sequence[Row]) -> Iterator[Table[Any]]:
    for row in rows:
        for benchmark, result in row.run.benchmark_results:
            yield from benchmark.tables(result, row.number)


def _brief(section: Section, *, times_accuracy: bool) -> Section:
    """Fill in the tables that the conclusion rests on, and the table of runs."""
    rows = _listed(section.rows)
    is_comparison = section.comparison is not None
    shares = [] if is_comparison else list(share_tables(_divided(section.groups), section.rows))
    compared = [row.run for row in section.rows if row.run.of_size]
    once = [] if is_comparison else once_run(section.rows)
    details = {name: list(make(rows)) for name, make in _DETAILS}
    if times_accuracy:
        details["time to accuracy"] = list(accuracy_tables(rows, is_asked=True))
    wanted = {
        "step times": not is_comparison,
        "phases of a step": not (shares or is_comparison) and _has_phases(rows),
        "model states": len({row.run.model_states for row in rows} - {None}) > 1,
        "time to accuracy": times_accuracy,
    }
    tables = [
        *_compared(section),
        speed_table(rows, has_speedups=bool(once), note=_how_sure(once, section.rows)),
        *_benchmarks(rows),
        *shares,
        *(table for name in details if wanted.get(name) for table in details[name]),
    ]
    left_out = [
        *(["how sure each speed-up is"] if once else []),
        *_other_shares(section, shares),
        *([f"some runs of {rows[0].run.job}"] if len(rows) < len(section.rows) else []),
        *(name for name, found in details.items() if found and not wanted.get(name)),
    ]
    return section._replace(
        sentences=list(_forecasts(compared if is_comparison else once, section.rows)),
        tables=tables,
        remarks=_remarks(rows),
        left_out=left_out,
    )


def _listed(rows: list[Row]) -> list[Row]:
    """Return all of a few runs; of many, first those that are not done."""
    by_need = sorted(rows, key=lambda row: row.run.state == "done")
    return sorted(by_need[:_MOST_RUNS], key=lambda row: row.number)


def _compared(section: Section) -> list[Table[Any]]:
    if section.comparison:
        return list(comparison_tables(section.comparison))
    return [*size_tables(section.rows, only_repeated=True), *repeats_tables(section.rows)]


def _divided(groups: Sequence[Group]) -> list[Group]:
    """Return groups that lost time: the one that the conclusion is about, or all where each has one
    size only."""
    leading = next(([group] for group in groups if group.baseline), groups)
    return [group for group in leading if any(lost.largest for lost in group.losses)]


def _other_shares(section: Section, tables: Sequence[Table[Any]]) -> Iterator[str]:
    if section.comparison is None:
        num_all = len(list(share_tables(section.groups, section.rows)))
        if num_all > len(tables):
            yield "where the time of other groups goes" if tables else "where the time goes"


def _has_phases(rows: Sequence[Row]) -> bool:
    return any(len(row.run.phase_s or {}) > 1 for row in rows)


def _forecasts(runs: Sequence[RunSummary], rows: Sequence[Row]) -> Iterator[str]:
    """Say the forecast where the table of sizes, which has it, is left out."""
    by_id = {row.run.run: row.run for row in rows}
    for run in runs:
        if run.forecast and not run.forecast.refused_because:
            yield forecast_sentence(run.forecast, by_id[run.compared_with[0]])
            return


def _how_sure(once: Sequence[RunSummary], rows: Sequence[Row]) -> str:
    """Return what the table of sizes says of that, where it is left out."""
    if not once:
        return ""
    alike = {run.run for run in once if run.of_size and run.of_size.differs_from_baseline is False}
    numbers = format_ranges([row.number for row in rows if row.run.run in alike])
    is_same = f"not distinguishable from the baseline: #{numbers}\n" if numbers else ""
    return f"{is_same}{_which(once, rows)}{_ONE_EACH}"


def _which(once: Sequence[RunSummary], rows: Sequence[Row]) -> str:
    """Name the runs that it holds for, where others are compared as well."""
    ids = {run.run for run in once}
    if all(row.run.run in ids for row in rows if row.run.of_size):
        return ""
    return f"#{format_ranges([row.number for row in rows if row.run.run in ids])}: "
