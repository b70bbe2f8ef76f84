"""What repeats came to, as text: their mean, and how sure it is."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from hpcdist.summary.repeats import one_of_each
from hpcdist.summary.table import Column, Row, make_table, say
from hpcdist.summary.text import UNDEFINED, decimals_for, format_number
from hpcdist.summary.values import Repeats, RunSummary


def print_repeats(console: Console, rows: Sequence[Row]) -> None:
    """Print a line for each size that was run more than once; nothing where none was."""
    runs = one_of_each([row.run for row in rows])
    if not runs:
        return
    say(console, "Repeats, with the 95 % confidence interval of their mean")
    console.print(make_table(runs, _columns(runs)))
    console.print()


def _columns(runs: Sequence[RunSummary]) -> list[Column]:
    decimals = decimals_for([_repeats(run).mean for run in runs])

    def mean(run: RunSummary) -> str:
        found = _repeats(run)
        half = (found.interval.high - found.interval.low) / 2
        return f"{format_number(found.mean, decimals)} ± {format_number(half, decimals)}"

    return [
        Column("nodes\nx gpus", lambda run: f"{run.nodes} x {run.gpus_per_node}"),
        Column("runs", lambda run: str(_repeats(run).num_runs)),
        Column("samples/s", mean),
        Column("against the baseline", lambda run: _difference(_repeats(run)), is_number=False),
    ]


def _difference(repeats: Repeats) -> str:
    if repeats.differs_from_baseline is None:
        return UNDEFINED
    return "differs" if repeats.differs_from_baseline else "not distinguishable"


def _repeats(run: RunSummary) -> Repeats:
    assert run.repeats is not None
    return run.repeats
