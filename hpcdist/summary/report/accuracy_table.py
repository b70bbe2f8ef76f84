"""When runs came to an accuracy on the test data, as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hpcdist.base.text import (
    UNDEFINED,
    decimals_for,
    format_integer,
    format_number,
    format_percent,
)
from hpcdist.summary.report.table import Column, Row, Titled
from hpcdist.summary.values import RunSummary, TimeToAccuracy


def accuracy_tables(rows: Sequence[Row], *, is_asked: bool = False) -> Iterator[Titled]:
    """A table where several runs were tested, or one did not come as far as was asked for; with
    `is_asked` also of one that did."""
    tested = [row for row in rows if row.run.time_to_accuracy]
    reached = [_of(row) for row in tested if _of(row).is_reached]
    if len(tested) > 1 or len(reached) < len(tested) or (is_asked and tested):
        target = format_percent(_of(tested[0]).target, 1)
        caption = f"Time to {target} % test accuracy, from the first step on, restarts included"
        yield Titled(caption, tested, _columns(tested))


def _columns(rows: Sequence[Row]) -> list[Column]:
    times = [found.time_s for row in rows if (found := _of(row)).time_s is not None]
    decimals = decimals_for([time_s for time_s in times if time_s is not None])

    by_id = {row.run.run: row.run for row in rows}

    def time(row: Row) -> str:
        found = _of(row)
        return format_number(found.time_s, decimals) if found.is_reached else "not reached"

    return [
        Column("#", lambda row: str(row.number)),
        Column("nodes\nx gpus", lambda row: f"{row.run.nodes} x {row.run.gpus_per_node}"),
        Column("time\n(s)", time),
        Column("steps", lambda row: format_integer(_of(row).step)),
        Column("epochs", lambda row: format_integer(_of(row).epoch)),
        Column("best\n(%)", lambda row: format_percent(_of(row).best, 2)),
        Column("times as\nfast", lambda row: _against(row.run, by_id)),
    ]


def _against(run: RunSummary, by_id: Mapping[str, RunSummary]) -> str:
    """The mean time of the runs that its speed-up is against, by its own."""
    baseline = [by_id[other] for other in run.compared_with if other in by_id]
    found = [one.time_to_accuracy for one in baseline if one.time_to_accuracy]
    times = [one.time_s for one in found if one.time_s is not None]
    own_s = run.time_to_accuracy.time_s if run.time_to_accuracy else None
    if not own_s or not times or len(times) < len(run.compared_with):
        return UNDEFINED
    return f"{sum(times) / len(times) / own_s:.2f}{' *' if run in baseline else '  '}"


def _of(row: Row) -> TimeToAccuracy:
    assert row.run.time_to_accuracy is not None
    return row.run.time_to_accuracy
