"""The first step at which two runs part, by what both recorded at the same steps.

Digests tell more than losses, so where both runs have some, these are compared and nothing else.
A value is the same or it is not: two runs of the same program on the same hardware can agree to
the last bit, and the first bit that differs is the one to explain.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from msgspec import UNSET, Struct

from hpcdist.base.errors import UserError
from hpcdist.runs.run import Run
from hpcdist.summary.compare.origins import Difference, find_differences, read_origin
from hpcdist.summary.read.collect import read_rank
from hpcdist.summary.read.records import Digest, RankRecord

Source = Literal["digests", "losses"]

QUANTITIES = (
    "batch",
    "learning rate",
    "loss",
    "parameters",
    "buffers",
    "loss of the epoch",
    "loss of the test data",
    "accuracy of the test data",
)
"""All that may differ at a step, causes before effects."""

Values: TypeAlias = dict[str, Any]
"""Quantity -> its value; None is not a number."""


class Track(NamedTuple):
    """The values of one rank over the steps of a run; what a restart did again counts once."""

    values: dict[int, Values]
    """Step -> what is known of it."""
    digests: dict[int, Digest]
    parts: list[str]


class Divergence(Struct, frozen=True, kw_only=True):
    """The first step at which two runs have different values."""

    step: int
    rank: int
    equal_at: int | None
    """Last step at which they were compared and equal; None where they never were."""
    quantities: list[str]
    """The values that differ, causes before effects."""
    values: dict[str, list[Any]]
    """Quantity -> its value in both runs."""
    first_part: str | None = None
    """First module, or parameter, that differs."""
    num_parts: int = 0


class LastLosses(Struct, frozen=True, kw_only=True):
    """The losses of both runs at the last step that has them."""

    step: int
    losses: list[float | None]


class RunDiff(Struct, frozen=True, kw_only=True):
    """Two runs beside each other: where they part, and in what they differ."""

    version: int = 1
    runs: list[str]
    compared_by: Source
    num_compared: int
    """Steps at which they were compared."""
    last_step: int
    """Last of these."""
    num_ranks: int
    """Ranks of both that were compared, each with its own."""
    divergence: Divergence | None
    """None where they do not part."""
    last_losses: LastLosses | None
    differences: list[Difference]
    """Those that may change results come first."""
    notes: list[str]


class Compared(NamedTuple):
    """What the events of two runs come to."""

    by: Source
    steps: list[int]
    num_ranks: int
    divergence: Divergence | None
    last_losses: LastLosses | None


def diff_runs(runs: Sequence[Run]) -> RunDiff:
    """Compare two runs. Raises UserError where they recorded nothing at the same steps."""
    compared = compare_events(runs)
    if compared is None:
        raise UserError(
            f"{runs[0].id} and {runs[1].id} have no step in common at which both recorded "
            "something",
            hint="submit both with --set record.digest=10; your own script needs "
            "record.start(model=model) before its loop and record.step(...) in it, too",
        )
    differences = find_differences(*map(read_origin, runs))
    return RunDiff(
        runs=[run.id for run in runs],
        compared_by=compared.by,
        num_compared=len(compared.steps),
        last_step=compared.steps[-1],
        num_ranks=compared.num_ranks,
        divergence=compared.divergence,
        last_losses=compared.last_losses,
        differences=differences,
        notes=list(_notes(compared, differences)),
    )


def _notes(compared: Compared, differences: Sequence[Difference]) -> Iterator[str]:
    if compared.by == "losses":
        yield (
            "the runs do not both have digests, so their losses were compared, at the few steps at "
            "which both were recorded; --set record.digest=1 names the exact step, and what "
            "differs first"
        )
    if any(one.kind == "device" and one.key == "ranks" for one in differences):
        yield "the runs have different numbers of ranks: only the lowest rank of each was compared"


def compare_events(runs: Sequence[Run]) -> Compared | None:
    """Compare two runs, rank by rank; the lowest rank only where they have other numbers of ranks.
    None where they recorded nothing at the same steps."""
    files = [_files_by_rank(run) for run in runs]
    shared = sorted(set(files[0]) & set(files[1]))
    ranks = shared if len(files[0]) == len(files[1]) else shared[:1]
    found: list[Compared] = []
    for rank in ranks:
        records = [list(_read(own[rank], rank)) for own in files]
        if (compared := _compare_rank(records, rank)) is not None:
            found.append(compared)
        if not any(record.digests for own in records for record in own):
            break  # losses of thousands of ranks tell no more than those of one
    if not found:
        return None
    first = min(found, key=lambda one: one.divergence.step if one.divergence else float("inf"))
    return first._replace(num_ranks=len(found))


def _files_by_rank(run: Run) -> dict[int, list[Any]]:
    files = sorted(run.event_files(), key=lambda file: (file[0], file[1]))
    return {rank: list(own) for rank, own in itertools.groupby(files, key=lambda file: file[0])}


def _read(files: Iterable[Any], rank: int) -> Iterator[RankRecord]:
    for _, attempt, path in files:
        yield read_rank(path, rank=rank, attempt=attempt)


def _compare_rank(records: Sequence[Sequence[RankRecord]], rank: int) -> Compared | None:
    has_digests = all(any(record.digests for record in own) for own in records)
    by: Source = "digests" if has_digests else "losses"
    first, second = (make_track(own, by) for own in records)
    steps = sorted(set(first.values) & set(second.values))
    if not steps:
        return None
    return Compared(
        by=by,
        steps=steps,
        num_ranks=1,
        divergence=find_divergence(first, second, steps, rank=rank),
        last_losses=_last_losses(first, second, steps),
    )


def make_track(records: Iterable[RankRecord], by: Source) -> Track:
    """Return the values of a rank over its attempts, in their order."""
    track = Track({}, {}, [])
    for record in records:
        values = dict(_digest_values(record) if by == "digests" else _loss_values(record))
        begin = min(values, default=0)
        for step in [step for step in track.values if step >= begin and values]:
            del track.values[step]
            track.digests.pop(step, None)
        track.values.update(values)
        track.digests.update((digest.step, digest) for digest in record.digests)
        for digested in record.digested:
            track.parts[:] = digested.parts
    return track


def _digest_values(record: RankRecord) -> Iterator[tuple[int, Values]]:
    for digest in record.digests:
        found = {
            "batch": digest.batch,
            "learning rate": digest.learning_rate,
            "loss": digest.loss,
            "parameters": digest.parameters,
            "buffers": digest.buffers,
        }
        optional = ("batch", "buffers")
        yield (
            digest.step,
            {
                name: value
                for name, value in found.items()
                if value is not UNSET and not (name in optional and value is None)
            },
        )


def _loss_values(record: RankRecord) -> Iterator[tuple[int, Values]]:
    """Yield the losses of windows, epochs and evaluations: at one step there may be several."""
    found: dict[int, Values] = {}
    for window in record.windows:
        own = {"loss": window.loss, "learning rate": window.learning_rate}
        found.setdefault(window.step, {}).update(_known(own))
    for epoch in record.epochs[1 if record.resumes else 0 :]:  # the first may be a part of one
        if epoch.step is not None:
            found.setdefault(epoch.step, {}).update(_known({"loss of the epoch": epoch.loss}))
    for test in record.evaluations:
        own = {"loss of the test data": test.loss, "accuracy of the test data": test.accuracy}
        if test.step is not None:
            found.setdefault(test.step, {}).update(_known(own))
    yield from ((step, values) for step, values in found.items() if values)


def _known(values: Values) -> Values:
    return {name: value for name, value in values.items() if value is not None}


def find_divergence(
    first: Track, second: Track, steps: Sequence[int], *, rank: int
) -> Divergence | None:
    """Return the first of these steps at which something that both have differs."""
    equal_at = None
    for step in steps:
        a, b = first.values[step], second.values[step]
        unlike = [name for name in QUANTITIES if name in a and name in b and a[name] != b[name]]
        if unlike:
            part, number = _first_part(first, second, step)
            return Divergence(
                step=step,
                rank=rank,
                equal_at=equal_at,
                quantities=unlike,
                values={name: [a[name], b[name]] for name in unlike},
                first_part=part,
                num_parts=number,
            )
        equal_at = step
    return None


def _first_part(first: Track, second: Track, step: int) -> tuple[str | None, int]:
    if step not in first.digests or step not in second.digests or first.parts != second.parts:
        return None, 0
    return first.digests[step].first_unlike(second.digests[step], first.parts)


def _last_losses(first: Track, second: Track, steps: Sequence[int]) -> LastLosses | None:
    for name in ("loss", "loss of the epoch"):
        for step in reversed(steps):
            pair = [track.values[step].get(name, UNSET) for track in (first, second)]
            if UNSET not in pair:
                return LastLosses(step=step, losses=pair)
    return None
