"""Which value of a setting is best, by what the runs of each came to on the test data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hpcdist.base.statistics import Measure, differs, mean, measure, ratios_of_all
from hpcdist.base.table import Column, Table, mean_interval, number
from hpcdist.base.text import decimals_for, number_of, shown, spread_text
from hpcdist.summary.report.runs import Row, settings_columns
from hpcdist.summary.values import RunSummary

_MOST_NAMED = 2


class Value(NamedTuple):
    """The runs with one value of what differs, or one set of values."""

    run: RunSummary
    """The first of them."""
    num_runs: int
    accuracy: Measure | None
    """In percent; None where a run has none."""
    loss: Measure | None
    time_s: float | None
    """Mean time to the goal that was asked for; None where a run did not reach it."""

    @property
    def result(self) -> tuple[Measure | None, bool]:
        """What it is judged by, and whether more of that is better."""
        return (self.accuracy, True) if self.accuracy else (self.loss, False)

    @property
    def is_of_one_seed(self) -> bool:
        """Its runs came to the same, to the last digit."""
        return all(one is None or not one.sd for one in (self.accuracy, self.loss))


def find_values(runs: Sequence[RunSummary]) -> list[Value]:
    """Return the values of what differs between the done runs of a job, best first; none where the
    runs were not tested, or ran on other numbers of GPUs, too."""
    done = [run for run in runs if run.state == "done" and run.differs_in]
    kinds: dict[tuple[tuple[str, str], ...], list[RunSummary]] = {}
    for run in done:
        kinds.setdefault(tuple(run.differs_in.items()), []).append(run)
    if len(kinds) < 2 or len({(run.nodes, run.gpus_per_node) for run in done}) > 1:
        return []
    values = []
    for alike in kinds.values():
        accuracies = [run.final.accuracy for run in alike if run.final.accuracy is not None]
        losses = [run.final.loss for run in alike if run.final.loss is not None]
        goals = [run.time_to_accuracy for run in alike if run.time_to_accuracy]
        times = [goal.time_s for goal in goals if goal.is_asked]
        known = [time_s for time_s in times if time_s is not None]
        values.append(
            Value(
                run=alike[0],
                num_runs=len(alike),
                accuracy=_measure([100 * value for value in accuracies], len(alike)),
                loss=_measure(losses, len(alike)),
                time_s=mean(known) if len(known) == len(alike) else None,
            )
        )
    if len({is_more for _, is_more in (value.result for value in values)}) > 1:
        return []
    if any(value.result[0] is None for value in values):
        return []
    return sorted(values, key=_rank)


def _measure(values: Sequence[float], num_runs: int) -> Measure | None:
    return measure(values) if values and len(values) == num_runs else None


def _rank(value: Value) -> float:
    result, is_more = value.result
    assert result is not None
    return -result.mean if is_more else result.mean


def value_sentence(values: Sequence[Value]) -> str:
    """Name the best value, or say between which of them it cannot be told."""
    results = [value.result[0] for value in values]
    known = [result for result in results if result is not None]
    what, unit = ("test accuracy", " %") if values[0].result[1] else ("test loss", "")
    decimals = 2 if unit else min(4, decimals_for([result.mean for result in known]) + 2)
    told = [
        f"{shown(value.run.settings_text)} ({spread_text(result, decimals)}{unit})"
        for value, result in zip(values, known, strict=True)
    ]
    if all(value.num_runs == 1 for value in values):
        return (
            f"{told[0]} has the best {what}, then {told[1]}. Each value was run once, which does "
            "not show how sure that is: use --repeat 3."
        )
    if any(value.num_runs > 1 and value.is_of_one_seed for value in values):
        return (
            f"{told[0]} has the best {what}, then {told[1]}. Repeats with one seed come to the "
            "same, which does not show how sure that is: repeat them without --same-seed."
        )
    judged = ratios_of_all(known) if all(result.mean > 0 for result in known) else {}
    alike = [
        place
        for place in range(1, len(known))
        if (0, place) not in judged or differs(judged[0, place]) is not True
    ]
    if not alike:
        return f"{told[0]} has the best {what}; the next is {told[1]}."
    first = " or ".join([told[0], *(told[place] for place in alike[: _MOST_NAMED - 1])])
    more = f", or {number_of(len(alike) - _MOST_NAMED + 1, 'other value')}"
    rest = more if len(alike) >= _MOST_NAMED else ""
    return f"Which has the best {what} is not certain: {first}{rest}. More repeats would tell."


def value_tables(rows: Sequence[Row]) -> Iterator[Table[Value]]:
    """Yield a table of the values, best first."""
    values = find_values([row.run for row in rows])
    if not values:
        return
    times = [value.time_s for value in values if value.time_s is not None]
    losses = [value.loss.mean for value in values if value.loss]
    columns: list[Column[Value]] = [
        *settings_columns(values),
        Column("runs", lambda value: value.num_runs),
        Column("accuracy", lambda value: value.accuracy, mean_interval(2), unit="%"),
        Column("test\nloss", lambda value: value.loss, mean_interval(decimals_for(losses) + 2)),
    ]
    if times:
        decimals = decimals_for(times)
        columns.append(
            Column("time to\nthe goal", lambda value: value.time_s, number(decimals), unit="s")
        )
    yield Table("Values by what they came to, best first, mean ± 95 % interval", columns, values)
