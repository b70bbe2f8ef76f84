"""From the events of runs to figures and tables.

One way through: collect (files to records), metrics and timing (records to a `RunSummary` per run),
scaling (which runs compare, speed-up) and variants (what a comparison says), then report (tables)
and plot. What comes before those two and after collect is pure; nothing here imports torch or
numpy but matplotlib for plot, and only report and the tables import rich.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hpcdist.run import Run
from hpcdist.summary import collect, metrics, scaling
from hpcdist.summary.collect import foreign_entries
from hpcdist.summary.values import Group, RunSummary, Summary, to_json
from hpcdist.verdict import State

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "Group",
    "RunSummary",
    "Summary",
    "foreign_entries",
    "print_summary",
    "summarize",
    "to_json",
]


def summarize(runs: Sequence[Run], states: Mapping[str, State]) -> Summary:
    """Runs in figures, in the order given; what is no run is skipped and told.

    `states` holds, by run id, the scheduler's word on runs that have no verdict.
    """
    measured: list[metrics.MeasuredRun] = []
    skipped: list[str] = []
    for run in runs:
        record = collect.read_run(run)
        if isinstance(record, str):
            skipped.append(record)
            continue
        skipped += record.skipped
        ranks = []
        for rank_record in collect.read_ranks(run):
            skipped += rank_record.skipped
            ranks.append(metrics.measure_rank(rank_record))
        measured.append(metrics.measure_run(record, ranks, states.get(run.id)))
    summaries, groups, comparisons = scaling.compare(measured)
    return Summary(runs=summaries, groups=groups, comparisons=comparisons, skipped=skipped)


def print_summary(summary: Summary, console: Console | None = None) -> None:
    """Print what `hpcdist summary` shows; on stdout where no console is given."""
    from hpcdist.summary.report import print_tables
    from hpcdist.summary.table import make_console

    print_tables(summary, console or make_console())
