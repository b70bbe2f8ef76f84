"""Strong and weak scaling told apart by the batch, and the runs of each: pure.

Weak scaling: more GPUs, and each takes as many samples per step as before, so that a step gets
larger. Strong scaling: more GPUs share a step of as many samples as before, so that each takes
fewer. A job's `train.batch_size` is per GPU, so runs that differ only in resources scale weakly;
runs whose batch_size x GPUs x accumulate is equal scale strongly, though their settings differ.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hpcdist.summary.compare import sizes
from hpcdist.summary.figures.metrics import MeasuredRun
from hpcdist.summary.values import Scaling

_FREE_KEYS = ("train.batch_size", "train.accumulate")
_SAME = 0.1
"""The last step of an epoch may be smaller: measured batches that differ by less are equal."""

Runs = Sequence[MeasuredRun]
_Key = tuple[str, float | str | None]


def batch(run: MeasuredRun) -> float | None:
    """Samples per optimizer step over all GPUs: as the job says, or else as was measured."""
    size = run.conditions.get("train.batch_size")
    accumulate = run.conditions.get("train.accumulate") or 1
    if isinstance(size, int) and isinstance(accumulate, int):
        return size * accumulate * sizes.num_gpus(run.summary)
    return run.summary.samples_per_step


def strong_groups(
    singles: Sequence[Runs], baselines: Sequence[Runs], conditions: Callable[[MeasuredRun], Any]
) -> list[tuple[list[MeasuredRun], list[MeasuredRun]]]:
    """Of groups that have one size each, those that belong together as their batches are equal.

    Each with the runs it is compared with, which may be the baseline of another group: one smallest
    size often begins a weak and a strong line. `conditions` are those that must be equal but for
    the batch.
    """
    text_of = text_of_conditions(lambda run: _without_batch(conditions(run)))
    by_key: dict[_Key, list[MeasuredRun]] = defaultdict(list)
    for group in singles:
        for run in group:
            by_key[text_of(run), _whole(run)].append(run)
    lent: dict[_Key, list[MeasuredRun]] = defaultdict(list)
    for group in baselines:
        for run in group:
            key = text_of(run), _whole(run)
            if key in by_key:
                lent[key].append(run)
    return [(runs, smallest([*runs, *lent[key]])) for key, runs in by_key.items()]


def smallest(runs: Runs) -> list[MeasuredRun]:
    """Those of the smallest size; none where all have the same."""
    least = min(map(size, runs))
    found = [run for run in runs if size(run) == least]
    return found if len(found) < len(runs) else []


def size(run: MeasuredRun) -> sizes.Size:
    """GPUs, then nodes: what runs are ordered by."""
    return sizes.size(run.summary)


def scaling_of(runs: Runs) -> Scaling | None:
    """By the batches of runs of several sizes; None where they are not known, or neither."""
    batches = [(sizes.num_gpus(run.summary), batch(run)) for run in runs]
    if _all_equal([whole for _, whole in batches]):
        return "strong"
    if _all_equal([whole and whole / gpus for gpus, whole in batches]):
        return "weak"
    return None


def text_of_conditions(
    conditions: Callable[[MeasuredRun], Mapping[str, Any]],
) -> Callable[[MeasuredRun], str]:
    """What gives a text for a run, equal where the `conditions`, which go by the run's own, are.

    Made once for all runs that share their own: of thousands most do.
    """
    texts: dict[int, str] = {}

    def text_of(run: MeasuredRun) -> str:
        shared = id(run.conditions)  # they live as long as the runs
        if shared not in texts:
            texts[shared] = json.dumps(conditions(run), sort_keys=True)
        return texts[shared]

    return text_of


def _without_batch(conditions: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in conditions.items() if key not in _FREE_KEYS}


def _whole(run: MeasuredRun) -> float | str | None:
    """What is equal where runs may be compared as strong scaling; that of no other run where there
    is no batch."""
    has_batch = run.conditions.get("train.batch_size") is not None
    return batch(run) if has_batch else run.summary.run


def _all_equal(values: Sequence[float | None]) -> bool:
    known = [value for value in values if value]
    return len(known) == len(values) > 0 and max(known) <= (1 + _SAME) * min(known)
