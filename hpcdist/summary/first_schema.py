"""Windows of steps as events of schema 1 have them: hpcdist wrote these at first."""

from __future__ import annotations

from msgspec import Struct

from hpcdist.summary.records import Bucket, Count, Seconds, Totals, Window


class PhaseTime(Struct, frozen=True, kw_only=True, gc=False):
    """Time of a window's steps that went into one phase; what else stood there nothing read."""

    sum: Seconds


class FirstWindow(Struct, frozen=True, kw_only=True, gc=False, tag_field="event", tag="steps"):
    """A window of steps of one rank; its fields are those of `Window`."""

    time_s: Seconds | None = None
    step: Count
    steps: Count
    samples: Count
    wall_s: Seconds
    pause_s: Seconds = 0.0
    step_time_s: Totals
    phases_s: dict[str, PhaseTime] = {}
    histogram: dict[Bucket, Count] = {}
    epoch: int | None = None
    loss: float | None = None


def to_window(first: FirstWindow) -> Window:
    """The same, as it is written today."""
    return Window(
        time_s=first.time_s,
        step=first.step,
        steps=first.steps,
        samples=first.samples,
        wall_s=first.wall_s,
        pause_s=first.pause_s,
        step_time_s=first.step_time_s,
        phases_s={phase: time.sum for phase, time in first.phases_s.items()},
        histogram={bucket: [count] for bucket, count in first.histogram.items()},
        epoch=first.epoch,
        loss=first.loss,
    )
