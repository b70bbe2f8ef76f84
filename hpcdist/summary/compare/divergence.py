"""Two runs beside each other: the first step at which they part, and in what they differ.

A value is the same or it is not: two runs of the same program on the same hardware can agree to the
last bit, and the first bit that differs is the one to explain.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from msgspec import Struct, structs

from hpcdist.base.errors import UserError
from hpcdist.runs.events import Digest, Window
from hpcdist.runs.run import Run
from hpcdist.runs.snapshot import find_code, read_contents
from hpcdist.summary.figures.run import flatten
from hpcdist.summary.measuring import measure
from hpcdist.summary.read.collect import job_as_submitted
from hpcdist.summary.read.event_file import read_events

Values = dict[int, dict[str, Any]]
"""Step -> quantity -> its value."""


class RunDiff(Struct, frozen=True, kw_only=True):
    """Two runs beside each other: where they part, and in what they differ."""

    runs: list[str]
    num_compared: int
    """Steps at which the lowest ranks of both recorded something."""
    step: int | None = None
    """First of these at which a value differs; None where they do not part."""
    equal_at: int | None = None
    """Last step before at which all was equal."""
    values: dict[str, list[Any]] = {}
    """Quantity that differs at `step` -> its values in both runs."""
    differences: dict[str, list[Any]]
    """Setting, version, code or place in which the runs differ -> its values in both."""


def diff_runs(runs: Sequence[Run]) -> RunDiff:
    """Compare two runs, by their digests where both have any, else by their losses. Raises
    UserError where they recorded nothing at the same steps."""
    recorded = [_recorded(run) for run in runs]
    kind = Digest if all(own[Digest] for own in recorded) else Window
    first, second = (own[kind] for own in recorded)
    steps = sorted(first.keys() & second.keys())
    if not steps:
        raise UserError(
            f"{runs[0].id} and {runs[1].id} have no step in common at which both recorded "
            "something",
            hint="submit both with --set record.digest=10; your own script needs "
            "record.start(model=model) before its loop and record.step(...) in it, too",
        )
    step = next((step for step in steps if first[step] != second[step]), None)
    return RunDiff(
        runs=[run.id for run in runs],
        num_compared=len(steps),
        step=step,
        equal_at=max((other for other in steps if step is None or other < step), default=None),
        values={} if step is None else _differing([first[step], second[step]]),
        differences=_differing([_facts(run) for run in runs]),
    )


def _differing(pair: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return what differs; what is not known of one is none, unless it is a setting."""
    both = {key: [own.get(key) for own in pair] for key in [*pair[0], *pair[1]]}
    return {
        key: values
        for key, values in both.items()
        if values[0] != values[1] and (None not in values or key.startswith("setting."))
    }


def _recorded(run: Run) -> dict[type[Any], Values]:
    """Return what the lowest rank recorded; what a restart did again counts once, as the restart
    did it."""
    found: dict[type[Any], Values] = {Digest: {}, Window: {}}
    files = sorted(run.event_files())
    for rank, attempt, path in files:
        if rank == files[0][0]:
            events = read_events(path, number=rank, attempt=attempt)
            for kind, values in found.items():
                own: Values = {}
                for event in events.all(kind):
                    named = {name: getattr(event, name, None) for name in ("parameters", "loss")}
                    if known := {name: own for name, own in named.items() if own is not None}:
                        own[event.step] = known
                begin = min(own, default=math.inf)
                found[kind] = {step: old for step, old in values.items() if step < begin} | own
    return found


def _facts(run: Run) -> dict[str, Any]:
    """Return what a run recorded of itself, by dotted key."""
    spec, measured, copy = run.spec, measure(run).run, find_code(run, run.spec)
    facts = {
        "setting": job_as_submitted(spec),
        "version": dict(spec.versions),
        "commit": spec.commit,
        "changes not committed": spec.has_changes,
        "file": read_contents(copy) if copy else {},
        "ran with": structs.asdict(measured.figures.ran_with) if measured else {},
    }
    return flatten(facts)
