"""The figures of one rank in one attempt, from its events."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from operator import attrgetter
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from hpcdist.runs.events import End, Epoch, Evaluation, Resume, Save, Start, Window
from hpcdist.summary.figures import timing
from hpcdist.summary.figures.timing import Spans, StepTotals
from hpcdist.summary.read.event_file import EventFile


class RankFigures(Struct, frozen=True, kw_only=True):
    """One rank in one attempt, small enough to keep for all ranks of a run."""

    rank: int
    attempt: int
    events: EventFile
    """Without its windows of steps."""
    start: Start
    spans: Spans
    """Windows without the warm-up."""
    totals: StepTotals
    """Over the same windows."""
    warm_up_steps: int
    """Steps that were left out."""
    profiled_steps: int
    """Steps that `hpcdist profile` slowed down, which were left out, too."""
    progress: list[Window]
    """The windows of a rank whose progress is that of the run."""
    first_step: int | None
    """Finished steps when the attempt began."""
    last_step: int | None
    stepping_s: float | None
    """Unix time at which the first step began."""
    ended_s: float | None
    """Unix time of the end, or of the last steps that are known."""
    worked_until_s: float | None
    """Unix time of the last step, evaluation or checkpoint: a rank may hang before it ends."""
    epochs: int | None
    train_loss: float | None
    saves_s: float
    """Seconds for checkpoints, outside of steps."""


def measure_rank(record: EventFile, *, has_progress: bool = False) -> RankFigures:
    """Compute the figures of one rank in one attempt; `has_progress`: its progress is the run's."""
    windows = sorted(record.all(Window), key=attrgetter("step"))  # damaged files have any order
    steady = [window for window in windows if not window.profiled]
    measured = timing.drop_warm_up(steady)
    totals = StepTotals(measured)
    first, last = (windows[0], windows[-1]) if windows else (None, None)
    stepping_s = None
    if first is not None and first.time_s is not None:
        stepping_s = first.time_s - first.after_s - first.wall_s - first.pause_s
    resume, epoch, ends = record.last(Resume), record.last(Epoch), record.all(End)
    first_step = first.step - first.steps if first else None
    if resume:
        first_step = resume.step
    last_step = largest([*(end.step for end in ends), last.step if last else None, first_step])
    ended_s = largest([last.time_s if last else None, *(end.time_s for end in ends)])
    # Steps that are known by their number alone, as their window was never written, count with the
    # mean time of a step.
    worked_s = [event.time_s for kind in (Evaluation, Save) for event in record.all(kind)[-1:]]
    if last is not None and last.time_s is not None:
        step_s = totals.sum_s / totals.steps if totals.steps else 0.0
        stepped_s = last.time_s - last.after_s + ((last_step or 0) - last.step) * step_s
        worked_s.append(min(stepped_s, ended_s or math.inf))
    worked_until_s = largest(worked_s)
    epochs = 0 if any(window.epoch is not None for window in windows) else None
    if begun := epoch or resume:
        epochs = begun.epoch
    # Checkpoints at steps are a phase of the next step; all others are saved between epochs, or at
    # the end.
    saves_s = sum(save.save_time_s for save in record.all(Save))
    in_steps_s = sum([window.phases_s.get("checkpoint", 0.0) for window in windows])
    num_steady = sum([window.steps for window in steady])
    return RankFigures(
        rank=record.number,
        attempt=record.attempt,
        events=msgspec.structs.replace(record, events=record.events | {"steps": [], "digest": []}),
        start=record.last(Start) or Start(),
        spans=timing.to_spans(measured),
        totals=totals,
        warm_up_steps=num_steady - totals.steps,
        profiled_steps=sum([window.steps for window in windows]) - num_steady,
        progress=windows if has_progress else [],
        first_step=first_step,
        last_step=last_step,
        stepping_s=stepping_s,
        ended_s=ended_s,
        worked_until_s=ended_s if worked_until_s is None else worked_until_s,
        epochs=epochs,
        train_loss=last.mean_loss if last else None,
        saves_s=max(0.0, saves_s - in_steps_s) if saves_s else 0.0,
    )


def digest_of(value: Any) -> str:
    """Return a short digest of plain values."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


NumberT = TypeVar("NumberT", int, float)


def largest(values: Iterable[NumberT | None]) -> NumberT | None:
    """Return the largest of the values that are known; None without any."""
    return max((value for value in values if value is not None), default=None)
