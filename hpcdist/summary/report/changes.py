"""A comparison with a baseline on a terminal: its conclusion first, then the figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console

from hpcdist.base.statistics import Measure
from hpcdist.base.table import Column, Table, each
from hpcdist.base.text import UNDEFINED, decimals_for, first_few, number_of, shown, spread_text
from hpcdist.summary.compare.against import REGRESSIONS, Change, Changes, Side
from hpcdist.summary.report.runs import gpus_column
from hpcdist.summary.report.text import say, say_each


def print_changes(console: Console, comparison: Changes) -> None:
    say(console, conclusion(comparison), style="bold")
    console.print()
    console.print(Table("", _columns(comparison.changes), comparison.changes))
    console.print()
    say_each(console, _remarks(comparison))


def conclusion(comparison: Changes) -> str:
    """Return the outcome of the comparison in one sentence."""
    limit = f"{100 * comparison.threshold:g} %"
    worse = [change for change in comparison.changes if change.outcome in REGRESSIONS]
    if not worse:
        unwell = number_of(len(comparison.failed_now), "run")
        left_out = f" {unwell} did not end well." if comparison.failed_now else ""
        changes = comparison.changes
        doubted = [each for each in changes if (each.change or 0.0) < -comparison.threshold]
        doubt = ""
        if doubted:
            repeats = "more repeats would make it clear"
            doubt = f" {_worst(doubted)}, but that may be chance: {repeats}."
        sentence = f"No regression: nothing is certain to be slower by more than {limit}."
        return f"{sentence}{left_out}{doubt}"
    parts = []
    slower = [change for change in worse if change.change is not None]
    if slower:
        all_of_them = "" if len(slower) == 1 else f" ({len(slower)} are slower; this one most)"
        parts.append(f"{_worst(slower)}{all_of_them}")
    if failed := len(worse) - len(slower):
        parts.append(f"{number_of(failed, 'figure')} of the baseline could not be measured again")
    return f"Regression: {'; '.join(parts)}; {limit} is allowed."


def _worst(changes: Sequence[Change]) -> str:
    """Return `ddp on 1 x 2, samples/s, is slower by 12.3 %`, of the one that lost most."""
    worst = min(changes, key=lambda change: change.change or 0.0)
    variant = f" ({shown(worst.variant)})" if worst.variant else ""
    size = f"{worst.nodes} x {worst.gpus_per_node}"
    name = f"{shown(worst.job)}{variant} on {size}, {worst.quantity},"
    return f"{name} is slower by {-100 * (worst.change or 0.0):.1f} %"


def _columns(changes: Sequence[Change]) -> list[Column[Change]]:
    means = [side.mean for change in changes for side in (change.before, change.now) if side.mean]
    decimals = decimals_for(means)

    def show(side: Side) -> str:
        if side.mean is None:
            return f"{UNDEFINED} ({len(side.runs)})"
        mean = Measure(mean=side.mean, interval=side.interval)
        return f"{spread_text(mean, decimals)} ({len(side.runs)})"

    variant: Column[Change] = Column("variant", lambda change: change.variant or "", align="left")
    has_variants = any(change.variant for change in changes)
    return [
        Column("job", lambda change: change.job, align="left"),
        *([variant] if has_variants else []),
        gpus_column(lambda change: change),
        Column("what", lambda change: change.quantity, align="left"),
        Column("before", lambda change: change.before, each(show), unit="runs"),
        Column("now", lambda change: change.now, each(show), unit="runs"),
        Column("change", lambda change: change.change, each(lambda x: f"{100 * x:+.1f}"), unit="%"),
        Column(
            "95 % interval",
            lambda change: change.interval,
            each(lambda ends: f"{100 * ends.low:+.1f} to {100 * ends.high:+.1f}"),
            unit="%",
            sort=lambda ends: ends.low,
        ),
        Column("outcome", lambda change: change.outcome, align="left"),
    ]


def _remarks(comparison: Changes) -> Iterator[str]:
    changes = comparison.changes
    if any(change.over == "windows" for change in changes):
        yield (
            "Single runs are compared over equal parts of each, which do not show how runs differ "
            "from each other: submit --repeat 3 for a more certain answer."
        )
    if any(change.over is None and change.change is not None for change in changes):
        yield (
            "A single figure has no spread, so a change cannot be distinguished from "
            "chance: use --repeat 3."
        )
    if any(not change.same_settings for change in changes):
        unlike = [run for change in changes if not change.same_settings for run in change.now.runs]
        yield f"The settings of the baseline differ from those of {first_few(unlike)}."
    if comparison.disturbed:
        yield (
            "Left out, as something else used their CPUs (--with-disturbed compares them): "
            f"{first_few(comparison.disturbed)}."
        )
    if comparison.only_before:
        yield f"Only in the baseline: {first_few(comparison.only_before)}."
    if comparison.failed_now:
        yield f"Not counted, as they did not end well: {first_few(comparison.failed_now)}."
    others = [run for run in comparison.only_now if run not in comparison.failed_now]
    if others:
        yield f"Not in the baseline, or not done yet: {first_few(others)}."
