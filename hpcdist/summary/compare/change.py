"""How runs compare with a baseline, and whether one is slower than a threshold allows: pure.

Runs are matched by job, variant, nodes, GPUs and settings. Where a job has one setting only on
each side, they are matched though the settings differ, which is told: a job file may have changed.

A change is a regression where the mean fell by more than the threshold, and the two means differ
(`base.statistics`): over the repeats of both sides; where only one side was repeated, as if the
other spread alike; over windows of steps where there is one run of each. The last does not know how
runs differ from one to the next.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from msgspec import Struct

from hpcdist.base.statistics import Interval, Measure, Ratio, differs, measure, ratio
from hpcdist.summary.compare.quantities import quantities
from hpcdist.summary.values import RunSummary

Outcome = Literal["slower", "faster", "within threshold", "not distinguishable", "failed"]
"""Failed: no run is done. Not distinguishable: the difference may be chance."""
Over = Literal["repeats", "repeats of one side", "windows"]
REGRESSIONS: tuple[Outcome, ...] = ("slower", "failed")


class Side(Struct, frozen=True, kw_only=True):
    """The runs of one side, and what they came to."""

    runs: list[str]
    mean: float | None = None
    """None where no run is done."""
    sd: float | None = None
    """Over the runs; of a single one, within it."""


class Change(Struct, frozen=True, kw_only=True):
    """One quantity of one job and size, before and now."""

    job: str
    variant: str | None
    nodes: int
    gpus_per_node: int
    quantity: str
    before: Side
    now: Side
    change: float | None = None
    """Relative: -0.1 is 10 % less."""
    interval: Interval | None = None
    """Of the change, with 95 % confidence; None where there is nothing to tell it from."""
    p: float | None = None
    """How likely such a change is by chance alone."""
    over: Over | None = None
    """What the spread is that of."""
    same_settings: bool = True
    outcome: Outcome


class Comparison(Struct, frozen=True, kw_only=True):
    """Runs against a baseline."""

    version: int = 1
    threshold: float
    """Relative loss up to which a change is no regression."""
    regression: bool
    changes: list[Change]
    only_before: list[str]
    """Ids of runs of the baseline that have no counterpart."""
    only_now: list[str]
    failed_now: list[str] = []
    """Of those, the ones that did not end well: repeats of them may have, and count alone."""


class _Key(NamedTuple):
    job: str
    variant: str
    nodes: int
    gpus_per_node: int


class _Pair(NamedTuple):
    key: _Key
    before: list[RunSummary]
    now: list[RunSummary]
    same_settings: bool


def compare_with(
    baseline: Sequence[RunSummary], runs: Sequence[RunSummary], *, threshold: float
) -> Comparison:
    """Every quantity that both sides measured, job by job."""
    pairs = _pairs(baseline, runs)
    changes = [change for pair in pairs for change in _changes(pair, threshold)]
    compared = {run for change in changes for run in (*change.before.runs, *change.now.runs)}
    only_now = [run for run in runs if run.run not in compared]
    return Comparison(
        threshold=threshold,
        regression=any(change.outcome in REGRESSIONS for change in changes),
        changes=changes,
        only_before=[run.run for run in baseline if run.run not in compared],
        only_now=[run.run for run in only_now],
        failed_now=[run.run for run in only_now if _has_ended([run])],
    )


def _pairs(baseline: Sequence[RunSummary], runs: Sequence[RunSummary]) -> list[_Pair]:
    before, now = _by_key(baseline), _by_key(runs)
    pairs = []
    for key in now.keys() & before.keys():
        theirs, mine = before[key], _as_begun(now[key], before[key])
        common = mine.keys() & theirs.keys()
        pairs += [_Pair(key, theirs[one], mine[one], same_settings=True) for one in common]
        if not common and len(mine) == len(theirs) == 1:
            (theirs_only,), (mine_only,) = theirs.values(), mine.values()
            pairs.append(_Pair(key, theirs_only, mine_only, same_settings=False))
    return sorted(pairs, key=lambda pair: (pair.key, pair.now[0].run))


def _as_begun(
    mine: Mapping[str, list[RunSummary]], theirs: Mapping[str, list[RunSummary]]
) -> Mapping[str, list[RunSummary]]:
    """Runs that never began, whose device nobody knows, as repeats of those with their settings."""
    begun = {runs[0].settings: configuration for configuration, runs in theirs.items()}
    found: dict[str, list[RunSummary]] = defaultdict(list)
    for configuration, runs in mine.items():
        never_began = configuration == runs[0].settings
        found[begun.get(configuration, configuration) if never_began else configuration] += runs
    return found


def _by_key(runs: Sequence[RunSummary]) -> Mapping[_Key, Mapping[str, list[RunSummary]]]:
    """Runs by what they are, then by their settings."""
    found: dict[_Key, dict[str, list[RunSummary]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        key = _Key(run.job, run.variant or "", run.nodes, run.gpus_per_node)
        found[key][run.configuration or ""].append(run)
    return found


def _changes(pair: _Pair, threshold: float) -> list[Change]:
    before, now = _measured(pair.before), _measured(pair.now)
    changes = []
    for quantity, samples in before.items():
        if quantity in now:
            changes.append(_change(pair, quantity, samples, now[quantity], threshold))
        elif not now and _has_ended(pair.now):
            changes.append(_failure(pair, quantity, samples))
    return changes


def _measured(runs: Sequence[RunSummary]) -> dict[str, dict[str, Measure]]:
    """Quantity -> run -> what it measured; only done runs count."""
    found: dict[str, dict[str, Measure]] = defaultdict(dict)
    for run in runs:
        if run.state == "done":
            for quantity, sample in quantities(run).items():
                if sample.mean > 0:
                    found[quantity][run.run] = sample
    return dict(found)


def _has_ended(runs: Sequence[RunSummary]) -> bool:
    return all(run.state in {"failed", "lost", "cancelled", "preempted"} for run in runs)


def _change(
    pair: _Pair,
    quantity: str,
    before: Mapping[str, Measure],
    now: Mapping[str, Measure],
    threshold: float,
) -> Change:
    first, second = _over_runs(before), _over_runs(now)
    found = ratio(second, first)
    return Change(
        **pair.key._asdict() | {"variant": pair.key.variant or None},
        quantity=quantity,
        before=_side(before, first),
        now=_side(now, second),
        change=found.mean - 1,
        interval=_less_one(found.interval),
        p=found.p,
        over=_over(found, is_repeated=[len(before) > 1, len(now) > 1]),
        same_settings=pair.same_settings,
        outcome=_outcome(found, threshold),
    )


def _failure(pair: _Pair, quantity: str, before: Mapping[str, Measure]) -> Change:
    return Change(
        **pair.key._asdict() | {"variant": pair.key.variant or None},
        quantity=quantity,
        before=_side(before, _over_runs(before)),
        now=Side(runs=[run.run for run in pair.now]),
        same_settings=pair.same_settings,
        outcome="failed",
    )


def _over(found: Ratio, *, is_repeated: Sequence[bool]) -> Over | None:
    if found.over != "runs":
        return found.over
    return "repeats" if all(is_repeated) else "repeats of one side"


def _over_runs(measured: Mapping[str, Measure]) -> Measure:
    """Of several runs, each one's mean is a value; of one, what it has within it."""
    if len(measured) == 1:
        return next(iter(measured.values()))
    return measure([each.mean for each in measured.values()])


def _side(measured: Mapping[str, Measure], whole: Measure) -> Side:
    return Side(runs=list(measured), mean=whole.mean, sd=whole.sd)


def _less_one(interval: Interval | None) -> Interval | None:
    return interval and Interval(low=interval.low - 1, high=interval.high - 1)


def _outcome(found: Ratio, threshold: float) -> Outcome:
    if not differs(found):
        return "not distinguishable"
    if abs(found.mean - 1) <= threshold:
        return "within threshold"
    return "slower" if found.mean < 1 else "faster"
