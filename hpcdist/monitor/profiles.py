"""What takes the time in a living run: the profiles of its ranks, put together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from hpcdist.agent.requests import Answer, NodeProfiles, RankProfile
from hpcdist.rank.wishes import OperationTime, StepReport


class OperationShare(msgspec.Struct, frozen=True, kw_only=True):
    """One operation in the mean of the ranks that were profiled."""

    name: str
    calls: float
    """Of a step; of samples, all in which it was innermost."""
    self_s: float
    """Of a step; of samples, of all of their time."""
    share: float
    """Of the time of a step, or of all samples."""


class ProfileView(msgspec.Struct, frozen=True, kw_only=True):
    """What took the time in steps, or samples, of some ranks."""

    ranks: list[int] = []
    steps: int = 0
    """Of each rank, in the mean; 0 of samples."""
    step_time_s: float | None = None
    """Under the profiler, in the mean; None of samples."""
    wall_s: float = 0.0
    """For which each rank was profiled, in the mean."""
    operations: list[OperationShare] = []
    whole_s: float | None = None
    """Time of a step in which an operation of communication ran."""
    overlapped_s: float | None = None
    """The part of it in which something was computed."""


class ProfilesView(msgspec.Struct, frozen=True, kw_only=True):
    """The whole picture."""

    attempt: int
    steps: ProfileView | None = None
    """Of ranks that tell their steps."""
    samples: ProfileView | None = None
    """Of those that tell none."""
    files: list[str] = []
    """Traces and graphs, relative to the run directory."""
    errors: dict[int, str] = {}
    """Why ranks have no profile, by rank."""
    troubles: dict[int, str] = {}
    """Why nodes have told nothing, by node."""


def view_profiles(answer: Answer) -> ProfilesView:
    """Return the picture that the agents' answer gives."""
    ranks = sorted(_ranks(answer), key=lambda one: one.rank)
    return ProfilesView(
        attempt=answer.attempt,
        steps=_view([one for one in ranks if not one.is_sampled]),
        samples=_view([one for one in ranks if one.is_sampled]),
        files=[file for one in ranks for file in one.files],
        errors={one.rank: one.report.error for one in ranks if one.report.error is not None},
        troubles=answer.troubles(),
    )


def _ranks(answer: Answer) -> Iterable[RankProfile]:
    for report in answer.reports.values():
        if isinstance(report, NodeProfiles):
            yield from report.ranks


def _view(ranks: Sequence[RankProfile]) -> ProfileView | None:
    done = [one for one in ranks if one.report.wall_s > 0]
    if not done:
        return None
    reports = [one.report for one in done]
    num_steps = sum(report.steps for report in reports)
    wall_s = sum(report.wall_s for report in reports)
    return ProfileView(
        ranks=[one.rank for one in done],
        steps=round(num_steps / len(done)),
        step_time_s=wall_s / num_steps if num_steps else None,
        wall_s=wall_s / len(reports),
        operations=_operations(reports, per=num_steps or len(reports), wall_s=wall_s),
        whole_s=_mean([report.whole_s for report in reports]),
        overlapped_s=_mean([report.overlapped_s for report in reports]),
    )


def _operations(reports: Sequence[StepReport], *, per: int, wall_s: float) -> list[OperationShare]:
    by_name: dict[str, list[OperationTime]] = defaultdict(list)
    for report in reports:
        for operation in report.operations:
            by_name[operation.name].append(operation)
    found = [
        OperationShare(
            name=name,
            calls=sum(one.calls for one in times) / per,
            self_s=(self_s := sum(one.self_s for one in times)) / per,
            share=self_s / wall_s,
        )
        for name, times in by_name.items()
    ]
    return sorted(found, key=lambda one: -one.self_s)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
