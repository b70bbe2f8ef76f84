"""Two runs beside each other: the first step at which they part, and in what they differ.

A value is the same or it is not: two runs of the same program on the same hardware can agree to the
last bit, and the first bit that differs is the one to explain.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from hpcdist.base.errors import UserError
from hpcdist.runs.events import Digest, Window
from hpcdist.runs.run import Run
from hpcdist.runs.snapshot import find_code, read_contents
from hpcdist.summary.figures.run import flatten
from hpcdist.summary.measuring import measure
from hpcdist.summary.read.collect import job_as_submitted
from hpcdist.summary.read.event_file import EventFile, read_events
from hpcdist.summary.values import RanWith

_SHORT = 10
"""Digits of a digest that are shown."""


class Difference(Struct, frozen=True, kw_only=True):
    """Something in which two runs differ."""

    kind: str
    """setting, version, code, file or place."""
    key: str
    values: list[Any]
    """Values of both runs; None where one has none."""


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
    differences: list[Difference]


def diff_runs(runs: Sequence[Run]) -> RunDiff:
    """Compare two runs, by their digests where both have any, else by their losses. Raises
    UserError where they recorded nothing at the same steps."""
    records = [_records_of_lowest_rank(run) for run in runs]
    has_digests = all(any(record.all(Digest) for record in own) for own in records)
    first, second = (_values(own, has_digests=has_digests) for own in records)
    steps = sorted(first.keys() & second.keys())
    if not steps:
        raise UserError(
            f"{runs[0].id} and {runs[1].id} have no step in common at which both recorded "
            "something",
            hint="submit both with --set record.digest=10; your own script needs "
            "record.start(model=model) before its loop and record.step(...) in it, too",
        )
    step = next((step for step in steps if first[step] != second[step]), None)
    a, b = ({}, {}) if step is None else (first[step], second[step])
    facts = [*map(_facts, runs)]
    kinds = set.intersection(*({kind for kind, _ in own} for own in facts))
    return RunDiff(
        runs=[run.id for run in runs],
        num_compared=len(steps),
        step=step,
        equal_at=max((other for other in steps if step is None or other < step), default=None),
        values={name: [a[name], b.get(name)] for name in a if a[name] != b.get(name)},
        differences=[
            Difference(kind=kind, key=key, values=pair)
            for kind, key in dict.fromkeys([*facts[0], *facts[1]])
            if (pair := [own.get((kind, key)) for own in facts])[0] != pair[1]
            and kind in kinds
            # A version or a device of which one run says nothing is no difference.
            and (kind not in ("version", "place") or None not in pair)
        ],
    )


def _records_of_lowest_rank(run: Run) -> list[EventFile]:
    files = sorted(run.event_files())
    lowest = [file for file in files if file[0] == files[0][0]]
    return [read_events(path, number=rank, attempt=n) for rank, n, path in lowest]


def _values(records: Sequence[EventFile], *, has_digests: bool) -> dict[int, dict[str, Any]]:
    """Return what a rank recorded, by step and quantity; what a restart did again counts once, as
    the restart did it."""
    values: dict[int, dict[str, Any]] = {}
    for record in records:
        own: dict[int, dict[str, Any]] = {}
        for event in record.all(Digest) if has_digests else record.all(Window):
            found = {name: getattr(event, name, None) for name in ("parameters", "loss")}
            if event.step is not None and any(value is not None for value in found.values()):
                own[event.step] = found
        begin = min(own, default=None)
        values = {step: old for step, old in values.items() if begin is None or step < begin} | own
    return values


def _facts(run: Run) -> dict[tuple[str, str], Any]:
    """Return what a run recorded of itself, by its kind and name."""
    spec, measured = run.spec, measure(run).run
    ran_with = measured.figures.ran_with if measured else RanWith()
    copy = find_code(run, spec)
    contents = read_contents(copy) if copy else {}
    facts: dict[str, dict[str, Any]] = {
        "setting": flatten(job_as_submitted(spec)),
        "version": dict(spec.versions),
        "code": {
            "commit": spec.commit,
            "changes not committed": spec.has_changes,
            "program": ran_with.code,
        },
        "file": {path: content[:_SHORT] for path, content in contents.items()},
        "place": {
            key: getattr(ran_with, key)
            for key in ("device", "device_model", "cluster", "backend", "image")
        },
    }
    return {(kind, key): value for kind, own in facts.items() for key, value in own.items()}
