"""The figures of one rank in one attempt, from its events."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct

from hpcdist.runs import benchmarks
from hpcdist.runs.benchmarks import BenchmarkSummary
from hpcdist.runs.events import (
    Digest,
    Evaluation,
    Flops,
    Memory,
    PeerGroup,
    Start,
    Window,
)
from hpcdist.summary.figures import timing
from hpcdist.summary.figures.timing import Spans, StepTotals
from hpcdist.summary.read.records import RankRecord


class Tested(NamedTuple):
    """An evaluation on the test data, or the loss of training up to a step."""

    time_s: float
    step: int | None
    epoch: int | None
    accuracy: float | None = None
    loss: float | None = None
    train_loss: float | None = None


class RankFigures(Struct, frozen=True, kw_only=True):
    """One rank in one attempt, small enough to keep for all ranks of a run."""

    rank: int
    attempt: int
    start: Start
    group: PeerGroup | None
    """As it was last; None where nothing tells."""
    spans: Spans
    """Windows without the warm-up."""
    totals: StepTotals
    """Over the same windows."""
    warm_up_steps: int
    """Steps that were left out."""
    profiled_steps: int
    """Steps that `hpcdist profile` slowed down, which were left out, too."""
    tests: list[Tested]
    """Evaluations, by this rank's clock."""
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
    learning_rate: float | None
    evaluation: Evaluation | None
    notes: list[str]
    flops: Flops | None
    """That of the profiler, where there is one."""
    num_displaced: int
    saves_s: float
    """Seconds for checkpoints, outside of steps."""
    memory: Memory | None
    max_rss_bytes: int | None
    max_cuda_bytes: int | None
    digests: list[Digest] = []
    """Of each step that has some; none once they are compared with those of other ranks."""
    code: str | None = None
    """Digest of the user's files that ran; None where none is known."""
    benchmark: BenchmarkSummary | None = None
    """None where it measured nothing."""


_DIGEST_BYTES = 6


def digest_of(value: Any) -> str:
    """Return a short digest of plain values."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()


def _num_steps(windows: Sequence[Window]) -> int:
    return sum([window.steps for window in windows])


def measure_rank(record: RankRecord, *, most_spans: int | None = None) -> RankFigures:
    """Compute the figures of one rank in one attempt; of more than so many spans, neighbours are
    joined."""
    steady = timing.drop_profiled(record.windows)
    measured = timing.drop_warm_up(steady)
    totals = StepTotals()
    totals.add(measured)
    first = record.windows[0] if record.windows else None
    saves_s = sum(save.save_time_s for save in record.saves)
    in_steps_s = sum([window.phases_s.get("checkpoint", 0.0) for window in record.windows])
    epochs = 0 if any(window.epoch is not None for window in record.windows) else None
    if record.resumes:
        epochs = record.resumes[-1].epoch
    if record.epochs:
        epochs = record.epochs[-1].epoch
    return RankFigures(
        rank=record.rank,
        attempt=record.attempt,
        start=record.starts[-1] if record.starts else Start(),
        group=record.groups[-1] if record.groups else None,
        spans=timing.to_spans(measured, most=most_spans),
        totals=totals,
        warm_up_steps=_num_steps(steady) - totals.steps,
        profiled_steps=_num_steps(record.windows) - _num_steps(steady),
        tests=[
            Tested(test.time_s, test.step, test.epoch, test.accuracy, test.loss)
            for test in record.evaluations
            if test.time_s is not None
        ],
        first_step=_first_step(record),
        last_step=_last_step(record),
        stepping_s=(
            None
            if first is None or first.time_s is None
            else first.time_s - first.after_s - first.wall_s - first.pause_s
        ),
        ended_s=_ended_s(record),
        worked_until_s=_worked_until_s(record, totals),
        epochs=epochs,
        train_loss=record.windows[-1].mean_loss if record.windows else None,
        learning_rate=record.windows[-1].learning_rate if record.windows else None,
        evaluation=record.evaluations[-1] if record.evaluations else None,
        flops=record.flops[-1] if record.flops else None,
        notes=[note.message for note in record.notes],
        num_displaced=record.num_displaced,
        # Checkpoints at steps are a phase of the next step; all others are saved between epochs, or
        # at the end.
        saves_s=max(0.0, saves_s - in_steps_s) if record.saves else 0.0,
        memory=record.memories[-1] if record.memories else None,
        max_rss_bytes=largest(end.max_rss_bytes for end in record.ends),
        max_cuda_bytes=largest(end.max_cuda_bytes for end in record.ends),
        digests=record.digests,
        code=record.starts[-1].code if record.starts else None,
        benchmark=benchmarks.summarize(record.measurements),
    )


def _first_step(record: RankRecord) -> int | None:
    if record.resumes:
        return record.resumes[-1].step
    if record.windows:
        return record.windows[0].step - record.windows[0].steps
    return None


def _last_step(record: RankRecord) -> int | None:
    ends = [end.step for end in record.ends]
    windows = [window.step for window in record.windows[-1:]]
    return largest([*ends, *windows, _first_step(record)])


def _ended_s(record: RankRecord) -> float | None:
    ended = [window.time_s for window in record.windows[-1:]]
    return largest([*ended, *(end.time_s for end in record.ends)])


def _worked_until_s(record: RankRecord, totals: StepTotals) -> float | None:
    times = [test.time_s for test in record.evaluations[-1:]]
    times += [save.time_s for save in record.saves[-1:]]
    window = record.windows[-1] if record.windows else None
    if window is not None and window.time_s is not None:
        # Steps that are known by their number alone, as their window was never written, count with
        # the mean time of a step.
        unwritten = (_last_step(record) or 0) - window.step
        unwritten_s = unwritten * totals.sum_s / totals.steps if totals.steps else 0.0
        stepped_s = window.time_s - window.after_s + unwritten_s
        times.append(min(stepped_s, _ended_s(record) or math.inf))
    return _ended_s(record) if (worked_s := largest(times)) is None else worked_s


NumberT = TypeVar("NumberT", int, float)


def largest(values: Iterable[NumberT | None]) -> NumberT | None:
    """Return the largest of the values that are known; None without any."""
    return max((value for value in values if value is not None), default=None)


def smallest(values: Iterable[NumberT | None]) -> NumberT | None:
    """Return the smallest of the values that are known; None without any."""
    return min((value for value in values if value is not None), default=None)
