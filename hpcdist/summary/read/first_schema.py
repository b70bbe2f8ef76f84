"""Windows of steps as events of schema 1 have them: hpcdist wrote these at first."""

from __future__ import annotations

from msgspec import Struct, field

from hpcdist.summary.read.records import AnyWindow, Bucket, Count, Seconds, Window


class PhaseTime(Struct, frozen=True, kw_only=True, gc=False):
    """Time of a window's steps that went into one phase; what else stood there nothing read."""

    sum: Seconds


class FirstWindow(AnyWindow, frozen=True, kw_only=True, gc=False):
    """A window of steps of one rank."""

    phases_s: dict[str, PhaseTime] = field(default_factory=dict)
    histogram: dict[Bucket, Count] = field(default_factory=dict)


def to_window(first: FirstWindow) -> Window:
    """The same, as it is written today."""
    same = {name: getattr(first, name) for name in AnyWindow.__struct_fields__}
    return Window(
        **same,
        phases_s={phase: time.sum for phase, time in first.phases_s.items()},
        histogram={bucket: [count] for bucket, count in first.histogram.items()},
    )
