"""A comparison with a baseline on a terminal: its conclusion first, then the figures."""

from __future__ import annotations

from rich.console import Console

from hpcdist.base.table import Column, Table, each
from hpcdist.base.text import decimals_for, first_few, shown, spread_text
from hpcdist.summary.compare.against import REGRESSIONS, Change, Changes, Side
from hpcdist.summary.report.runs import gpus_column, known
from hpcdist.summary.report.text import say


def print_changes(console: Console, comparison: Changes) -> None:
    """Print what became slower, all changes, and which runs were left out."""
    changes = comparison.changes
    measured = [side.measured for change in changes for side in (change.before, change.now)]
    decimals = decimals_for([one.mean for one in measured if one])

    def show(side: Side) -> str:
        text = spread_text(side.measured, decimals) if side.measured else "-"
        return f"{text} ({len(side.runs)})"

    columns: list[Column[Change]] = [
        Column("job", lambda change: change.job, align="left"),
        Column("variant", lambda change: change.variant, align="left"),
        gpus_column(lambda change: change),
        Column("what", lambda change: change.quantity, align="left"),
        Column("before", lambda change: change.before, each(show), unit="runs"),
        Column("now", lambda change: change.now, each(show), unit="runs"),
        Column("times\nas fast", lambda change: change.times, each(lambda t: spread_text(t, 2))),
        Column("outcome", lambda change: change.outcome, align="left"),
    ]
    say(console, conclusion(comparison), style="bold")
    console.print()
    console.print(Table("", known(columns, changes), changes))
    console.print()
    texts = [f"Not compared: {first_few(ids)}: {why}" for why, ids in comparison.left_out.items()]
    if {change.times.over for change in changes if change.times} - {"runs"}:
        texts.append("What was run once does not show how runs differ: submit --repeat 3.")
    say(console, *map(shown, texts), indent="  ")


def conclusion(comparison: Changes) -> str:
    """Return the outcome of the comparison in one sentence, and what differs besides."""
    changes, limit = comparison.changes, f"{100 * comparison.threshold:g} %"
    worse = [_loss(change) for change in changes if change.outcome in REGRESSIONS]
    text = f"Regression: {first_few(worse, 3)}; {limit} is allowed."
    if not worse:
        text = f"No regression: nothing is certain to be slower by more than {limit}."
        doubted = [change for change in changes if _lost(change) > comparison.threshold]
        if doubted:
            text += f" {_loss(max(doubted, key=_lost))}, but that may be chance: use more repeats."
    unlike = {
        f"{key} is {shown(now)}, and was {shown(before)}"
        for change in changes
        for key, (before, now) in change.differing.items()
    }
    return text + (f" Not alike: {'; '.join(sorted(unlike))}." if unlike else "")


def _loss(change: Change) -> str:
    """Return `ddp on 1 x 2, samples/s, is slower by 12.3 %`."""
    variant = f" ({shown(change.variant)})" if change.variant else ""
    how = f"is slower by {100 * _lost(change):.1f} %" if change.times else "could not be measured"
    size = f"{change.nodes} x {change.gpus_per_node}"
    return f"{shown(change.job)}{variant} on {size}, {change.quantity}, {how}"


def _lost(change: Change) -> float:
    return 1 - change.times.mean if change.times else 0.0
