"""Compares the values of a setting by the results of the runs with each, and names the best."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hpcdist.base.statistics import Measure, differs, mean, measure, ratios_of_all
from hpcdist.base.table import Column, Table, mean_interval, number
from hpcdist.base.text import decimals_for, first_few, shown
from hpcdist.summary.figures.run import OWN_CODE
from hpcdist.summary.report.runs import Row, known, read
from hpcdist.summary.values import RunSummary


class Quantity(NamedTuple):
    """A result of runs by which values are compared."""

    name: str
    header: str
    figure: str
    """Its path in a run."""
    unit: str = ""
    decimals: int = 4
    is_more_better: bool = False


_LOSSES = Quantity("test loss", "test\nloss", "final.loss")
_QUANTITIES = (
    Quantity("test accuracy", "accuracy", "final.accuracy", "%", 2, is_more_better=True),
    _LOSSES,
    Quantity("training loss", "training\nloss", "train_loss"),
)
"""The first that all runs have counts; the last one for own code alone."""


class Value(NamedTuple):
    """The runs with one value of what differs, or one set of values."""

    run: RunSummary
    """The first of them."""
    settings: dict[str, str]
    name: str
    num_runs: int
    quantity: Quantity
    result: Measure
    """Their results; a share in percent."""
    loss: Measure | None
    """Loss on the test data; None where a run has none, or values are compared by it."""
    time_s: float | None
    """Mean time to the goal; None where a run did not reach it."""


def find_values(runs: Sequence[RunSummary]) -> list[Value]:
    """Return the values of what differs between the done runs of a job, best first; none where
    there is nothing to judge them by, or numbers of GPUs differ, too."""
    kinds: dict[tuple[tuple[str, str], ...], list[RunSummary]] = {}
    for run in runs:
        if run.state == "done" and run.differs_in:
            kinds.setdefault(tuple(run.differs_in.items()), []).append(run)
    done = [run for alike in kinds.values() for run in alike]
    are_own = all(run.cell and run.cell.workload in OWN_CODE for run in done)
    found = next((one for one in _QUANTITIES[: 3 if are_own else 2] if _have(done, one)), None)
    if len(kinds) < 2 or found is None or len({run.size for run in done}) > 1:
        return []
    values = []
    for settings, own in kinds.items():
        goals = [run.time_to_accuracy for run in own if run.time_to_accuracy]
        times = [goal.time_s for goal in goals if goal.time_s is not None]
        has_loss = found != _LOSSES and _have(own, _LOSSES)
        value = Value(
            run=own[0],
            settings=dict(settings),
            name=shown(own[0].settings_text),
            num_runs=len(own),
            quantity=found,
            result=_measure(own, found),
            loss=_measure(own, _LOSSES) if has_loss else None,
            time_s=mean(times) if len(times) == len(own) else None,
        )
        values.append(value)
    sign = -1 if found.is_more_better else 1
    return sorted(values, key=lambda value: sign * value.result.mean)


def _have(runs: Sequence[RunSummary], quantity: Quantity) -> bool:
    return all(read(quantity.figure)(Row(0, run)) is not None for run in runs)


def _measure(runs: Sequence[RunSummary], quantity: Quantity) -> Measure:
    per = 100 if quantity.unit == "%" else 1
    return measure([per * read(quantity.figure)(Row(0, run)) for run in runs])


def value_sentence(values: Sequence[Value]) -> str:
    """Name the best value, or say between which of them it cannot be told."""
    what, results = values[0].quantity, [value.result for value in values]
    unit = f" {what.unit}" if what.unit else ""
    texts = mean_interval(what.decimals)(results)  # as in the table
    told = [f"{value.name} ({text}{unit})" for value, text in zip(values, texts, strict=True)]
    best = "best" if what.is_more_better else "least"
    first = f"{told[0]} has the {best} {what.name}"
    doubt = "Each value was run once" if all(value.num_runs == 1 for value in values) else ""
    if any(value.num_runs > 1 and not value.result.sd for value in values):
        doubt = "Repeats with one seed (--same-seed) come to the same"
    if doubt:
        return f"{first}, then {told[1]}. {doubt}, which does not show how sure that is."
    judged = ratios_of_all(results) if all(result.mean > 0 for result in results) else {}
    alike = [
        told[place]
        for place in range(1, len(results))
        if (0, place) not in judged or differs(judged[0, place]) is not True
    ]
    if not alike:
        return f"{first}; the next is {told[1]}."
    named = " or ".join([told[0], first_few(alike, 1)])
    return f"Which has the {best} {what.name} is not certain: {named}. More repeats would tell."


def value_tables(values: Sequence[Value]) -> Iterator[Table[Value]]:
    """Yield a table of the values, best first, if there are any."""
    if not values:
        return
    what = values[0].quantity
    of_times = decimals_for([value.time_s for value in values if value.time_s])
    columns: list[Column[Value]] = [
        Column("value", lambda value: value.name, align="left"),
        Column("runs", lambda value: value.num_runs),
        Column(
            what.header, lambda value: value.result, mean_interval(what.decimals), unit=what.unit
        ),
        Column("test\nloss", lambda value: value.loss, mean_interval(_LOSSES.decimals)),
        Column("time to\nthe goal", lambda value: value.time_s, number(of_times), unit="s"),
    ]
    caption = "Values by what they came to, best first, mean ± 95 % interval"
    yield Table(caption, known(columns, values), values)
