"""A comparison with a baseline on a terminal: its conclusion first, then the figures."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from hpcdist.base.table import Column, Table, each
from hpcdist.base.text import UNDEFINED, decimals_for, first_few, number_of, shown, spread_text
from hpcdist.summary.compare.against import Change, Changes, Side
from hpcdist.summary.report.runs import gpus_column
from hpcdist.summary.report.text import say, say_each


def print_changes(console: Console, comparison: Changes) -> None:
    say(console, conclusion(comparison), style="bold")
    console.print()
    console.print(Table("", _columns(comparison.changes), comparison.changes))
    console.print()
    say_each(console, _remarks(comparison))


def conclusion(comparison: Changes) -> str:
    """Return the outcome of the comparison in one sentence, and what it compares with what."""
    changes, limit = comparison.changes, f"{100 * comparison.threshold:g} %"
    failed = [change for change in changes if change.outcome == "failed"]
    slower = [change for change in changes if change.outcome == "slower"]
    parts = [_worst(slower)] if slower else []
    if len(slower) > 1:
        parts = [f"{parts[0]} ({len(slower)} are slower; this one most)"]
    if failed:
        lost = number_of(len(failed), "figure")
        parts.append(f"{lost} of the baseline could not be measured again")
    text = f"Regression: {'; '.join(parts)}; {limit} is allowed."
    if not parts:
        text = f"No regression: nothing is certain to be slower by more than {limit}."
        if comparison.failed_now:
            text += f" {number_of(len(comparison.failed_now), 'run')} did not end well."
        if doubted := [each for each in changes if _lost(each) > comparison.threshold]:
            text += f" {_worst(doubted)}, but that may be chance: "
            text += "more repeats would make it clear."
    unlike = {
        f"{key} is {shown(now)}, and was {shown(before)}"
        for change in changes
        for key, (before, now) in change.differing.items()
    }
    return text + (f" Not alike: {'; '.join(sorted(unlike))}." if unlike else "")


def _worst(changes: Sequence[Change]) -> str:
    """Return `ddp on 1 x 2, samples/s, is slower by 12.3 %`, of the one that lost most."""
    worst = max(changes, key=_lost)
    variant = f" ({shown(worst.variant)})" if worst.variant else ""
    size = f"{worst.nodes} x {worst.gpus_per_node}"
    name = f"{shown(worst.job)}{variant} on {size}, {worst.quantity},"
    return f"{name} is slower by {100 * _lost(worst):.1f} %"


def _lost(change: Change) -> float:
    return 1 - change.times.mean if change.times else 0.0


def _columns(changes: Sequence[Change]) -> list[Column[Change]]:
    measured = [side.measured for change in changes for side in (change.before, change.now)]
    decimals = decimals_for([one.mean for one in measured if one])

    def show(side: Side) -> str:
        text = spread_text(side.measured, decimals) if side.measured else UNDEFINED
        return f"{text} ({len(side.runs)})"

    variant: Column[Change] = Column("variant", lambda change: change.variant or "", align="left")
    return [
        Column("job", lambda change: change.job, align="left"),
        *([variant] if any(change.variant for change in changes) else []),
        gpus_column(lambda change: change),
        Column("what", lambda change: change.quantity, align="left"),
        Column("before", lambda change: change.before, each(show), unit="runs"),
        Column("now", lambda change: change.now, each(show), unit="runs"),
        Column(
            "change",
            lambda change: change.times,
            each(lambda times: f"{100 * times.mean - 100:+.1f}"),
            unit="%",
        ),
        Column(
            "95 % interval",
            lambda change: change.times and change.times.interval,
            each(lambda ends: f"{100 * ends.low - 100:+.1f} to {100 * ends.high - 100:+.1f}"),
            unit="%",
        ),
        Column("outcome", lambda change: change.outcome, align="left"),
    ]


def _remarks(comparison: Changes) -> list[str]:
    changes = comparison.changes
    others = [run for run in comparison.only_now if run not in comparison.failed_now]
    said = {
        "The settings of the baseline differ from those of": [
            run for change in changes if not change.same_settings for run in change.now.runs
        ],
        "Left out, as something else used their CPUs:": (comparison.disturbed),
        "Only in the baseline:": comparison.only_before,
        "Not counted, as they did not end well:": comparison.failed_now,
        "Not in the baseline, or not done yet:": others,
    }
    doubts = []
    spreads = {change.times.over for change in changes if change.times}
    if "windows" in spreads:
        doubts.append(
            "Single runs are compared over equal parts of each, which do not show how runs differ "
            "from each other: submit --repeat 3 for a more certain answer."
        )
    if None in spreads:
        doubts.append(
            "A single figure has no spread, so a change cannot be distinguished from chance: use "
            "--repeat 3."
        )
    return doubts + [f"{text} {first_few(runs)}." for text, runs in said.items() if runs]
