"""Which runs of a sweep go to the scheduler together, and which wait for each other. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class SweepJob(msgspec.Struct, frozen=True, kw_only=True):
    """One submission: a run by itself, or an array of runs that differ only in what they read."""

    points: list[int]
    """Indices of the points."""
    max_parallel: int | None = None
    """So many of its runs at one time."""
    behind: int | None = None
    """The job, by its place in the list, whose end it waits for."""

    @property
    def is_array(self) -> bool:
        """A single run needs none."""
        return len(self.points) > 1


def group_points(
    shapes: Sequence[str], *, max_array_size: int, max_parallel: int | None = None
) -> list[SweepJob]:
    """Put points of one shape into arrays of at most `max_array_size`, in the points' order.

    `max_parallel` holds for all of them together: the jobs are dealt out to as many lanes, one job
    of a lane waits for the one before it, and the lanes share the number.
    """
    by_shape: dict[str, list[int]] = {}
    for index, shape in enumerate(shapes):
        by_shape.setdefault(shape, []).append(index)
    size = max(1, max_array_size)
    parts = [
        points[start : start + size]
        for points in by_shape.values()
        for start in range(0, len(points), size)
    ]
    if max_parallel is None:
        return [SweepJob(points=points) for points in parts]
    num_lanes = min(max_parallel, len(parts))
    return [
        SweepJob(
            points=points,
            max_parallel=_share(max_parallel, place % num_lanes, num_lanes),
            behind=place - num_lanes if place >= num_lanes else None,
        )
        for place, points in enumerate(parts)
    ]


def _share(number: int, lane: int, num_lanes: int) -> int:
    return number // num_lanes + (1 if lane < number % num_lanes else 0)
