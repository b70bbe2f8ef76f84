"""Which tables a part of the summary has: all of them, or those that answer on a page.

Each figure stands once there: the speed-up of repeated sizes in the table of sizes, that of single
runs in the table of runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from hpcdist.base.text import format_ranges
from hpcdist.summary.report.accuracy_table import accuracy_tables
from hpcdist.summary.report.comparison_table import comparison_tables
from hpcdist.summary.report.losses_table import losses_tables
from hpcdist.summary.report.part import Part
from hpcdist.summary.report.repeats_table import repeats_tables
from hpcdist.summary.report.size_table import forecast_sentence, once_run, size_tables
from hpcdist.summary.report.table import (
    Row,
    Titled,
    memory_tables,
    phase_tables,
    resource_tables,
    speed_table,
    step_tables,
)
from hpcdist.summary.values import Group, RunSummary

_MOST_RUNS = 20
"""On a page; all of a small sweep with repeats."""
_ONE_EACH = "each size was run once: only repeats say how sure a speed-up is (--repeat 3)"


class PartTables(NamedTuple):
    """The tables of a part, in their order; those of benchmarks stand behind `runs`."""

    first: list[Titled]
    """What is compared."""
    runs: list[Titled]
    """With a line for each run."""
    last: list[Titled]
    rows: list[Row]
    """The runs that are listed."""
    told: list[str]
    """What stands in words for a table that is left out."""
    left_out: list[str]
    """What other tables there are."""


def all_tables(part: Part) -> PartTables:
    """Every table."""
    rows = part.rows
    compared = comparison_tables(part.comparison) if part.comparison else ()
    repeated = () if part.comparison else repeats_tables(rows)
    return PartTables(
        first=[*compared, *size_tables(rows), *repeated],
        runs=[speed_table(rows)],
        last=[
            *losses_tables(part.groups, rows),
            *(table for _, tables in _DETAILS for table in tables(rows)),
        ],
        rows=rows,
        told=[],
        left_out=[],
    )


_DETAILS: tuple[tuple[str, Callable[[Sequence[Row]], Iterable[Titled]]], ...] = (
    ("step times", step_tables),
    ("phases of a step", phase_tables),
    ("model states", memory_tables),
    ("resources", resource_tables),
    ("time to accuracy", accuracy_tables),
)


def main_tables(part: Part, *, times_accuracy: bool) -> PartTables:
    """Those that the conclusion rests on, and what each run came to."""
    rows = _listed(part.rows)
    losses = [] if part.comparison else list(losses_tables(_divided(part.groups), part.rows))
    compared = [row.run for row in part.rows if row.run.of_size]
    once = [] if part.comparison else once_run(part.rows)
    details = {name: list(tables(rows)) for name, tables in _DETAILS}
    if times_accuracy:
        details["time to accuracy"] = list(accuracy_tables(rows, is_asked=True))
    wanted = {
        "step times": part.comparison is None,
        "phases of a step": not (losses or part.comparison) and _has_phases(rows),
        "model states": len({row.run.model_states for row in rows} - {None}) > 1,
        "time to accuracy": times_accuracy,
    }
    return PartTables(
        first=_compared(part),
        runs=[speed_table(rows, has_speedups=bool(once), note=_how_sure(once, part.rows))],
        last=[*losses, *(one for name in details if wanted.get(name) for one in details[name])],
        rows=rows,
        told=list(_forecasts(compared if part.comparison else once, part.rows)),
        left_out=[
            *(["how sure each speed-up is"] if once else []),
            *_other_losses(part, losses),
            *([f"some runs of {part.rows[0].run.job}"] if len(rows) < len(part.rows) else []),
            *(name for name, tables in details.items() if tables and not wanted.get(name)),
        ],
    )


def _listed(rows: list[Row]) -> list[Row]:
    """All of a few; of many some, those that are not done before others."""
    by_need = sorted(rows, key=lambda row: row.run.state == "done")
    return sorted(by_need[:_MOST_RUNS], key=lambda row: row.number)


def _compared(part: Part) -> list[Titled]:
    if part.comparison:
        return list(comparison_tables(part.comparison))
    return [*size_tables(part.rows, only_repeated=True), *repeats_tables(part.rows)]


def _divided(groups: Sequence[Group]) -> list[Group]:
    """Those that have something to divide: the one that the conclusion is about, or where there is
    one size only in each, all."""
    told = next(([group] for group in groups if group.baseline), groups)
    return [group for group in told if any(lost.largest for lost in group.losses)]


def _other_losses(part: Part, shown: Sequence[Titled]) -> Iterator[str]:
    if not part.comparison and len(list(losses_tables(part.groups, part.rows))) > len(shown):
        yield "where the time of other groups goes" if shown else "where the time goes"


def _has_phases(rows: Sequence[Row]) -> bool:
    return any(len(row.run.phase_s or {}) > 1 for row in rows)


def _forecasts(runs: Sequence[RunSummary], rows: Sequence[Row]) -> Iterator[str]:
    """In words where the table of sizes, which has it else, is left out."""
    by_id = {row.run.run: row.run for row in rows}
    for run in runs:
        if run.forecast and not run.forecast.refused_because:
            yield forecast_sentence(run.forecast, by_id[run.compared_with[0]])
            return


def _how_sure(once: Sequence[RunSummary], rows: Sequence[Row]) -> str:
    """What the table of sizes has to say of that, where it is left out."""
    if not once:
        return ""
    alike = {run.run for run in once if run.of_size and run.of_size.differs_from_baseline is False}
    numbers = format_ranges([row.number for row in rows if row.run.run in alike])
    is_same = f"not distinguishable from the baseline: #{numbers}\n" if numbers else ""
    return f"{is_same}{_which(once, rows)}{_ONE_EACH}"


def _which(once: Sequence[RunSummary], rows: Sequence[Row]) -> str:
    """Of which runs it is said, where there are others that are compared."""
    ids = {run.run for run in once}
    if all(row.run.run in ids for row in rows if row.run.of_size):
        return ""
    return f"#{format_ranges([row.number for row in rows if row.run.run in ids])}: "
