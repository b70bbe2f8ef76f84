"""The variants of a comparison beside each other, and the same job on several clusters: pure.

Of each variant the repeats are averaged; its speed-up is against the first variant. Ideal is as
many times the speed as there are times the GPUs. Runs of one kind on several clusters have equal
settings and sizes; device, scheduler and version of torch may differ, which are what a cluster has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from hpcdist.summary.compare.cells import can_divide, contrast, why_unfit
from hpcdist.summary.figures.run import MeasuredRun
from hpcdist.summary.values import Cell, Comparison, PlaceComparison, RunFigures


class Speedup(Struct, frozen=True):
    """A run against the mean of its baseline."""

    speedup: float | None = None
    efficiency: float | None = None
    compared_with: list[str] = []
    not_compared_because: str | None = None


def compare_variants(runs: Sequence[MeasuredRun]) -> tuple[Comparison, list[Speedup]]:
    """Compare the variants of one comparison, in the order of `runs`, and each run with the mean of
    the first variant; only done runs are counted."""
    by_name: dict[str, list[MeasuredRun]] = {}
    for run in runs:
        own = by_name.setdefault(run.figures.variant or "", [])
        own.append(_as_repeat(run, own[0]) if own else run)
    first = runs[0].figures.variant or ""
    baseline = [run for run in by_name[first] if _counts(run)]
    variants = {
        name: msgspec.structs.replace(cell, name=name)
        for name, cell in zip(
            by_name, contrast([*by_name.values()], baseline, counts=_counts), strict=True
        )
    }
    comparison = Comparison(
        id=runs[0].figures.comparison or "", baseline=first, variants=list(variants.values())
    )
    speedup_of = {
        run.figures.run: _speedup(run, variants[name], variants[first])
        for name, own in by_name.items()
        for run in own
    }
    return comparison, [speedup_of[run.figures.run] for run in runs]


def _as_repeat(run: MeasuredRun, first: MeasuredRun) -> MeasuredRun:
    """Return a run of a variant as one that does not count where it is no repeat of the first."""
    mine, theirs = (msgspec.structs.asdict(each.figures.ran_with) for each in (run, first))
    for key, value in mine.items():
        if value and theirs[key] and value != theirs[key]:
            why = f"{key} is {value}, but {theirs[key]} in {first.figures.run}"
            return msgspec.structs.replace(run, set_aside=why)
    return run


def _counts(run: MeasuredRun) -> bool:
    is_fit = why_unfit(run) is None
    return run.figures.state == "done" and is_fit and can_divide(run.figures)


def _speedup(run: MeasuredRun, variant: Cell, baseline: Cell) -> Speedup:
    rate = run.figures.samples_per_s
    if baseline.samples_per_s is None or rate is None or not _counts(run):
        missing = (
            why_unfit(run) or run.missing or f"its state is {run.figures.state or 'not known'}"
        )
        return Speedup(not_compared_because=missing)
    speedup = rate.mean / baseline.samples_per_s.mean
    share = baseline.num_gpus / variant.num_gpus
    efficiency = None if variant.is_without_its_gpus else speedup * share
    return Speedup(speedup, efficiency, baseline.runs)


def place_of(run: RunFigures) -> str:
    """Return the name of the profile that a run went by, or else its scheduler's."""
    return run.cluster or run.scheduler or ""


def compare_places(
    measured: Sequence[MeasuredRun], settings: Sequence[str]
) -> list[PlaceComparison]:
    """Compare done runs that were the same but for their place; the first place is the baseline.
    `settings` are digests of their settings."""
    alike: dict[tuple[object, ...], dict[str, list[MeasuredRun]]] = {}
    for run, digest in zip(measured, settings, strict=True):
        own = run.figures
        if own.state == "done" and own.samples_per_s and own.samples_per_s.mean > 0:
            size = own.nodes, own.gpus_per_node
            places = alike.setdefault(
                (own.job, digest, own.ran_with.code, own.comparison, *size), defaultdict(list)
            )
            places[place_of(own)].append(run)
    comparisons = []
    for places in alike.values():
        if len(places) > 1:
            first, *_ = places.values()
            cells = [
                msgspec.structs.replace(cell, name=name)
                for name, cell in zip(places, contrast([*places.values()], first), strict=True)
            ]
            cell = cells[0]
            comparisons.append(
                PlaceComparison(
                    job=cell.job, nodes=cell.nodes, gpus_per_node=cell.gpus_per_node, places=cells
                )
            )
    return comparisons
