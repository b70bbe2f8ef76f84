"""From the events of runs to figures and tables.

One way through: collect and event_file (files to records), metrics and timing (records to a
`RunSummary` per run), scaling (which runs compare, speed-up), sizes and forecast (how sure that is,
and what more GPUs would bring) and variants (what a comparison says), then report (tables) and
plot. The first two are spread over processes by measuring, and left out for runs that cache knows.
What comes after collect and before report is pure; nothing here imports torch, numpy only where
there is something to forecast or to draw, and only report and the tables import rich.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from hpcdist.runs.run import Run
from hpcdist.runs.verdict import State
from hpcdist.schedulers.base import Accounting
from hpcdist.summary.compare.forecast import with_forecasts
from hpcdist.summary.compare.groups import compare_runs, configurations, groups_within
from hpcdist.summary.compare.sizes import with_repeats, with_sizes
from hpcdist.summary.figures import metrics
from hpcdist.summary.figures.attempts import with_times_to_accuracy
from hpcdist.summary.measuring import find_measurements
from hpcdist.summary.read import collect
from hpcdist.summary.read.cache import SummaryCache
from hpcdist.summary.read.search import search_runs
from hpcdist.summary.values import Group, RunSummary, Summary, to_json

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "Group",
    "RunSummary",
    "Summary",
    "SummaryCache",
    "print_summary",
    "search_runs",
    "summarize",
    "to_json",
]


def summarize(
    runs: Sequence[Run],
    states: Mapping[str, State],
    *,
    accounting: Mapping[str, Accounting] | None = None,
    cache: SummaryCache | None = None,
    num_workers: int | None = 1,
    warn: Callable[[str], None] | None = None,
    target_accuracy: float | None = None,
) -> Summary:
    """Runs in figures, in the order given; what is no run is skipped and told.

    `states` holds, by run id, the scheduler's word on runs that have no verdict, and `accounting`
    what it has on their jobs. With a cache, only
    runs that changed are read. `num_workers` processes are forked for it where there is much to
    read; None is one per CPU. `warn` is told where the cache cannot be written. The time to
    `target_accuracy` is told; to the most that all done runs of a job came to, where it is None.
    """
    found = find_measurements(runs, cache=cache, num_workers=num_workers, warn=warn)
    measured: list[metrics.MeasuredRun] = []
    skipped: list[str] = []
    for run, measurement in zip(runs, found, strict=True):
        skipped += [collect.sentence(run, fault) for fault in measurement.faults]
        if measurement.run is not None:
            measured.append(
                metrics.place_run(
                    measurement.run,
                    run.path,
                    state=states.get(run.id),
                    accounting=(accounting or {}).get(run.id),
                )
            )
    summaries, groups, comparisons = compare_runs(measured)
    summaries = with_times_to_accuracy(summaries, measured, target=target_accuracy)
    sized = [*groups, *groups_within(measured, comparisons)]
    summaries = with_forecasts(with_sizes(with_repeats(summaries, groups), sized), sized)
    digests = configurations([run.conditions for run in measured])
    summaries = [
        msgspec.structs.replace(run, **one._asdict())
        for run, one in zip(
            with_repeats(with_sizes(summaries, groups), groups), digests, strict=True
        )
    ]
    return Summary(runs=summaries, groups=groups, comparisons=comparisons, skipped=skipped)


def print_summary(
    summary: Summary,
    console: Console | None = None,
    *,
    details: bool = False,
    times_accuracy: bool = False,
) -> None:
    """Print what `hpcdist summary` shows; on stdout where no console is given.

    With `details` every table, else those that answer; `times_accuracy` has that of the time to an
    accuracy be one of them.
    """
    from hpcdist.summary.report.report import make_report
    from hpcdist.summary.report.text import make_console, print_report

    report = make_report(summary, is_brief=not details, times_accuracy=times_accuracy)
    print_report(report, console or make_console())
