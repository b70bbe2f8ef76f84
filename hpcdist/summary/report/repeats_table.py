"""What repeats came to, as text: their mean, and how sure it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpcdist.base.text import decimals_for, format_number
from hpcdist.summary.compare.sizes import one_of_each
from hpcdist.summary.report.table import Column, Row, Titled
from hpcdist.summary.values import Repeats, RunSummary


def repeats_tables(rows: Sequence[Row]) -> Iterator[Titled]:
    """A table with a line for each size that was run more than once, but for those that are
    compared with other sizes, in a table of their own."""
    if runs := one_of_each([row.run for row in rows if row.run.of_size is None]):
        caption = "Repeats, with the 95 % confidence interval of their mean"
        yield Titled(caption, runs, _columns(runs))


def _columns(runs: Sequence[RunSummary]) -> list[Column]:
    decimals = decimals_for([_repeats(run).mean for run in runs])

    def mean(run: RunSummary) -> str:
        found = _repeats(run)
        assert found.interval is not None
        half = (found.interval.high - found.interval.low) / 2
        return f"{format_number(found.mean, decimals)} ± {format_number(half, decimals)}"

    return [
        Column("nodes\nx gpus", lambda run: f"{run.nodes} x {run.gpus_per_node}"),
        Column("runs", lambda run: str(_repeats(run).num_runs)),
        Column("samples/s", mean),
    ]


def _repeats(run: RunSummary) -> Repeats:
    assert run.repeats is not None
    return run.repeats
